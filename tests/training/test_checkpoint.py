"""Checkpoints: what was saved comes back, and what was not is refused by name."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from isornn.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint

CONTENT: dict[str, Any] = {
    "update": 7,
    "model": {"weight": torch.arange(6.0).reshape(2, 3)},
    "at": Counter([3, 5]),
    "rates": (0.1, None),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    saved = tmp_path / "checkpoint.pt"
    save_checkpoint(saved, CONTENT)
    return saved


def test_what_was_saved_comes_back(file: Path) -> None:
    content = load_checkpoint(file)
    assert torch.equal(content.pop("model")["weight"], CONTENT["model"]["weight"])
    assert content == {key: value for key, value in CONTENT.items() if key != "model"}


def test_a_changed_byte_is_refused_wherever_it_is(file: Path) -> None:
    data = file.read_bytes()
    for place in [*range(0, 120), *range(120, len(data), 37), len(data) - 1]:
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(CheckpointError, match="checkpoint.pt: "):
            load_checkpoint(file)


def test_a_truncated_or_longer_file_is_refused(file: Path) -> None:
    data = file.read_bytes()
    for wrong in (*(data[:length] for length in range(0, len(data), 61)), data[:-1], data + b"\0"):
        file.write_bytes(wrong)
        with pytest.raises(CheckpointError, match="checkpoint.pt: (truncated|not a checkpoint)"):
            load_checkpoint(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="gone.pt: not readable"):
        load_checkpoint(tmp_path / "gone.pt")


class _Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("harm",)


def test_nothing_but_data_is_loaded_even_with_a_fitting_checksum(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": _Harmful()}, tmp_path / "raw.pt")
    for payload in ((tmp_path / "raw.pt").read_bytes(), pickle.dumps(_Harmful(), protocol=2), b"nonsense"):
        checksum = hashlib.sha256(payload).hexdigest().encode()
        file.write_bytes(b"isornn checkpoint, sha256 " + checksum + b"\n" + payload)
        with pytest.raises(CheckpointError, match="checkpoint.pt: holds something else"):
            load_checkpoint(file)
    assert not (tmp_path / "harm").exists()


def test_a_failed_write_leaves_the_file_before_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(file, {"update": 8})
    assert load_checkpoint(file)["update"] == 7
    assert os.listdir(file.parent) == ["checkpoint.pt"]
