"""States that are kept in part by no gate, but a leak."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from isornn import Input, critical, init, isometric, nn
from isornn.cells import Cell, Reads, SpecError, Values, Vanilla
from isornn.theory.critical_points.rule import rectifies

LEAK, LENGTH = 0.1, 100


@dataclass(frozen=True)
class LeakyTanh(Cell):
    """The leaky integrator of echo state networks."""

    name = "leaky_tanh"
    gates = {"h": Reads()}

    leak: float = LEAK

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": (1 - self.leak) * s.h + self.leak * torch.tanh(u.h)}


@dataclass(frozen=True)
class LeakyReLU(Cell):
    """The same with a ReLU."""

    name = "leaky_relu_integrator"
    gates = {"h": Reads()}

    leak: float = LEAK
    gain: float = LEAK

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": (1 - self.leak) * s.h + self.gain * torch.relu(u.h)}


@dataclass(frozen=True)
class RateNetwork(Cell):
    """Sompolinsky, Crisanti & Sommers 1988, by Euler's steps: the matrix reads rates."""

    name = "rate_network"
    states = ("v",)
    gates = {"r": Reads()}

    def read(self, gate: str, s: Values, u: Values) -> Any:
        return torch.tanh(s.v)

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"v": (1 - LEAK) * s.v + LEAK * u.r}


@dataclass(frozen=True)
class Oscillators(Cell):
    """coRNN (Rusch & Mishra 2021) in its explicit form: two states, no gate."""

    name = "oscillators"
    states = ("y", "z")
    gates = {"a": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        z = s.z + LEAK * (torch.tanh(u.a) - s.y - s.z)
        return {"y": s.y + LEAK * z, "z": z}


@pytest.mark.parametrize("cell", [LeakyTanh(), RateNetwork(), Oscillators()], ids=lambda cell: cell.name)
def test_a_leak_without_a_gate_is_refused(cell: Cell) -> None:
    state = cell.states[0]
    with pytest.raises(SpecError, match=rf"cell: '{cell.name}' .*part of {state} is kept .*leak of 1/\(2T\)"):
        critical(cell, LENGTH)
    layer = nn.RNN(cell, 3, 8)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    with pytest.raises(SpecError, match="unstable"):
        init.critical_(layer, LENGTH, input=Input())
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())


def test_an_isometric_start_warns_of_conditions_that_it_does_not_meet() -> None:
    with pytest.warns(
        UserWarning, match="leaky_tanh at length 20 does not meet squared singular values alike: variance"
    ):
        init.isometric_(nn.RNN(LeakyTanh(), 3, 8), 20)


def test_what_is_refused_would_be_unstable() -> None:
    """Two states that differ by little, in a network with the weights that are isometric if drawn anew at each step."""
    law = isometric(LeakyTanh(), LENGTH).spec.gates["h"]
    assert float(law.weight_var) == pytest.approx((1 - (1 - LEAK) ** 2) / LEAK**2, rel=0.1)
    generator, units = torch.Generator().manual_seed(0), 200
    gaussian = torch.randn(units, units, generator=generator, dtype=torch.float64)
    matrix = torch.linalg.qr(gaussian)[0] * math.sqrt(law.weight_var)
    h = 0.1 * torch.randn(units, generator=generator, dtype=torch.float64)
    other = h + 1e-6 * torch.randn(units, generator=generator, dtype=torch.float64)
    for _ in range(4 * LENGTH):
        h, other = ((1 - LEAK) * s + LEAK * torch.tanh(matrix @ s) for s in (h, other))
    assert float((h - other).norm()) > 1e4 * 1e-6 * math.sqrt(units)


def test_a_leak_of_half_the_inverse_length_has_that_reach() -> None:
    kept = [(1 - 1 / (2 * LENGTH)) ** (2 * k) for k in range(2 * LENGTH)]
    assert next(k for k, share in enumerate(kept) if share <= kept[1] / math.e) - 1 == pytest.approx(LENGTH, abs=1)


def test_a_leaky_rectifier_starts_with_identity_matrices() -> None:
    gate = critical(LeakyReLU(), LENGTH).spec.gates["h"]
    assert gate.ensemble == "identity" and gate.input_var == pytest.approx(1 / LENGTH)
    h = start = torch.rand(50, dtype=torch.float64)
    for _ in range(LENGTH):
        h = (1 - LEAK) * h + LEAK * torch.relu(h)
    torch.testing.assert_close(h, start)


def test_only_states_that_an_identity_matrix_carries_on_are_started_by_one() -> None:
    assert rectifies(LeakyReLU()) and rectifies(Vanilla("relu"))
    assert not rectifies(LeakyReLU(LEAK, 2 * LEAK)) and not rectifies(LeakyReLU(1.0, 2.0))
