"""Cells of one's own that are unlike those of the catalogue, against networks and quadrature by brute force."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from isornn.cells import Cell, CellError, Gate, Input, Reads, Spec, Values, Vanilla, cell_named
from isornn.simulation import simulate
from isornn.theory import analyze, moment_dynamics
from isornn.theory.reasons import FROZEN, KEEPS_START, TOO_SOON

U = np.linspace(-12, 12, 200_001)
WEIGHTS = np.exp(-U * U / 2) / np.exp(-U * U / 2).sum()


class Scaled(Cell):
    """Gates read half of the state."""

    name = "scaled"
    gates = {"f": Reads(), "n": Reads()}

    def read(self, gate: str, s: Values, u: Values) -> Any:
        return 0.5 * s.h

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = torch.sigmoid(u.f)
        return {"h": f * s.h + (1 - f) * torch.tanh(u.n)}


class Sign(Cell):
    name = "sign"
    gates = {"n": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.sign(u.n)}


class Folded(Cell):
    name = "folded"
    gates = {"n": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.tanh(u.n) * (0.5 + 4 * torch.sigmoid(u.n * u.n - 6))}


class Drifting(Cell):
    """A slow state, curved in itself, beside a fast one that is read."""

    name = "slowly"
    states = ("h", "c")
    gates = {"m": Reads(), "n": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        c = s.c + 2e-4 * (1 + torch.tanh(u.n) - s.c**3)
        return {"h": 0.5 * s.h + torch.tanh(u.m) + 0.1 * c, "c": c}


def first_second_moment(function: Callable[[Any], Any], weight_var: float, input_var: float, bias: float) -> float:
    """Q to which Q' = E f(u)^2 comes from 0."""
    q = 0.0
    for _ in range(20_000):
        last, q = q, float(WEIGHTS @ function(bias + np.sqrt(weight_var * q + input_var) * U) ** 2)
        if abs(q - last) < 1e-12:
            return q
    raise AssertionError


@torch.no_grad()
def test_the_jacobian_of_gates_that_read_a_part_of_the_state() -> None:
    gates = {"f": Gate(1.0, 0.3), "n": Gate(8.0, 0.3)}
    found = analyze(Spec(Scaled(), gates))
    generator, moments, size = torch.Generator().manual_seed(0), [], 1000
    for _ in range(4):
        h = torch.randn(size, generator=generator)
        for _ in range(20):
            w = {
                k: torch.randn(size, size, generator=generator) * (g.weight_var / size) ** 0.5 for k, g in gates.items()
            }
            u = {k: w[k] @ (0.5 * h) + torch.randn(size, generator=generator) * 0.3**0.5 for k in gates}
            f, n = torch.sigmoid(u["f"]), torch.tanh(u["n"])
            jacobian = torch.diag(f) + 0.5 * (f * (1 - f) * (h - n))[:, None] * w["f"]
            jacobian += 0.5 * ((1 - f) * (1 - n * n))[:, None] * w["n"]
            h = f * h + (1 - f) * n
        values = torch.linalg.svdvals(jacobian.double()).square()
        moments.append((float(values.mean()), float(values.square().mean())))
    m1, m2 = np.mean(moments, 0)
    assert found.jacobian.mean.number() == pytest.approx(m1, rel=0.03)
    assert found.jacobian.second_moment.number() == pytest.approx(m2, rel=0.06)
    assert found.jacobian.mean.number() == pytest.approx(found.chi_1.number(), rel=1e-9)  # lemma 1


def test_where_a_function_jumps_identical_sequences_part() -> None:
    """C' = (2/pi) arcsin((1 + C)/2), whose slope at C = 1 is infinite."""
    apart = brentq(lambda c: 2 / np.pi * np.arcsin((1 + c) / 2) - c, 0, 0.9)
    found = analyze(Spec(Sign(), {"n": Gate(1.0, 1.0)}, Input(correlation=1.0))).fixed_point.correlation
    assert found.number() == pytest.approx(apart, abs=4 * found.error())


@pytest.mark.parametrize(
    ("weight_var", "input_var", "bias"),
    [(3.0, 1.44, -1.0), (3.0, 0.36, -0.5), (3.0, 5.76, -2.0), (4.0, 0.22, -0.5), (4.0, 0.88, -1.0), (4.0, 3.52, -2.0)],
)
def test_the_lower_of_two_fixed_points_close_to_each_other(weight_var: float, input_var: float, bias: float) -> None:
    exact = first_second_moment(lambda u: np.maximum(u, 0), weight_var, input_var, bias)
    found = analyze(Spec(Vanilla("relu"), {"h": Gate(weight_var, input_var, bias_mean=bias)})).fixed_point
    assert found.second_moment.number() == pytest.approx(exact, rel=1e-6)


def test_the_lowest_of_three_fixed_points() -> None:
    exact = first_second_moment(lambda u: np.tanh(u) * (0.5 + 4 / (1 + np.exp(6 - u * u))), 1.2, 0.55, 0.0)
    found = analyze(Spec(Folded(), {"n": Gate(1.2, 0.55)})).fixed_point.second_moment
    assert found.number() == pytest.approx(exact, rel=5e-3)


def test_a_slow_state_beside_the_one_that_is_read_is_waited_for() -> None:
    found = analyze(Spec(Drifting(), {"m": Gate(0.2, 1.0), "n": Gate(0.1, 1.0)})).fixed_point
    assert found.mean.reason() == TOO_SOON


def test_no_state_may_have_the_inputs_name() -> None:
    class Named(Sign):
        states = ("x",)

    with pytest.raises(CellError, match="sign.states: 'x' is not allowed; it is the name of the input"):
        analyze(Spec(Named(), {"n": Gate(1.0)}))


@pytest.mark.parametrize(("name", "gate"), [("gru", "z"), ("lstm", "f"), ("gru_cho", "z")])
def test_a_saturated_remember_gate_is_said_to_be_that(name: str, gate: str) -> None:
    cell = cell_named(name)
    gates = {
        k: Gate(float(reads.state), float(reads.input), bias_mean=40.0 * (k == gate)) for k, reads in cell.gates.items()
    }
    found = analyze(Spec(cell, gates))
    assert found.fixed_point.second_moment.reason() == FROZEN
    assert not bool(found.fixed_point.converged)


@dataclass(frozen=True)
class Alternating(Cell):
    """Its second moment swings for ever between two values."""

    name = "alternating"
    gates = {gate: Reads() for gate in "abcde"}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": 3 * math.prod(torch.exp(-getattr(u, gate).square()) for gate in "abcde")}


class AlternatingByState(Alternating):
    """As well, with what no quadrature covers."""

    name = "alternating_by_state"

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": super().update(s, u, x)["h"] + 0.1 * torch.tanh(0.1 * s.h)}


def test_a_population_whose_moments_alternate_is_not_settled() -> None:
    spec = Spec(AlternatingByState(), {gate: Gate(3.0, 0.1) for gate in "abcde"})
    answer = analyze(spec)
    assert answer.engine == "population" and not bool(answer.fixed_point.converged)
    assert answer.chi.number() is None and "did not settle" in answer.chi.reason()


def test_moments_that_alternate_are_not_settled() -> None:
    spec = Spec(Alternating(), {gate: Gate(3.0, 0.1) for gate in "abcde"})
    answer = analyze(spec)
    assert not bool(answer.fixed_point.converged)
    assert answer.chi.number() is None and "alternate" in answer.chi.reason()
    late = moment_dynamics(spec, 40).second_moment[-4:].tolist()
    assert late[0] == pytest.approx(late[2], rel=0.01) and abs(late[0] - late[1]) > 1


@dataclass(frozen=True)
class Sticking(Cell):
    """Units stay where they are: copies that begin apart never meet."""

    name = "sticking"
    gates = {"n": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.tanh(2 * s.h + u.n)}


def test_units_that_stick_depend_on_their_start() -> None:
    """Copies that begin apart never meet, and copies that begin together stay so."""
    spec = Spec(Sticking(), {"n": Gate(0.02, 0.02)}, Input(1.0, 0.9))
    found = []
    for size in (0.01, 1.0):
        generator = torch.Generator().manual_seed(0)
        run = simulate(spec, width=400, steps=20, networks=3, warmup=300, initial_variance=size, generator=generator)
        found.append(float(run.correlation.value[-1]))
    assert found[0] > found[1] + 0.2
    answer = analyze(spec)
    assert answer.fixed_point.correlation.reason() == answer.chi.reason() == KEEPS_START


@dataclass(frozen=True)
class Growing(Cell):
    """Has no gate that could be saturated."""

    name = "growing"
    gates = {"n": Reads()}
    factor: float = -1.2

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": self.factor * s.h + torch.tanh(u.n)}


@pytest.mark.parametrize("factor", [-1.2, -1.0, 1.0, 1.5])
def test_a_state_that_grows_is_not_said_to_stay_what_it_was(factor: float) -> None:
    reach = analyze(Spec(Growing(factor), {"n": Gate(0.5, 1.0)})).reach
    assert reach.number() is None and "grows without bound" in reach.reason()
