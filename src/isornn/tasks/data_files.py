"""Find a user's data files, with the published facts about them and the errors for invalid files."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isornn.files import read_bytes
from isornn.warn import warn

VARIABLE = "ISORNN_DATA"
MOST_BYTES = 1 << 30
"""Bytes of a file, and of what is in a gzip file; the known sets have at most 47 million."""


class DataError(ValueError):
    """A data file that is missing or is not what it should be: names the file, what was found and what is expected.

    >>> from isornn.tasks import load_series
    >>> load_series("ECG200", "no-such-folder")
    Traceback (most recent call last):
    ...
    isornn.tasks.data_files.DataError: ...
    """


def check_name(field: str, name: object) -> None:
    """Refuse what is not the plain name of a file: folders in it could lead out of the data's own.

    Raises:
        DataError: names the field and the value.

    >>> check_name("book", "../secret.txt")
    Traceback (most recent call last):
    ...
    isornn.tasks.data_files.DataError: book: '../secret.txt' is not allowed; it must be a name without folders
    """
    if not isinstance(name, str) or not name or Path(name).name != name or "\\" in name:
        raise DataError(f"{field}: {name!r} is not allowed; it must be a name without folders")


class DataWarning(UserWarning):
    """A data file that can be read but is not, by its checksum, the published one.

    >>> import tempfile
    >>> import warnings
    >>> from isornn.tasks import load_ptb
    >>> with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     for part in ("train", "valid", "test"):
    ...         _ = (Path(folder) / f"ptb.{part}.txt").write_text("not the treebank\\n")
    ...     text = load_ptb(folder)
    >>> caught[0].category.__name__
    'DataWarning'
    """


@dataclass(frozen=True)
class KnownSet:
    """A published data set.

    Args:
        name: as the command line knows it.
        title: as records know it.
        folder: where below the user's folder its files may lie too, and are put when fetched.
        terms: origin and licence, one line.
        files: their checksums ``algorithm:hex`` by name, of the content where a file is gzipped.
        endings: "" and those that a file may also have.
        mirrors: base addresses of each file (with the last of ``endings``) or of the archive.
        archive: name and checksum of one tar or zip file that holds all, where there is one.
    """

    name: str
    title: str
    folder: str
    terms: str
    files: dict[str, str]
    endings: tuple[str, ...]
    mirrors: tuple[str, ...]
    archive: tuple[str, str] | None = None


def data_folder(folder: Path | str | None) -> Path | None:
    """``folder``, or the environment's ISORNN_DATA where none is given.

    Raises:
        DataError: it is not a folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data_folder(folder) == Path(folder)
    True
    """
    named = folder if folder is not None else os.environ.get(VARIABLE) or None
    if named is not None and not Path(named).is_dir():
        origin = "" if folder is not None else f" ({VARIABLE})"
        raise DataError(f"{named}: no such folder{origin}; it holds the data's files")
    return None if named is None else Path(named)


def find(folder: Path, name: str, endings: Sequence[str] = ("",), below: Sequence[str] = ()) -> Path | None:
    """The file ``name`` with one of the endings in ``folder`` or in one of its folders ``below``, if it is there."""
    for place in (folder, *(folder / part for part in below)):
        for ending in endings:
            file = place / f"{name}{ending}"
            if file.is_file():
                return file
    return None


def found(folder: Path, names: Sequence[str], endings: Sequence[str], below: Sequence[str], what: str) -> list[Path]:
    """The files of these names, as `find`.

    Raises:
        DataError: some are missing; names them and all that are expected.
    """
    files = [find(folder, name, endings, below) for name in names]
    missing = [name for name, file in zip(names, files, strict=True) if file is None]
    if missing:
        forms = " or ".join(f"{missing[0]}{ending}" for ending in endings)
        places = " or in ".join(str(folder / part) for part in ("", *below))
        raise DataError(f"{folder}: no {forms}; {what} is {', '.join(names)}, each in {places}")
    return [file for file in files if file is not None]


def content(file: Path) -> bytes:
    """What a file holds, unpacked if its name ends in ``.gz``.

    Raises:
        DataError: not readable, not gzip, or more than `MOST_BYTES` bytes.
    """
    try:
        data = read_bytes(file, MOST_BYTES)
    except OSError as error:
        raise DataError(f"{file}: not readable ({error.strerror})") from None
    if file.suffix != ".gz":
        return data
    if not data:
        raise DataError(f"{file}: not a gzip file (it is empty)")
    try:
        with gzip.open(io.BytesIO(data)) as packed:
            unpacked = packed.read(MOST_BYTES + 1)
    except EOFError:
        raise DataError(f"{file}: truncated, the gzip stream ends early") from None
    except (OSError, zlib.error) as error:
        raise DataError(f"{file}: not a gzip file ({error})") from None
    if len(unpacked) > MOST_BYTES:
        raise DataError(f"{file}: unpacks to more than {MOST_BYTES:,} bytes")
    return unpacked


def matches(data: bytes, checksum: str) -> bool:
    """Whether ``data`` has this ``algorithm:hex``.

    >>> matches(b"", "md5:d41d8cd98f00b204e9800998ecf8427e")
    True
    """
    algorithm, _, digest = checksum.partition(":")
    return hashlib.new(algorithm, data, usedforsecurity=False).hexdigest() == digest


def which(held: dict[str, bytes], known: Sequence[KnownSet]) -> KnownSet | None:
    """The known set that all these files are of, by their checksums; a warning if there is none.

    Args:
        held: what the files hold, by name.
        known: sets that have files of these names.
    """
    for candidate in known:
        if all(matches(data, candidate.files[name]) for name, data in held.items()):
            return candidate
    unlike = [name for name, data in held.items() if not any(matches(data, one.files[name]) for one in known)]
    titles = " or ".join(one.title for one in known)
    what = f"not the published ones of {titles}: {', '.join(unlike)}" if unlike else f"of different sets: {titles}"
    warn(f"by their checksums these files are {what}", DataWarning)
    return None
