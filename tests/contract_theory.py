"""Rows of the cell contract: closed form, quadrature, population and finite networks agree."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from contract_cells import seeded, spec_for
from isornn.cells import Cell, Spec, Values
from isornn.simulation import Simulation, simulate
from isornn.theory.population.analysis import population_analysis
from isornn.theory.population.engine import Effort
from isornn.theory.quadrature.engine import QuadratureEngine
from isornn.theory.records import Analysis

_QUICK = Effort(
    settle_steps=1024, settle_tolerance=0.02, response_steps=64, response_tolerance=0.03, cohorts=2, apart=False
)


def sampled(spec: Spec, length: int = 4) -> Analysis:
    return population_analysis(spec, length, generator=seeded(), units=128, replicates=16, effort=_QUICK)


def integrated(spec: Spec) -> Analysis:
    return QuadratureEngine(spec).analysis(4)


def closed_form_is_quadrature(cell: Cell) -> None:
    """Without recurrent weights ``h = A h + B`` has ``Q = (E B^2 + 2 mu E AB) / (1 - E A^2)``, ``chi = E A^2``."""
    spec = spec_for(cell, recurrent=0.0)
    found = integrated(spec)
    nodes, weights = (torch.from_numpy(part) for part in _hermite(24))
    gates = [name for name, gate in spec.gates.items() if gate.input_var or gate.previous_input_var]
    columns = len(gates) + cell.input_enters_pointwise
    grids = torch.meshgrid(*[nodes] * columns, indexing="ij") if columns else ()
    weight = math.prod(torch.meshgrid(*[weights] * columns, indexing="ij"), start=torch.ones(()))
    blank = torch.zeros_like(weight)
    u = Values(**dict.fromkeys(cell.gates, blank), **cell.parameters)
    for name, grid in zip(gates, grids, strict=False):
        setattr(u, name, math.sqrt(spec.gates[name].input_var + spec.gates[name].previous_input_var) * grid)
    (state,) = cell.states
    b, one = (cell.update(Values(**{state: blank + level}), u, grids[-1])[state] for level in (0.0, 1.0))
    a = one - b
    mean = (weight * b).sum() / (1 - (weight * a).sum())
    chi = (weight * a * a).sum()
    second = ((weight * b * b).sum() + 2 * mean * (weight * a * b).sum()) / (1 - chi)
    torch.testing.assert_close(found.fixed_point.second_moment.value, second, rtol=1e-4, atol=1e-9)
    torch.testing.assert_close(found.chi_1.value, chi, rtol=1e-4, atol=1e-9)


def _hermite(order: int) -> Any:
    import numpy as np

    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    return nodes, weights / weights.sum()


def quadrature_is_population(cell: Cell) -> None:
    spec = spec_for(cell)
    exact, found = integrated(spec), sampled(spec)
    for one, other in (
        (exact.fixed_point.second_moment, found.fixed_point.second_moment),
        (exact.chi_1, found.chi_1),
    ):
        assert abs(one.number() - other.number()) <= 5 * float(other.stderr) + 0.002 * one.number()


@functools.cache
def _theory_and_networks(cell: Cell) -> tuple[Analysis, Simulation]:
    theory = sampled(spec_for(cell))
    second = theory.fixed_point.second_moment
    assert second.number() is not None, second.reason()
    # states start at their stationary size: slow units would take long to reach it
    return theory, simulate(
        spec_for(cell),
        width=96,
        steps=8,
        warmup=12,
        networks=8,
        tangents=4,
        initial_variance=second.number(),
        generator=seeded(),
    )


def population_is_finite_network(cell: Cell) -> None:
    theory, found = _theory_and_networks(cell)
    exact, measured = theory.fixed_point.second_moment, found.second_moment
    assert (measured.value.mean() - exact.value).abs() <= 5 * (measured.stderr.mean() + exact.stderr)


def chi_is_finite_networks(cell: Cell) -> None:
    theory, found = _theory_and_networks(cell)
    assert theory.chi_1.number() is not None, theory.chi_1.reason()
    assert (found.chi_1.value - theory.chi_1.value).abs() <= 5 * (found.chi_1.stderr + theory.chi_1.stderr)
