"""Time series and their classes in the files of the UCR and UEA archives: ``.ts``, ``.tsv`` and ``.txt``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import torch
from torch import Tensor

from isornn.files import BYTE_ORDER_MARK
from isornn.tasks.data_files import DataError, check_name, data_folder, found
from isornn.tasks.task import Item, Part, Task, checked_part
from isornn.tasks.text import read_text

SERIES_ENDINGS = (".ts", ".tsv", ".txt")

Labelled = tuple[list[Tensor], list[str]]
# Every fifth series of the training file is for validation: the files often have class after class.
_VALID = 5


@dataclass(frozen=True)
class SeriesSet:
    """Time series and their classes, in the archive's two files.

    Args:
        name: which data, as records name it.
        classes: the labels of the training file, sorted; a label's place here is its number.
        train, test: series (T, D) float32, and labels.

    >>> import torch
    >>> part = [torch.zeros(3, 1), torch.ones(4, 1)], torch.tensor([0, 1])
    >>> SeriesSet("two", ["flat", "high"], part, part)
    <two; 2 + 2 series of 2 classes>
    """

    name: str
    classes: Sequence[str]
    train: tuple[Sequence[Tensor], Tensor]
    test: tuple[Sequence[Tensor], Tensor]

    def __repr__(self) -> str:
        return f"<{self.name}; {len(self.train[1])} + {len(self.test[1])} series of {len(self.classes)} classes>"


class Series(Task):
    """Item i is series i, as long as it is, and y its class, asked for at the last step.

    The values are as the files have them; many sets of the archive have each series at mean 0 and variance 1. The
    archive has no validation part: every fifth series of its training file is taken for it.

    Args:
        series: a set of series.
        part: "train", "valid" or "test".
        seed: without effect on items; of the loader's order.

    Item: x (T, D) float32, y () int64; lengths vary if the part's do.

    Raises:
        ValueError: another part, or a part without series.

    Source: Dau et al. 2019 (UCR); Bagnall et al. 2018 (UEA).

    >>> import torch
    >>> part = [torch.zeros(3, 1), torch.ones(4, 1)], torch.tensor([0, 1])
    >>> task = Series(SeriesSet("two", ["flat", "high"], part, part), "test")
    >>> x, y = task[1]
    >>> x.shape, int(y)
    (torch.Size([4, 1]), 1)
    """

    name = "series"

    def __init__(self, series: SeriesSet, part: Part = "train", *, seed: int = 0) -> None:
        values, labels = series.test if checked_part(part) == "test" else series.train
        chosen: Sequence[int] = range(len(labels))
        if part != "test":
            chosen = [i for i in chosen if (i % _VALID == _VALID - 1) == (part == "valid")]
        if not chosen:
            raise DataError(f"{series.name}: no series in its part {part}")
        super().__init__(len(chosen), seed)
        self.values, self.labels = [values[i] for i in chosen], labels[list(chosen)]
        self.source = series.name
        self.inputs, self.outputs = self.values[0].shape[1], len(series.classes)
        self.lengths_vary = len({len(one) for one in self.values}) > 1

    def draw(self, index: int, generator: torch.Generator) -> Item:
        return self.values[index], self.labels[index]


def load_series(name: str, folder: Path | str | None = None) -> SeriesSet:
    """``NAME_TRAIN`` and ``NAME_TEST`` with the ending ``.ts``, ``.tsv`` or ``.txt``, from a folder or its folder NAME.

    Args:
        name: of the set, such as "ECG200".
        folder: the environment's ISORNN_DATA if None.

    Raises:
        DataError: a name with folders; a file that is missing or damaged, values that are missing, or no folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for part in ("TRAIN", "TEST"):
    ...         _ = (Path(folder) / f"Two_{part}.tsv").write_text("1\\t0.0\\t0.5\\n2\\t1.0\\t0.5\\n")
    ...     load_series("Two", folder)
    <Two; 2 + 2 series of 2 classes>
    """
    check_name("name", name)
    place = data_folder(folder)
    if place is None:
        raise DataError(f"no folder for {name}: name the one that holds {name}_TRAIN and {name}_TEST, or ISORNN_DATA")
    files = found(place, [f"{name}_TRAIN", f"{name}_TEST"], SERIES_ENDINGS, (name,), name)
    (train, train_labels), (test, test_labels) = (read_series(file) for file in files)
    classes = sorted(set(train_labels))
    unknown = set(test_labels) - set(classes)
    if unknown:
        raise DataError(f"{files[1]}: class {min(unknown)!r} is not among {files[0].name}'s: {', '.join(classes)}")
    if train[0].shape[1] != test[0].shape[1]:
        raise DataError(f"{files[1]}: {test[0].shape[1]} dimensions where {files[0].name} has {train[0].shape[1]}")
    numbers = {label: number for number, label in enumerate(classes)}
    return SeriesSet(
        name,
        classes,
        (train, torch.tensor([numbers[label] for label in train_labels])),
        (test, torch.tensor([numbers[label] for label in test_labels])),
    )


def read_series(file: Path) -> Labelled:
    """Series (T, D) and their labels from one file, by its ending.

    - ``.ts``: lines of header that begin with ``@``, to ``@data``; then a series a line, its dimensions and at last
      its label separated by ``:``, values by commas. Lines that begin with ``#`` are comments.
    - ``.tsv``: a series a line, its label, then its values, separated by tabs. ``.txt``: the same by spaces or commas.
      Values that are missing at the end of a line are the end of a shorter series; D = 1.

    Raises:
        DataError: not such a file; names the line and what is wrong. Values that are missing, time stamps and series
            without classes are not supported.

    Sources: the archives' own descriptions, timeseriesclassification.com.
    """
    if file.suffix not in SERIES_ENDINGS:
        raise DataError(f"{file}: its name must end in {' or '.join(SERIES_ENDINGS)}")
    series: list[Tensor] = []
    labels: list[str] = []
    for number, (dimensions, label) in _READERS[file.suffix](read_text(file).removeprefix(BYTE_ORDER_MARK), file):
        values = [_values(dimension, f"{file}: line {number}") for dimension in dimensions]
        if len({len(one) for one in values}) != 1 or not values[0]:
            raise DataError(f"{file}: line {number}: dimensions of {', '.join(str(len(one)) for one in values)} values")
        if not label:
            raise DataError(f"{file}: line {number}: no label")
        if series and len(values) != series[0].shape[1]:
            raise DataError(f"{file}: line {number}: {len(values)} dimensions where others have {series[0].shape[1]}")
        series.append(torch.tensor(values, dtype=torch.float32).T)
        labels.append(label)
    if not series:
        raise DataError(f"{file}: no series")
    return series, labels


Line = tuple[int, tuple[list[list[str]], str]]


def _ts(text: str, file: Path) -> Iterator[Line]:
    header = True
    for number, line in enumerate(map(str.strip, text.split("\n")), 1):
        if not line or line.startswith("#"):
            continue
        if header:
            if not line.startswith("@"):
                raise DataError(f"{file}: line {number}: not a line of the header, which ends with @data")
            header = not _is_data(line, f"{file}: line {number}")
        else:
            *dimensions, label = line.split(":")
            yield number, ([dimension.split(",") for dimension in dimensions], label.strip())
    if header:
        raise DataError(f"{file}: no @data")


def _is_data(line: str, where: str) -> bool:
    """Whether a line of the header is its last; refuse what it announces if that is not supported."""
    words = line.lower().split()
    if words[0] == "@timestamps" and words[1:] == ["true"]:
        raise DataError(f"{where}: time stamps are not supported")
    if words[0] in ("@classlabel", "@targetlabel") and (words[1:2] == ["true"]) != (words[0] == "@classlabel"):
        raise DataError(f"{where}: series without classes are not supported")
    return words[0] == "@data"


def _tsv(text: str, file: Path) -> Iterator[Line]:
    return _columns(text, lambda line: line.split("\t"))


def _txt(text: str, file: Path) -> Iterator[Line]:
    return _columns(text, lambda line: line.replace(",", " ").split())


def _columns(text: str, cut: Callable[[str], list[str]]) -> Iterator[Line]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            label, *values = (word.strip() for word in cut(line.strip("\r\n ")))
            while values and values[-1].lower() in _MISSING:
                values.pop()
            yield number, ([values], _class_name(label))


def _class_name(label: str) -> str:
    """The label; of numbers such as 1.0000000e+00, which the old files have, the whole number."""
    try:
        value = float(label)
    except ValueError:
        return label
    return str(int(value)) if isfinite(value) and value == int(value) else label


_MISSING = ("", "?", "nan")
_READERS: Mapping[str, Callable[[str, Path], Iterator[Line]]] = {".ts": _ts, ".tsv": _tsv, ".txt": _txt}


def _values(words: Sequence[str], where: str) -> list[float]:
    if any(word.strip().lower() in _MISSING for word in words):
        raise DataError(f"{where}: a value is missing, which is not supported; fill it in first")
    try:
        values = [float(word) for word in words]
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None
    # float32 is what the tensors have, and what is finite in float64 may not be in it.
    if not bool(torch.tensor(values, dtype=torch.float32).isfinite().all()):
        raise DataError(f"{where}: a value is not finite")
    return values
