"""Printed Triton kernels compile for a GPU, in the precision of their arrays; no device is needed for that."""

from __future__ import annotations

import os
from typing import Any

import pytest

from isornn.cells import CELLS, FURTHER_CELLS, Cell
from isornn.nn.kernels.compiled import compiled_for_gpu
from isornn.nn.kernels.planning import schedule_of
from isornn.nn.kernels.triton_source import one_launch, source_of

CATALOGUE = [kind() for kind in (CELLS | FURTHER_CELLS).values()]
NUMBERS = ("t", "steps", "batch", "width")

cells = pytest.mark.parametrize("cell", CATALOGUE, ids=lambda cell: cell.name)


@cells
def test_a_pass_without_products_is_one_kernel(cell: Cell) -> None:
    kernels = source_of(schedule_of(cell)).count("@jit")
    stages = len(schedule_of(cell).forward) + len(schedule_of(cell).backward)
    assert kernels == stages
    assert one_launch(schedule_of(cell)) == (not any(reads.state for reads in cell.gates.values()))
    assert ("def forward(" in source_of(schedule_of(cell))) == one_launch(schedule_of(cell))


@cells
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")
@pytest.mark.parametrize("kind", ["fp32", "fp64"])
def test_kernels_compile_for_an_h100(cell: Cell, kind: str) -> None:
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    compiler = pytest.importorskip("triton.backends.compiler")
    kernels = {name: value for name, value in vars(compiled_for_gpu(cell)).items() if name.startswith(("for", "back"))}
    assert kernels
    for kernel in kernels.values():
        signature: dict[str, Any] = {name: _type(name, kind) for name in kernel.arg_names}
        source = triton.compiler.ASTSource(kernel, signature, {"block": 64})
        code = triton.compile(source, target=compiler.GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": True})
        assert (".f64" in code.asm["ptx"]) == (kind == "fp64")


def _type(argument: str, kind: str) -> str:
    if argument == "block":
        return "constexpr"
    return "i32" if argument in NUMBERS or argument.startswith("steps_") else f"*{kind}"
