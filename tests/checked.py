"""Specs whose figures were checked against simulated networks, and a user's cell: what several tests share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from scipy.integrate import quad

from isornn.cells import Cell, ChoGRU, Gate, Minimal, Peephole, Reads, Spec, Values
from isornn.simulation import simulate

Row = tuple[float, float, float, float]


def law(**gates: Row) -> dict[str, Gate]:
    """Gates as (weight_var, input_var, bias_var, bias_mean)."""
    return {name: Gate(w, i, bias_var=v, bias_mean=m) for name, (w, i, v, m) in gates.items()}


PEEPHOLE = Spec(Peephole(), law(i=(2, 0.5, 0, 0.5), f=(4, 1, 0.1, 2), g=(3, 0.5, 0, 0)))
CHO = Spec(ChoGRU(), law(z=(3, 1, 0, 1), r=(2, 0.5, 0.1, 0.5), n=(4, 0.5, 0, 0)))
CHEN = (Spec(Minimal(), law(u=(6, 1, 0, 0))), Spec(Minimal(), law(u=(3, 2, 0.5, 1))))


@dataclass(frozen=True)
class MGU(Cell):
    """The minimal gated unit, as Cell's docstring has it."""

    name = "mgu"
    gates = {"f": Reads(), "n": Reads()}

    def read(self, gate: str, s: Values, u: Values) -> Any:
        return torch.sigmoid(u.f) * s.h if gate == "n" else s.h

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = torch.sigmoid(u.f)
        return {"h": (1 - f) * s.h + f * torch.tanh(u.n)}


def squared_singular_values(spec: Spec, width: int, warmup: int, networks: int = 1) -> torch.Tensor:
    """Of the state-to-state Jacobians of simulated networks, rising."""
    run = simulate(
        spec,
        width=width,
        steps=1,
        warmup=warmup,
        networks=networks,
        tangents=1,
        singular_values=True,
        generator=torch.Generator().manual_seed(1),
    )
    assert run.spectrum is not None
    return run.spectrum.singular_values.square().flatten().sort()[0]


def normal_mean(function: Callable[[float], float], mean: float, std: float) -> float:
    """Of ``function`` of a normal variable, by adaptive quadrature."""

    def integrand(z: float) -> float:
        return function(mean + std * z) * math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)

    return float(quad(integrand, -10, 10, epsabs=1e-13, epsrel=1e-12, limit=200)[0])
