"""Files that are whole or not there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of ``file`` if the block ends well and is removed if it does not.

    It lies beside ``file``, because only a rename within a file system is atomic, and has the same ending.

    Raises:
        OSError: the folder is missing or cannot be written to.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "note.txt"
    ...     with replacing(file) as new:
    ...         _ = new.write_text("whole")
    ...     file.read_text(), len(list(file.parent.iterdir()))
    ('whole', 1)
    """
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=file.suffix)
    os.close(handle)
    try:
        yield Path(name)
        os.chmod(name, 0o644)
        os.replace(name, file)
    except BaseException:
        # Gone if it has its place already: an interrupt may come just after.
        Path(name).unlink(missing_ok=True)
        raise
