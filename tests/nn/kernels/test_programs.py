"""What a kernel is printed from: cells that have no program, and what a program contains."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from isornn.cells import (
    FURTHER_CELLS,
    LSTM,
    Cell,
    Reads,
    Values,
    Vanilla,
)
from isornn.nn.kernels import device, kernel_of, why_no_kernel
from isornn.nn.kernels.numba_source import source_of
from isornn.nn.kernels.planning import schedule_of
from isornn.nn.kernels.scan_steps import carries_affinely


@dataclass(frozen=True)
class SignOfItself(Cell):
    """The derivative is the same everywhere, and yet the state is not affine in the one before."""

    name = "sign_of_itself"
    gates = {"z": Reads(state=False)}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": 0.5 * s.h + torch.sign(s.h) * u.z}


@dataclass(frozen=True)
class Crossed(Cell):
    """Each state is affine in the other."""

    name = "crossed"
    states = ("h", "m")
    gates = {"z": Reads(state=False)}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": u.z + s.m, "m": 0.5 * s.h}


@pytest.mark.parametrize("cell", [SignOfItself(), Crossed()], ids=lambda cell: cell.name)
def test_what_is_not_affine_in_itself_alone_is_not_scanned(cell: Cell) -> None:
    assert not carries_affinely(cell)


def test_without_a_file_there_is_no_module_for_triton(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from isornn.nn.kernels.compiled import compiled_for_gpu

    (tmp_path / "isornn").write_text("")  # a file where the folder would be
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert compiled_for_gpu.__wrapped__(LSTM()) is None


@dataclass(frozen=True)
class Branching(Cell):
    """What is done depends on a value."""

    name = "branching"
    gates = {"h": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": u.h if bool((u.h > 0).all()) else s.h}


@dataclass(frozen=True)
class Unknown(Cell):
    """An operation that is not arithmetic."""

    name = "unknown"
    gates = {"h": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.special.bessel_j0(u.h)}


@dataclass(frozen=True)
class Listed(Cell):
    """An operation whose tensors come in a list."""

    name = "listed"
    gates = {"h": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.stack([s.h, u.h]).sum(0)}


@dataclass(frozen=True)
class Rounded(Cell):
    """A state in another precision than the layer's."""

    name = "rounded"
    gates = {"h": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": u.h.float()}


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (Rounded(), "gives torch.float32; kernels compute in the layer's precision"),
        (Vanilla("oplu"), "vanilla is not pointwise"),
        (Branching(), "branching.update cannot be traced"),
        (Unknown(), "bessel_j0"),
        (Listed(), "aten.stack"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_cannot_be_printed_says_why(cell: Cell, reason: str) -> None:
    assert kernel_of(cell) is None
    assert reason in str(why_no_kernel(cell))


@pytest.mark.skipif(device._INSTALLED, reason="with Triton torch.compile's front end is loaded anyway")
def test_recording_a_program_loads_no_compiler() -> None:
    program = """
import sys
from isornn.cells import LSTM
from isornn.nn.kernels import why_no_kernel
assert why_no_kernel(LSTM()) is None
assert not {"sympy", "torch._dynamo", "torch.distributed.tensor"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_equal_expressions_are_computed_once() -> None:
    # softplus' own derivative spells its argument as 1 u
    source = source_of(schedule_of(FURTHER_CELLS["min_lstm"]()))
    forward, backward = source.split("def backward_update")
    # Two gates, each once a pass: the backward pass computes anew what is cheaper than to keep.
    for direction in (forward, backward):
        assert len(re.findall(r"\bexp\(", direction)) == 2
