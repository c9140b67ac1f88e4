"""Sentences, words and characters."""

from __future__ import annotations

import gzip
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isornn.tasks import (
    Characters,
    DataError,
    RunningText,
    Sentences,
    Text,
    Words,
    load_book,
    load_ptb,
    loader,
    one_pass,
)
from isornn.tasks.text import Vocabulary

PTB = {"ptb.train.txt": " a b <unk> \n b a \n", "ptb.valid.txt": " a c \n", "ptb.test.txt": " b \n"}


def write_ptb(folder: Path) -> None:
    for name, text in PTB.items():
        (folder / name).write_text(text)


def test_ptb_is_read_from_its_three_files_and_told_from_others(tmp_path: Path) -> None:
    (tmp_path / "ptb").mkdir()
    write_ptb(tmp_path / "ptb")
    with pytest.warns(UserWarning, match=r"not the published ones of Penn Treebank: ptb.train.txt, "):
        text = load_ptb(tmp_path)
    assert (text.train, text.valid, text.test) == tuple(PTB.values())
    assert text.name == "text in ptb.*.txt"
    task = Words(text, columns=1, unroll=100)
    assert task.vocabulary.symbols == ["<eos>", "<unk>", "a", "b"]
    assert [task.vocabulary.symbols[i] for i in task.symbols] == ["a", "b", "<unk>", "<eos>", "b", "a", "<eos>"]
    valid = Words(text, "valid", columns=1)
    assert [valid.vocabulary.symbols[i] for i in valid.symbols] == ["a", "<unk>", "<eos>"]


def test_a_word_that_is_not_known_needs_a_word_for_it() -> None:
    with pytest.raises(DataError, match="its part test has words that training has not, and there is no <unk>"):
        Words(Text("made", "here", "a b", "a", "c"), "test", columns=1)


def test_what_is_wrong_with_the_files_is_said(tmp_path: Path) -> None:
    write_ptb(tmp_path)
    (tmp_path / "ptb.valid.txt").unlink()
    with pytest.raises(DataError, match=r"no ptb.valid.txt; Penn Treebank is ptb.train.txt, .*, ptb.test.txt, each in"):
        load_ptb(tmp_path)
    (tmp_path / "ptb.valid.txt").write_bytes(b"ab\xff")
    with pytest.raises(DataError, match="ptb.valid.txt: not UTF-8 from byte 2 on"):
        load_ptb(tmp_path)
    (tmp_path / "ptb.valid.txt").write_bytes(b"")
    with pytest.raises(DataError, match="ptb.valid.txt: empty"):
        load_ptb(tmp_path)
    with pytest.raises(DataError, match=r"no war_and_peace.txt or war_and_peace.txt.gz; the book is"):
        load_book(tmp_path)
    (tmp_path / "short.txt").write_text("123456789")
    with pytest.raises(DataError, match="9 characters, expected at least 10"):
        load_book(tmp_path, "short.txt")
    with pytest.raises(DataError, match="no folder for Penn Treebank: name the one .* or set ISORNN_DATA"):
        load_ptb()
    with pytest.raises(ValueError, match="part: 'all' is not allowed"):
        load_book(tmp_path, "ptb.train.txt").part("all")  # type: ignore[arg-type]


@given(st.text(st.characters(codec="utf-8"), min_size=10, max_size=200))
def test_a_book_is_cut_in_order_into_80_10_10(tmp_path_factory: pytest.TempPathFactory, words: str) -> None:
    folder = tmp_path_factory.mktemp("book")
    (folder / "book.txt.gz").write_bytes(gzip.compress(words.encode()))
    book = load_book(folder, "book.txt")
    assert book.train + book.valid + book.test == words
    assert abs(len(book.train) - 0.8 * len(words)) < 1 and abs(len(book.valid) - 0.1 * len(words)) < 1


def test_sentences_are_lines_within_the_length_each_character_asked_for_the_next() -> None:
    text = Text("made", "here", " ab c \n\nx\nabcdef\n de ", "z", "y")
    task = Sentences(text, 4)
    assert task.vocabulary.symbols == [" ", *"abcdefxyz"]
    ((x, y, lengths),) = one_pass(task, 9)
    spelled = task.vocabulary.symbols
    assert ["".join(spelled[i] for i in column[:n]) for column, n in zip(x.T, lengths, strict=True)] == ["ab ", "d"]
    assert ["".join(spelled[i] for i in column[:n]) for column, n in zip(y.T, lengths, strict=True)] == ["b c", "e"]
    assert y[1:, 1].tolist() == [-100, -100]
    with pytest.raises(DataError, match="no sentence of 2 to 9 characters in its part test"):
        Sentences(text, 9, "test")
    with pytest.raises(ValueError, match="longest: 1"):
        Sentences(text, 1)


@given(st.integers(2, 60), st.integers(1, 7), st.integers(1, 9))
def test_running_text_reads_every_column_on_and_on(symbols: int, columns: int, unroll: int) -> None:
    """Against the reshape by which Zaremba et al. lay it out: rows of the text as columns of a matrix."""
    steps = (symbols - 1) // columns
    numbers, vocabulary = torch.arange(symbols), Vocabulary(["a"])
    if steps < 1:
        with pytest.raises(DataError, match="symbols are too few"):
            RunningText(numbers, vocabulary, columns, unroll, "made", "here")
        return
    task = RunningText(numbers, vocabulary, columns, unroll, "made", "here")
    batches = list(islice(loader(task, columns), 2 * task.batches))
    for begin in (0, task.batches):
        half = batches[begin : begin + task.batches]
        x, y = (torch.cat([batch[i] for batch in half]) for i in (0, 1))
        assert torch.equal(x, numbers[: columns * steps].view(columns, steps).T)
        assert torch.equal(y, x + 1)
        assert all(len(batch[0]) == unroll for batch in half[:-1]) and 1 <= len(half[-1][0]) <= unroll
    assert [k for k in range(2 * task.batches) if task.new_pass(k)] == [0, task.batches]
    assert all(torch.equal(a[0], b[0]) for a, b in zip(batches, one_pass(task, columns), strict=False))


def test_characters_are_of_the_alphabet_of_all_parts() -> None:
    text = Text("made", "here", "abcab", "xa", "ay")
    assert Characters(text, "test", columns=1).inputs == 5
    x, y = Characters(text, "test", columns=1)[0]
    assert (x.tolist(), y.tolist()) == ([0], [4])


@pytest.mark.parametrize("options", [{"columns": 0}, {"unroll": 0}])
def test_what_is_not_allowed_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))}: 0"):
        Characters(Text("made", "here", "abcab", "xa", "ay"), **options)
