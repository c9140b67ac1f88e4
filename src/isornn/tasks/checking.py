"""Check which files of the known data sets are in a folder, and whether they are valid."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from isornn.tasks.cifar import CIFAR_BINARY_FOLDER, parse_binary, parse_python
from isornn.tasks.data_files import DataError, KnownSet, content, find, matches
from isornn.tasks.idx import read_idx
from isornn.tasks.known_sets import CIFAR_10, FASHION_MNIST, KNOWN, MNIST, PTB, SERIES
from isornn.tasks.text import read_text
from isornn.tasks.ucr import SERIES_ENDINGS, read_series

State = Literal["as published", "other content", "no checksum known", "missing", "damaged"]


@dataclass(frozen=True)
class Checked:
    """One file.

    Args:
        data: the set's name, or what kind of file it is.
        file: its path, or the name of what is missing.
        state: "other content" can be read, and its checksum is not the published one; "no checksum known" can be read.
        detail: what it holds, or what is wrong with it.
    """

    data: str
    file: str
    state: State
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """As it is."""
        return asdict(self)


def check(folder: Path) -> list[Checked]:
    """Every file in ``folder``, or in the folders below it where fetched sets lie, that a task can read.

    Of a set of which some files are there, the others are listed as missing. Sets that are not there at all are left
    out.

    Raises:
        DataError: no such folder.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    known = [*_known(folder)]
    return [*known, *_binary_cifar(folder), *_others(folder, {Path(one.file) for one in known})]


def _known(folder: Path) -> Iterator[Checked]:
    seen: set[Path] = set()
    for known in KNOWN:
        places = [find(folder, name, known.endings, (known.folder,)) for name in known.files]
        # MNIST and Fashion-MNIST have files of the same names: in the folder itself they are either.
        new = [file for file in places if file is not None and file not in seen]
        if new:
            seen.update(new)
            for (name, checksum), file in zip(known.files.items(), places, strict=True):
                yield Checked(known.name, name, "missing") if file is None else _one(known, name, checksum, file)


def _one(known: KnownSet, name: str, checksum: str, file: Path) -> Checked:
    try:
        data = content(file)
    except DataError as error:
        return Checked(known.name, str(file), "damaged", str(error))
    if matches(data, checksum):
        return Checked(known.name, str(file), "as published", known.title)
    for other in KNOWN:
        if name in other.files and matches(data, other.files[name]):
            return Checked(other.name, str(file), "as published", other.title)
    return _read(known.name, file, _READERS[known.name], "other content")


def _binary_cifar(folder: Path) -> Iterator[Checked]:
    names = [f"{name}.bin" for name in CIFAR_10.files]
    places = [find(folder, name, below=(CIFAR_BINARY_FOLDER,)) for name in names]
    if any(places):
        for name, file in zip(names, places, strict=True):
            if file is None:
                yield Checked("cifar-10 (binary)", name, "missing")
            else:
                yield _read("cifar-10 (binary)", file, _binary)


def _others(folder: Path, known: Container[Path]) -> Iterator[Checked]:
    """Time series by their names, and texts, here and one folder below, but for those of known sets."""
    for file in sorted([*folder.glob("*"), *folder.glob("*/*")]):
        plain = file.name.removesuffix(".gz")
        if file in known:
            continue
        if file.suffix in SERIES_ENDINGS and file.stem.endswith(("_TRAIN", "_TEST")):
            yield _read("time series", file, _series)
        elif plain.endswith(".txt") and plain not in PTB.files and file.is_file():
            yield _read("text", file, _text)


def _read(data: str, file: Path, reader: Callable[[Path], str], state: State = "no checksum known") -> Checked:
    try:
        return Checked(data, str(file), state, reader(file))
    except DataError as error:
        return Checked(data, str(file), "damaged", str(error))


# What a file holds, in words, read as the tasks read it.


def _idx(file: Path) -> str:
    return f"sizes {tuple(read_idx(file, 3 if 'idx3' in file.name else 1).shape)}"


def _python(file: Path) -> str:
    return f"{len(parse_python(content(file), file)[1])} images"


def _binary(file: Path) -> str:
    return f"{len(parse_binary(content(file), file)[1])} images"


def _text(file: Path) -> str:
    text = read_text(file)
    return f"{len(text)} characters, {len(set(text))} different"


def _series(file: Path) -> str:
    series, labels = read_series(file)
    shortest, longest = min(map(len, series)), max(map(len, series))
    steps = f"{longest}" if shortest == longest else f"{shortest} to {longest}"
    return f"{len(series)} series of {steps} steps and {series[0].shape[1]} values, {len(set(labels))} classes"


_READERS = {
    MNIST.name: _idx,
    FASHION_MNIST.name: _idx,
    CIFAR_10.name: _python,
    PTB.name: _text,
    **{series.name: _series for series in SERIES},
}
