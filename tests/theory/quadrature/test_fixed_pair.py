"""Correlations of two copies at their fixed point, against simulated networks."""

from __future__ import annotations

import pytest
import torch

from isornn.cells import Gate, Input, Spec, cell_named
from isornn.simulation import simulate
from isornn.theory import analyze

GATED_READ = {gate: Gate(0.5, 1.0, bias_var=2.0) for gate in "rz"} | {"n": Gate(2.0, 0.5, bias_var=0.1)}


@pytest.mark.parametrize("law", [Input(1.0, 0.5, mean=1.0), Input(1.0, 0.0), Input(1.0, -0.8)])
def test_units_with_fixed_biases_have_correlations_of_their_own(law: Input) -> None:
    """The candidate reads r h: how the pair's moment is spread over units is part of the fixed point."""
    spec = Spec(cell_named("gru_cho"), GATED_READ, law, biases="fixed")
    point = analyze(spec, length=1).fixed_point
    assert bool(point.converged) and float(point.residual) < 1e-8
    found = simulate(
        spec, width=600, steps=20, warmup=40, networks=4, tangents=1, generator=torch.Generator().manual_seed(0)
    ).correlation
    error = found.stderr[-1].hypot(point.correlation.stderr) + 2 / 600
    assert float((found.value[-1] - point.correlation.value).abs() / error) < 3
