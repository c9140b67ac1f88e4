"""Printed kernels are kept where that can be, and compiled anew where it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import torch
from isornn import cells, nn
layer = nn.RNN(cells.SCRN(), 2, 3)
layer(torch.ones(4, 1, 2))[0].sum().backward()
print(bool(layer.weight_ih_l0.grad.abs().sum() > 0))
"""


def run(folder: Path) -> str:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    found = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    return found.stdout.strip()


def test_the_source_and_the_machine_code_are_kept_for_later_processes(tmp_path: Path) -> None:
    assert run(tmp_path) == "True"
    (source,) = (tmp_path / "isornn").glob("*.py")
    kept = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.suffix in (".nbc", ".py")}
    assert "def forward_update" in source.read_text(encoding="utf-8")
    assert any(file.suffix == ".nbc" for file in kept)
    assert run(tmp_path) == "True"
    assert {file: file.stat().st_mtime_ns for file in kept} == kept


def test_a_folder_that_cannot_be_written_costs_time_alone(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file, not a folder")
    assert run(blocked) == "True"
    assert blocked.read_text() == "a file, not a folder"
