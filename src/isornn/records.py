"""Records of runs and experiments on disk: JSON files, written atomically."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from isornn.files import read_json, replacing


class RecordError(ValueError):
    """A file that is not the record it should be."""


def write_record(file: Path, record: dict[str, Any]) -> None:
    """Write ``record`` as strict JSON, atomically: whoever reads sees the old file or the whole new one.

    Raises:
        ValueError: it holds NaN or an infinity, which JSON does not have.
        OSError: the folder cannot be made or written to.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, indent=1, allow_nan=False)
    with replacing(file) as new:
        new.write_text(text + "\n", encoding="utf-8")


def read_record(file: Path) -> Any:
    """What `write_record` wrote.

    Raises:
        RecordError: the file is missing or not JSON.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_record(Path(folder) / "new" / "record.json", {"seed": 0})
    ...     read_record(Path(folder) / "new" / "record.json")
    {'seed': 0}
    """
    try:
        return read_json(file)
    except OSError as error:
        raise RecordError(f"{file}: not readable ({error.strerror})") from None
    except ValueError as error:
        raise RecordError(f"{file}: not JSON ({error})") from None


def versions() -> dict[str, str]:
    """Of Python and the packages that results depend on.

    >>> sorted(versions())
    ['isornn', 'numpy', 'python', 'torch']
    """
    return {"python": platform.python_version()} | {name: _version(name) for name in ("isornn", "numpy", "torch")}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
