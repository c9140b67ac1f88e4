"""Records of runs and experiments on disk: JSON files, written atomically."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from isornn.cells.errors import brief
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


def read_table(file: Path, types: Mapping[str, Any]) -> dict[str, Any]:
    """A table that `write_record` wrote; others may have edited it since.

    Args:
        file: to read.
        types: what its fields are, where they are there, as ``isinstance`` takes it.

    Raises:
        RecordError: as `read_record`; it is no table, or a field has another type.
    """
    table = read_record(file)
    if not isinstance(table, dict):
        raise RecordError(f"{file}: {brief(table)} is not allowed; it must be a table")
    for name, allowed in types.items():
        if name in table and not isinstance(table[name], allowed):
            raise RecordError(f"{file}: {name}: {brief(table[name])} is not allowed; it must be {_named(allowed)}")
    return table


def _named(types: Any) -> str:
    kinds = getattr(types, "__args__", (types,))
    return " or ".join(_NAMES[kind] for kind in kinds if not (kind is int and float in kinds))


_NAMES = {
    dict: "a table",
    list: "a list",
    str: "a text",
    int: "a whole number",
    float: "a number",
    type(None): "null",
}


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
