"""Files that are whole or not there, whatever comes between."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isornn.files import replacing


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
