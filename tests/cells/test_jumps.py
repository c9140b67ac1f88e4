"""Jumps are found, steep and kinked functions are not taken for them, and the theory does not linearise them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from isornn.cells import Cell, Gate, Reads, Spec, Values
from isornn.cells.jumps import jumping
from isornn.theory import analyze


@dataclass(frozen=True)
class Through(Cell):
    """h = f h + function(u_h)."""

    function: Callable[[Tensor], Tensor] = torch.tanh

    name = "through"
    gates = {"f": Reads(), "h": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.sigmoid(u.f) * s.h + self.function(u.h)}


CONTINUOUS: dict[str, Callable[[Tensor], Tensor]] = {
    "steep": lambda u: torch.sigmoid(1e7 * u),
    "root": lambda u: u.abs().sqrt(),
    "symlog": lambda u: torch.sign(u) * torch.log1p(u.abs()),
    "relu": lambda u: u * (u > 0),
    "hard": lambda u: (0.2 * u + 0.5).clamp(0, 1),
}
JUMPING: dict[str, Callable[[Tensor], Tensor]] = {
    "sign": torch.sign,
    "rounded": lambda u: torch.round(4 * torch.tanh(u)) / 4,
    "where": lambda u: torch.where(u > 1.234, u, 0.0),
    "step": lambda u: 1.0 * (u > -3),
    "pole": lambda u: 1 / u,
    "beside what is undefined": lambda u: torch.sign(u) + 1e-3 * torch.log(u + 3),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_functions_do_not_jump(name: str) -> None:
    assert jumping(Through(CONTINUOUS[name])) == ()


@pytest.mark.parametrize("name", JUMPING)
def test_jumps_are_found_along_their_variable(name: str) -> None:
    assert jumping(Through(JUMPING[name])) == ("h",)


def test_a_jump_in_what_a_gate_reads_is_found() -> None:
    class Read(Through):
        def read(self, gate: str, s: Values, u: Values) -> Any:
            return torch.sign(s.h) if gate == "h" else s.h

    assert jumping(Read()) == ("h",)


def test_networks_of_signs_magnify_what_derivatives_call_nothing() -> None:
    width, generator = 2000, torch.Generator().manual_seed(0)
    weights = torch.randn(width, width, generator=generator) / width**0.5
    a = torch.randn(width, generator=generator).sign()
    b = a.clone()
    b[:2] *= -1
    for _ in range(10):
        a, b = torch.sign(weights @ a), torch.sign(weights @ b)
    assert float((a != b).float().mean()) > 0.05  # of units, after 0.001
    answer = analyze(Spec(Through(torch.sign), {"f": Gate(bias_mean=-9.0), "h": Gate(1.0, 0.5)}))
    for number in (answer.chi, answer.chi_1, answer.xi, answer.reach):
        assert number.number() is None and "the update jumps in h" in number.reason()
    assert answer.jacobian.mean.number() is not None  # of gradients, which derivatives are


class Normalised(Cell):
    """xLSTM's sLSTM without its exponentials: c over a normaliser n, which is positive after the first step."""

    name = "normalised"
    states = ("h", "c", "n")
    gates = {"i": Reads(), "f": Reads(), "z": Reads(), "o": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        i, f = torch.sigmoid(u.i), torch.sigmoid(u.f)
        c, n = f * s.c + i * torch.tanh(u.z), f * s.n + i
        return {"h": torch.sigmoid(u.o) * c / (n + 1e-6), "c": c, "n": n}


class Spiking(Cell):
    """A leaky integrator that is reset where it comes to 1."""

    name = "spiking"
    gates = {"u": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.where(s.h > 1, 0.0, 0.9 * s.h) + u.u}


def test_a_pole_beyond_the_states_that_there_are_is_no_jump() -> None:
    assert jumping(Normalised()) == ()
    assert jumping(Spiking()) == ("h",)
