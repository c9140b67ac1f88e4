"""Functions that are steep, far from 0, or grow: against integrals by brute force."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from isornn.cells import Cell, Gate, Reads, Spec, Values
from isornn.cells.catalogue import CELLS, cell_named
from isornn.cells.polynomial import GateFunction
from isornn.cells.structure import NotPolynomial
from isornn.theory import analyze
from isornn.theory.critical_points.costs import GateStatistics
from isornn.theory.quadrature.affine import AffineTheory, quadrature_refusal
from isornn.theory.quadrature.gate_law import GateLaw
from isornn.theory.quadrature.grid import Smoothness
from isornn.theory.quadrature.smoothness import smoothness_of
from isornn.theory.quantity import Quantity

Z = np.linspace(-38, 38, 400_001)
WEIGHT = np.exp(-Z * Z / 2) / np.sqrt(2 * np.pi) * (Z[1] - Z[0])

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid(20 u)": lambda u: torch.sigmoid(20 * u),
    "tanh(50 u)": lambda u: torch.tanh(50 * u),
    "sigmoid(u - 30)": lambda u: torch.sigmoid(u - 30),
    "sigmoid(3 (u - 8))": lambda u: torch.sigmoid(3 * (u - 8)),
    "exp": torch.exp,
    "erf": torch.erf,
    "gelu": functional.gelu,
    "softplus": functional.softplus,
    "sin(5 u)": lambda u: torch.sin(5 * u),
    "narrow": lambda u: torch.exp(-25 * u * u),
    "cube": lambda u: u**3,
}


def law_of(mean: float, std: float, smoothness: Smoothness) -> GateLaw:
    mu, variance = (torch.tensor([x], dtype=torch.float64) for x in (mean, std**2))
    return GateLaw(mu, variance, smoothness)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_powers_and_slopes(name: str) -> None:
    function = GateFunction("f", FUNCTIONS[name])
    smoothness = smoothness_of([function])
    for mean in (0.0, 1.5, -4.0, 20.0):
        for std in (0.05, 0.7, 2.0, 6.0):
            law = law_of(mean, std, smoothness)
            u = torch.from_numpy(mean + std * Z)
            value, slope = function.call(u).numpy(), function.derivative.call(u).detach().numpy()
            wanted = [(2, (function,) * 2, value), (4, (function,) * 4, value), (2, (function.derivative,) * 2, slope)]
            for power, factors, values in wanted:
                with np.errstate(over="ignore", invalid="ignore"):
                    expected = float((values**power * WEIGHT).sum())
                if expected < 1e100:
                    assert float(law.expectation(factors)) == pytest.approx(expected, rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("name", ["sigmoid(20 u)", "sigmoid(3 (u - 8))", "erf", "narrow"])
@pytest.mark.parametrize("correlation", [0.3, 0.9, -0.5])
def test_pairs(name: str, correlation: float) -> None:
    function, z = GateFunction("f", FUNCTIONS[name]), torch.linspace(-9, 9, 2401, dtype=torch.float64)
    weight = torch.exp(-(z**2) / 2)
    weight /= weight.sum()
    smoothness = smoothness_of([function])
    for mean, std in ((0.0, 0.7), (1.5, 2.0), (4.0, 6.0)):
        law = law_of(mean, std, smoothness)
        found = float(law.pair_expectation((function,), (function,), torch.tensor([correlation], dtype=torch.float64)))
        other = correlation * z[:, None] + (1 - correlation**2) ** 0.5 * z
        expected = (function.call(mean + std * z) * (function.call(mean + std * other) @ weight)) @ weight
        assert found == pytest.approx(float(expected), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("name", CELLS)
def test_cells_of_the_papers_need_no_finer_grid(name: str) -> None:
    if quadrature_refusal(Spec(cell_named(name))) is None:
        assert {one.scale for one in AffineTheory(Spec(cell_named(name))).smoothness.values()} == {1.0}


@dataclass(frozen=True)
class Steep(Cell):
    """A state kept by a steep gate."""

    name = "steep"
    gates = {"f": Reads(), "n": Reads()}
    slope: float = 20.0

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = torch.sigmoid(self.slope * u.f)
        return {"h": f * s.h + (1 - f) * torch.tanh(u.n)}


def test_a_steep_gate() -> None:
    found = analyze(Spec(Steep(), {"f": Gate(1.0, 4.0), "n": Gate(2.0, 0.5)}))
    q = 0.0
    for _ in range(2000):
        f = 1 / (1 + np.exp(-np.clip(20 * np.sqrt(q + 4.0) * Z, -700, 700)))
        n = np.tanh(np.sqrt(2 * q + 0.5) * Z)
        q = (f**2 * WEIGHT).sum() * q + ((1 - f) ** 2 * WEIGHT).sum() * (n**2 * WEIGHT).sum()
    assert found.engine == "quadrature"
    assert found.fixed_point.second_moment.number() == pytest.approx(q, rel=1e-9)


def test_a_function_that_is_not_a_number_somewhere_is_refused() -> None:
    with pytest.raises(NotPolynomial, match="u_f changes too fast"):
        smoothness_of([GateFunction("f", torch.log)])


def test_what_no_grid_resolves_is_sampled() -> None:
    cell = Steep(1e5)
    assert "u_f changes too fast" in str(quadrature_refusal(Spec(cell)))
    with pytest.raises(NotPolynomial, match="u_f changes too fast"):
        analyze(Spec(cell), engine="quadrature")
    assert analyze(Spec(cell, {"f": Gate(1.0, 4.0), "n": Gate(2.0, 0.5)})).engine == "population"


def test_costs_of_what_no_grid_resolves_say_so() -> None:
    gates = GateStatistics.of(Spec(Steep(1e5), {"f": Gate(1.0, 4.0), "n": Gate(1.0, 1.0)}, biases="fixed"), 50.0)
    second = Quantity.of(torch.tensor(0.2, dtype=torch.float64))
    for found in (gates.time_scales(second), gates.saturation(second)):
        assert "u_f changes too fast" in str(found.reason())
