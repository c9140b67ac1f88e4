"""Texts in three parts, from Penn Treebank's files or from one book."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from isornn.tasks.data_files import DataError, check_name, content, data_folder, found, which
from isornn.tasks.known_sets import PTB
from isornn.tasks.task import Part, checked_part

BOOK = "war_and_peace.txt"
_PTB_FILES = {"train": "ptb.train.txt", "valid": "ptb.valid.txt", "test": "ptb.test.txt"}


@dataclass(frozen=True)
class Text:
    """A text in three parts.

    Args:
        name: which text, as records name it.
        source: where it is from, one line.
        train, valid, test: the parts.

    >>> text = Text("letters", "made here", "abcabca", "b", "c")
    >>> text.part("valid")
    'b'
    """

    name: str
    source: str
    train: str
    valid: str
    test: str

    def part(self, part: Part) -> str:
        """One of the three.

        Raises:
            ValueError: another part.
        """
        return {"train": self.train, "valid": self.valid, "test": self.test}[checked_part(part)]

    def __repr__(self) -> str:
        return f"<{self.name}; {self.source}>"


def load_ptb(folder: Path | str | None = None) -> Text:
    """Penn Treebank from the folder that holds ``ptb.train.txt``, ``ptb.valid.txt`` and ``ptb.test.txt``, a sentence a
    line with 10,000 different words; there, or in its folder ``ptb``. Other texts under these names work as well.

    Args:
        folder: the environment's ISORNN_DATA if None.

    Raises:
        DataError: a file that is missing, empty or not UTF-8, or no folder: no text comes with the package.

    Warns:
        DataWarning: the files are not the published ones, by their checksums.

    Source: Marcus et al. 1993, as preprocessed by Mikolov et al. 2010.

    >>> import tempfile
    >>> import warnings
    >>> with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")  # these are not the treebank's files
    ...     for part in ("train", "valid", "test"):
    ...         _ = (Path(folder) / f"ptb.{part}.txt").write_text(f"{part} words\\n")
    ...     text = load_ptb(folder)
    >>> text.valid
    'valid words\\n'
    """
    place = _needed(folder, "Penn Treebank", _PTB_FILES.values())
    files = found(place, list(_PTB_FILES.values()), PTB.endings, (PTB.folder,), PTB.title)
    parts = [read_text(file) for file in files]
    known = which({file.name: text.encode() for file, text in zip(files, parts, strict=True)}, (PTB,))
    if known is None:
        return Text("text in ptb.*.txt", f"text files in {place}", *parts)
    return Text(known.title, known.terms, *parts)


def load_book(folder: Path | str | None = None, name: str = BOOK) -> Text:
    """A book from the folder that holds it, plain or ``.gz``; there, or in its folder ``text``.

    Its characters are cut in order into 80 % for training, 10 % for validation and 10 % for testing; the cuts are at
    floor(0.8 n) and floor(0.9 n) of n characters.

    Args:
        folder: the environment's ISORNN_DATA if None.
        name: of the file; War and Peace's if none is given.

    Raises:
        DataError: a name with folders; the file is missing, has fewer than 10 characters or is not UTF-8, or no folder:
            no text comes with the package.

    Source: Balduzzi & Ghifary 2016, section 5.1, after Karpathy et al. 2015. Of War and Peace several editions are
    about; the paper's had 3,258,246 characters, and no checksum is known, so none is compared.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "digits.txt").write_text("0123456789" * 2)
    ...     book = load_book(folder, "digits.txt")
    >>> book.name, book.train, book.valid, book.test
    ('digits', '0123456789012345', '67', '89')
    """
    check_name("name", name)
    place = _needed(folder, "the book", [name])
    (file,) = found(place, [name], ("", ".gz"), ("text",), "the book")
    text = read_text(file)
    if len(text) < 10:
        raise DataError(f"{file}: {len(text)} characters, expected at least 10")
    first, second = len(text) * 8 // 10, len(text) * 9 // 10
    return Text(Path(name).stem, f"{name} in {place}", text[:first], text[first:second], text[second:])


def read_text(file: Path) -> str:
    """What a text file in UTF-8 says; its ends of line are read as they are.

    Raises:
        DataError: not readable, not UTF-8 or empty.
    """
    try:
        text = content(file).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 from byte {error.start} on") from None
    if not text:
        raise DataError(f"{file}: empty")
    return text


def lines(text: str) -> list[str]:
    """Its lines, without the spaces around them.

    >>> lines(" a b \\n\\nc\\n")
    ['a b', '', 'c']
    """
    return [line.strip() for line in text.removesuffix("\n").split("\n")]


class Vocabulary:
    """Symbols and their numbers, in sorted order.

    >>> vocabulary = Vocabulary(["b", "a", "b"])
    >>> len(vocabulary), vocabulary.numbers(["b", "a"]), vocabulary.symbols
    (2, tensor([1, 0]), ['a', 'b'])
    """

    def __init__(self, symbols: Sequence[str]) -> None:
        self.symbols = sorted(set(symbols))
        self._number = {symbol: number for number, symbol in enumerate(self.symbols)}

    def __len__(self) -> int:
        return len(self.symbols)

    def __contains__(self, symbol: str) -> bool:
        return symbol in self._number

    def numbers(self, symbols: Sequence[str]) -> Tensor:
        """Their numbers, int64."""
        return torch.tensor([self._number[symbol] for symbol in symbols], dtype=torch.int64)


def _needed(folder: Path | str | None, what: str, names: Iterable[str]) -> Path:
    place = data_folder(folder)
    if place is None:
        listed = ", ".join(names)
        raise DataError(f"no folder for {what}: name the one that holds {listed}, or set ISORNN_DATA")
    return place
