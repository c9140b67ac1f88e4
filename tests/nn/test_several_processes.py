"""Layers whose copies, or parts, are in several processes: gradients, and starts that would leave copies different."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from two_processes import one_of_two


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Of each of the two processes."""
    folder: Path = tmp_path_factory.mktemp("processes")
    start: Any = torch.multiprocessing.spawn  # type: ignore[attr-defined]
    start(one_of_two, (str(folder / "group"), str(folder / "found")), nprocs=2)
    return [torch.load(folder / f"found{rank}", weights_only=True) for rank in (0, 1)]


def test_gradients_are_those_of_one_process(found: list[dict[str, Any]]) -> None:
    for own in found:
        assert len(own["apart"]) == 8
        assert {kind: error for kind, error in own["apart"].items() if error > 1e-5} == {}


def test_a_start_of_copies_that_would_differ_is_refused(found: list[dict[str, Any]]) -> None:
    """DistributedDataParallel sends parameters once, when it is made; each process has a batch and draws of its own."""
    for own in found:
        answers, lines, left_alone, names = own["starts"]
        assert len(answers) == 5 and len(lines) == 1 and left_alone
        for line in (*answers, *lines):
            assert "DistributedDataParallel in 2 processes is not allowed" in line and "before it is wrapped" in line
        assert names == ("lstm", "LSTM l0")  # reading is not refused


def test_parameters_that_are_split_are_refused(found: list[dict[str, Any]]) -> None:
    for own in found:
        assert len(own["split"]) == 4
        for line in own["split"]:
            assert "FSDPLSTM has parameters that are split between processes" in line
