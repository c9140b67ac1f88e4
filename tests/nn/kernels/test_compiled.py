"""Printed kernels are kept where that can be, and compiled anew where it cannot."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from isornn import cells
from isornn.nn.kernels import compiled, numba_source, triton_source
from isornn.nn.kernels.planning import schedule_of
from isornn.nn.kernels.schedule import Schedule

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


def test_a_kept_source_that_is_no_text_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    path = compiled._kept("kept", "pass\n")
    assert path is not None
    path.write_bytes(b"\xff\xfe")
    assert compiled._kept("kept", "pass\n") == path
    assert path.read_text(encoding="utf-8") == "pass\n"


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_kept_machine_code_that_cannot_be_read_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path / "kept"))
    path = tmp_path / "one_more.py"
    path.write_text("from isornn.nn.kernels.arithmetic import jit\n\n\n@jit\ndef f(x):\n    return x + 1\n")
    assert compiled._loaded("one_more", path).f(1) == 2
    (kept,) = (tmp_path / "kept").rglob(f"*{suffix}")
    kept.write_bytes(b"")
    assert compiled._loaded("one_more", path).f(1) == 2
    assert kept.stat().st_size > 0


@dataclass(frozen=True)
class Optional(cells.Cell):
    """A cell with an option that changes nothing."""

    option: Any
    name = "optional"
    gates = {"n": cells.Reads()}

    def update(self, s: cells.Values, u: cells.Values, x: Any) -> dict[str, Any]:
        return {"h": torch.tanh(u.n)}


@pytest.mark.parametrize("printed", [numba_source.source_of, triton_source.source_of])
def test_sources_do_not_depend_on_how_an_option_is_written(printed: Callable[[Schedule], str]) -> None:
    sources = {printed(schedule_of(Optional(option))) for option in ('"""', "\\", lambda: None)}
    assert len(sources) == 1
    ast.parse(sources.pop())
