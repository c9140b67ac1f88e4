"""``isornn cells``, as the shell calls it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from isornn.cells import CELLS, LSTM, Spec
from isornn.cells.catalogue import OF_TORCH
from isornn.nn.kernels.numba_source import source_of
from isornn.nn.kernels.planning import schedule_of
from shell import answer, run


def test_cells_lists_all_nine() -> None:
    result = run("cells")
    assert result.exit_code == 0
    for name, kind in CELLS.items():
        assert name in result.stdout
        for gate in kind.gates:
            assert f"{gate}: " in result.stdout
        for equation in kind.equations:
            assert equation in result.stdout
    for part in ("n: gated state, input", "u: state, input (also enters pointwise)", "f: input, previous input"):
        assert part in result.stdout
    assert "nonlinearity: tanh, sigmoid, relu, identity" in result.stdout
    assert all(part in result.stdout for part in ("not typed", "weakly typed", "strongly typed"))


def test_cells_print_their_kernel_or_why_there_is_none() -> None:
    source = run("cells", "lstm", "--kernel").stdout
    compile(source, "kernel", "exec")
    assert source == source_of(schedule_of(LSTM()))
    pairs = run("cells", "isornn.cells.vanilla:Vanilla(nonlinearity='oplu')", "--kernel")
    assert (pairs.exit_code, pairs.stdout) == (0, "no kernel: vanilla is not pointwise\n")
    refused = run("cells", "--kernel")
    assert refused.exit_code == 2 and "it is for one cell, as isornn cells lstm --kernel" in refused.stderr


@pytest.mark.parametrize(("torchs", "ours"), OF_TORCH.items())
def test_a_cell_has_its_name_in_torch_too(torchs: str, ours: str, spec_file: Callable[[Any], Path]) -> None:
    found = answer("analyze", "--cell", torchs, "--hidden", "8", "--inputs", "3")
    assert found == answer("analyze", "--cell", ours, "--hidden", "8", "--inputs", "3")
    assert Spec.load(spec_file({"cell": torchs})) == Spec.load(spec_file({"cell": ours}))
    assert issubclass(getattr(torch.nn, torchs.rpartition(".")[2]), torch.nn.RNNBase)
