"""States that enter each other's updates affinely: their closed law against recursions of moments, and LRUs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss
from scipy.optimize import brentq

from isornn.cells import Cell, Gate, Input, Reads, Spec, Values
from isornn.cells.linear import LRU
from isornn.theory import analyze
from isornn.theory.population.jacobian import StateStructure

COS, SIN = 0.8, 0.6


class Turning(Cell):
    """A plane that turns, and that one gate forgets."""

    name = "turning"
    states = ("a", "b")
    gates = {"f": Reads(state=False), "p": Reads(state=False), "q": Reads(state=False)}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        kept = torch.sigmoid(u.f)
        return {
            "a": kept * (COS * s.a - SIN * s.b) + (1 - kept) * torch.tanh(u.p),
            "b": kept * (SIN * s.a + COS * s.b) + torch.tanh(u.q),
        }


class Shifting(Cell):
    """Two leaks in a row, the second of which holds what the first did: not a rotation, and no pure exponential."""

    name = "shifting"
    states = ("late", "early")
    gates = {"z": Reads(state=False)}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"late": 0.9 * s.late + 0.5 * s.early, "early": 0.8 * s.early + u.z}


def both(correlation: float, functions: Any, mean: float = 0.0, std: float = 1.0) -> np.ndarray:
    """``E f(u_a) g(u_b)`` for all f and g of two pre-activations with this correlation."""
    x, w = hermegauss(60)
    w = w / w.sum()
    other = correlation * x[:, None] + math.sqrt(1 - correlation**2) * x
    first, second = (
        [f(mean + std * place) for f in functions] for place in (np.broadcast_to(x[:, None], (60, 60)), other)
    )
    return np.array([[w @ (f * g) @ w for g in second] for f in first])


def turned(correlation: float, bias: float) -> np.ndarray:
    """``E s_a s_b^T`` of Turning by its recursion, with means of the gates by Gauss-Hermite quadrature."""

    def sigma(u: Any) -> Any:
        return 1 / (1 + np.exp(-u))

    gate = both(correlation, [sigma, lambda u: 1 - sigma(u)], mean=bias)
    new = both(correlation, [np.tanh])[0, 0]
    turn, s = np.array([[COS, -SIN], [SIN, COS]]), np.zeros((2, 2))
    for _ in range(200_000):
        s, last = gate[0, 0] * turn @ s @ turn.T + np.diag([gate[1, 1] * new, new]), s
        if np.abs(s - last).max() <= 1e-13 * s.max():
            return s
    raise AssertionError


@pytest.mark.parametrize("bias", [0.0, 4.0, 8.0])
@pytest.mark.parametrize("correlation", [1.0, 0.6])
def test_a_plane_that_turns_has_the_moments_of_its_recursion(correlation: float, bias: float) -> None:
    gates = {"f": Gate(input_var=1.0, bias_mean=bias), "p": Gate(input_var=1.0), "q": Gate(input_var=1.0)}
    found = analyze(Spec(Turning(), gates, Input(correlation=correlation))).fixed_point
    alone, pair = turned(1.0, bias)[0, 0], turned(correlation, bias)[0, 0]
    assert found.second_moment.number() == pytest.approx(alone, abs=4 * found.second_moment.error() + 1e-6 * alone)
    assert found.correlation.number() == pytest.approx(pair / alone, abs=4 * found.correlation.error() + 1e-6)
    assert found.second_moment.error() < 0.005 * alone


def test_leaks_in_a_row_have_the_moments_of_their_recursion() -> None:
    found = analyze(Spec(Shifting(), {"z": Gate(input_var=1.0, bias_mean=1.0)})).fixed_point
    a = np.array([[0.9, 0.5], [0.0, 0.8]])
    mean = np.linalg.solve(np.eye(2) - a, [0.0, 1.0])
    spread = np.zeros((2, 2))
    for _ in range(1000):
        spread = a @ spread @ a.T + np.diag([0.0, 1.0])
    assert found.mean.number() == pytest.approx(mean[0], rel=1e-6)
    assert found.second_moment.number() == pytest.approx(mean[0] ** 2 + spread[0, 0], rel=1e-6)


def test_which_states_have_a_joint_law() -> None:
    """A chain belongs together; a state that is closed by itself, or enters a curved function, does not."""

    class Curved(Shifting):
        name = "curved"

        def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
            return {"late": 0.9 * s.late + torch.tanh(s.early), "early": 0.8 * s.early + u.z}

    class Apart(Shifting):
        name = "apart"

        def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
            return {"late": 0.9 * s.late + u.z, "early": 0.8 * s.early + u.z}

    found = {kind: StateStructure.of(kind()) for kind in (Turning, Shifting, Curved, Apart)}
    assert {kind.__name__: (s.slow, s.joint) for kind, s in found.items()} == {
        "Turning": ((), ("a", "b")),
        "Shifting": ((), ("late", "early")),
        "Curved": (("early",), ()),
        "Apart": (("late", "early"), ()),
    }


def test_moments_that_overflow_are_no_fixed_point() -> None:
    class Huge(Shifting):
        name = "huge"

        def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
            return {"late": 0.9 * s.late + 0.5 * s.early, "early": 0.8 * s.early + torch.exp(u.z)}

    found = analyze(Spec(Huge(), {"z": Gate(input_var=1.0, bias_mean=400.0)})).fixed_point
    assert not found.converged
    assert found.residual == 1  # not 0, though states stay where they are held
    assert "grows without bound" in str(found.second_moment)


def lru(low: float, high: float, **input: float) -> Spec:
    half = Gate(input_var=0.5)
    return Spec(LRU(low, high), {"re": half, "im": half}, Input(**input), biases="fixed")


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.99), (0.9, 0.999), (0.999, 0.9999), (0.9999, 0.99999)])
def test_an_lru_reaches_as_far_as_its_moduli_say(low: float, high: float) -> None:
    """The last two are settings for sequences of thousands of steps. |lambda|^2 is uniform, so that the response at lag
    t is the mean of its t-th power; it is 1/2 E |B u|^2 of the stationary state."""
    found = analyze(lru(low, high), length=100)

    def response(lag: float) -> float:
        return float((high ** (2 * lag + 2) - low ** (2 * lag + 2)) / ((lag + 1) * (high**2 - low**2)))

    exact = brentq(lambda steps: response(1 + steps) - response(1) / math.e, 0, 1e8)
    assert found.reach.number() == pytest.approx(exact, abs=4 * found.reach.error())
    assert found.reach.error() < 0.01 * exact
    assert found.fixed_point.second_moment.number() == pytest.approx(0.5, rel=1e-7)


def test_the_pair_of_an_lru_is_as_correlated_as_its_inputs() -> None:
    found = analyze(lru(0.99, 0.999, correlation=0.6)).fixed_point
    assert found.correlation.number() == pytest.approx(0.6, abs=1e-6)


def test_units_that_hardly_forget_have_their_moments_all_the_same() -> None:
    found = analyze(lru(0.9999998, 0.9999999))
    assert found.fixed_point.second_moment.number() == pytest.approx(0.5, rel=1e-6)
    assert found.reach.number() is None and "within the steps followed" in str(found.reach)


@pytest.mark.parametrize("high", [0.9999, 0.9999999])
def test_units_of_no_known_law_that_hardly_forget_are_not_said_to_have_settled(high: float) -> None:
    """Inputs that are correlated over time leave the law unknown, and steps too few for it to form show no change."""
    found = analyze(lru(high - (1 - high), high, autocorrelation=0.5))
    assert not found.fixed_point.converged
    assert found.fixed_point.second_moment.number() is None
