"""Atomic writes, and reading users' files with limits on their size."""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import secrets
import stat
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MOST_TEXT = 64 << 20
"""Bytes of a text file that is read at once: a specification, a configuration, a record."""
MOST_DATA = 16 << 30
"""Bytes of a file of data or weights."""
DEEPEST = 64
"""Levels of tables and lists in a text file."""
BYTE_ORDER_MARK = "\ufeff"
"""What some editors begin a text file in UTF-8 with."""
# tomllib's time grows with the square of a key's length, so that long ones have to be found before.
_LONG_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{DEEPEST}}}""")


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of ``file`` if the block ends well and is removed if it does not.

    It is in the folder of ``file``, because only a rename within a file system is atomic, and has the same ending.

    Raises:
        OSError: the folder is missing or cannot be written to.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "note.txt"
    ...     with replacing(file) as new:
    ...         _ = new.write_text("whole")
    ...     file.read_text(), len(list(file.parent.iterdir()))
    ('whole', 1)
    """
    new = file.parent / f"{_begun(file)}{secrets.token_hex(8)}{file.suffix}"
    try:
        new.touch(exist_ok=False)
    except OSError as error:
        error.filename = str(file)
        raise
    try:
        yield new
        os.replace(new, file)
    except BaseException as error:
        # As of a full disk, of which it says no more.
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, str(new), new):
            error.filename = str(file)
        # Gone if it has its place already: an interrupt may come just after.
        new.unlink(missing_ok=True)
        raise


def remove_begun(file: Path) -> None:
    """Remove what killed processes had begun to write in the place of ``file``, if no process writes it now.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     (Path(folder) / ".note-0123456789abcdef.txt").touch()
    ...     remove_begun(Path(folder) / "note.txt")
    ...     list(Path(folder).iterdir())
    []
    """
    for new in file.parent.glob(f"{glob.escape(_begun(file))}{'[0-9a-f]' * 16}{glob.escape(file.suffix)}"):
        new.unlink()


def _begun(file: Path) -> str:
    """How the names of files begin that `replacing` writes; cut, as a name with more in it may be too long."""
    return f".{file.stem[:32]}-"


def check_regular(file: Path, most: int = MOST_DATA) -> int:
    """The size of a regular file in bytes. Opening a pipe waits for its other end, and some devices never end.

    Raises:
        OSError: no such file, a folder, pipe or device, or more than ``most`` bytes.
    """
    found = file.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a regular file", str(file))
    if found.st_size > most:
        raise OSError(errno.EFBIG, f"it has {found.st_size:,} bytes, the most is {most:,}", str(file))
    return found.st_size


def read_bytes(file: Path, most: int = MOST_DATA, start: int = 0) -> bytes:
    """What a regular file holds, from the byte ``start``.

    Raises:
        OSError: not readable, more than fits in memory, or as `check_regular`.
    """
    size = check_regular(file, most)
    with file.open("rb") as opened:
        opened.seek(start)
        try:
            return opened.read()
        except MemoryError:
            what = f"it has {size:,} bytes, which do not fit in memory"
            raise OSError(errno.ENOMEM, what, str(file)) from None


def read_json(file: Path) -> Any:
    """The value in a JSON file.

    Raises:
        OSError: as `read_bytes`.
        ValueError: not UTF-8, not JSON, a key twice in one object, or nested more than `DEEPEST` levels.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "twice.json"
    ...     _ = file.write_text('{"seed": 0, "seed": 1}')
    ...     read_json(file)
    Traceback (most recent call last):
    ...
    ValueError: the key 'seed' is there twice
    """
    try:
        return shallow(json.loads(_text(file), object_pairs_hook=_unique))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def read_toml(file: Path) -> dict[str, Any]:
    """The table in a TOML file.

    Raises:
        OSError: as `read_bytes`.
        ValueError: not UTF-8, not TOML, or nested more than `DEEPEST` levels.
    """
    return parse_toml(_text(file))


def _text(file: Path) -> str:
    """What a text file in UTF-8 says, without a byte order mark."""
    try:
        return read_bytes(file, MOST_TEXT).decode().removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 from byte {error.start} on") from None


def parse_toml(text: str) -> dict[str, Any]:
    """The table that a TOML document is.

    Raises:
        ValueError: not TOML, or nested more than `DEEPEST` levels.

    >>> parse_toml("optimiser.rate = 1e-3")
    {'optimiser': {'rate': 0.001}}
    """
    if _LONG_KEY.search(text):
        raise ValueError(_TOO_DEEP)
    try:
        table: dict[str, Any] = shallow(tomllib.loads(text))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return table


_TOO_DEEP = f"nested more than {DEEPEST} levels"


def shallow(value: Any) -> Any:
    """``value``, which recursion may go through.

    Raises:
        ValueError: it is nested more than `DEEPEST` levels.
    """
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, Mapping | list)
            for inner in (outer.values() if isinstance(outer, Mapping) else outer)
        ]
        if not level:
            return value
    raise ValueError(_TOO_DEEP)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice!r} is there twice")
    return table
