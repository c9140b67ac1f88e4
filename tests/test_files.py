"""Files that are whole or not there, whatever comes between."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from isornn.files import read_bytes, read_json, read_toml, remove_begun, replacing


def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old")

    def interrupted() -> None:
        with replacing(file) as new:
            new.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_an_interrupt_after_the_new_file_has_its_place_is_that_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def interrupted(*paths: Path) -> None:
        replace(*paths)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    file = tmp_path / "a.txt"
    with pytest.raises(KeyboardInterrupt), replacing(file) as new:
        new.write_text("new")
    assert file.read_text() == "new" and list(tmp_path.iterdir()) == [file]


def test_a_full_disk_is_said_with_the_files_name(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    full = Path("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: '.*a.txt'"), replacing(file):
        full.write_text("new")
    assert list(tmp_path.iterdir()) == []


def test_a_new_file_has_the_mode_that_the_user_asks_of_new_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "a.txt") as new:
            new.write_text("new")
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o640


def test_what_was_begun_is_removed_and_nothing_of_the_users(tmp_path: Path) -> None:
    file, others = tmp_path / "checkpoint.pt", {".mine.pt", ".weights1.pt", ".checkpoint-mine.pt", "checkpoint.pt"}
    for other in others:
        (tmp_path / other).touch()
    begun = replacing(file)
    begun.__enter__()  # and never ended, as by a kill
    assert len([*tmp_path.iterdir()]) == len(others) + 1
    remove_begun(file)
    assert {left.name for left in tmp_path.iterdir()} == others


def test_names_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    file = tmp_path / ("é" * 100 + "[*]" * 10 + ".json")
    with replacing(file) as new:
        new.write_text("new")
    assert [*tmp_path.iterdir()] == [file]


@contextmanager
def memory_left(size: int) -> Iterator[None]:
    """So many bytes more than now."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the limit needs Linux's count of memory")
def test_a_file_that_does_not_fit_in_memory_is_said(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.touch()
    os.truncate(file, 1 << 33)
    with (
        memory_left(1 << 30),
        pytest.raises(OSError, match=r"8,589,934,592 bytes, which do not fit in memory: '.*a.bin'"),
    ):
        read_bytes(file)


def test_reading_begins_where_it_is_asked_to(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(b"header, content")
    assert (read_bytes(file), read_bytes(file, start=8), read_bytes(file, start=99)) == (
        b"header, content",
        b"content",
        b"",
    )


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text('{"seed": "\ufeff1"}', encoding="utf-8-sig")
    assert read_json(file) == {"seed": "\ufeff1"}
    file.write_text("seed = 1", encoding="utf-8-sig")
    assert read_toml(file) == {"seed": 1}


def test_another_encoding_is_said(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text('{"seed": 1}', encoding="utf-16")
    for read in (read_json, read_toml):
        with pytest.raises(ValueError, match="^not UTF-8 from byte 0 on$"):
            read(file)
