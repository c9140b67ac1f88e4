"""Moments of a slow state's line by groups of gates: against all gates together, and against a GRU without weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from isornn.cells import GRU, LSTM, Cell, Gate, Input, Reads, Spec, Values, cell_named
from isornn.theory import analyze
from isornn.theory.population.line import Line


class Mixed(Cell):
    """Two groups of gates, one of which holds the input, and a gate in several terms."""

    name = "mixed"
    states = ("h",)
    gates = {name: Reads(state=False) for name in ("z", "p", "q", "w")}
    input_enters_pointwise = True

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        keep, new = torch.sigmoid(u.z), torch.sin(u.p + u.q * u.p)
        return {"h": keep * s.h * new**2 + (1 - keep) * new + 0.5 * torch.tanh(u.w * x) + u.w - 0.25 * s.h}


def direct(cell: Cell, state: str, u: dict[str, Tensor], x: Tensor) -> list[Tensor]:
    """Over the whole product of the draws, which are ``(copies, draws)`` on an axis each of all gates."""
    others = {name: torch.zeros(()) for name in cell.states if name != state}
    new = [cell.update(Values(**{**others, state: torch.tensor(end)}), Values(**u), x)[state] for end in (0.0, 1.0)]
    b, a = torch.broadcast_tensors(new[0], new[1] - new[0])
    one = [a, b, b * b, a * b, a * a]
    two = [a[0] * a[-1], (a[0] * b[-1] + a[-1] * b[0]) / 2, b[0] * b[-1]]
    return [value.mean() for value in (*one, *two)]


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize(
    ("cell", "state", "groups"),
    [
        (GRU(), "h", (("r", "nx", "nh"), ("z",))),
        (LSTM(), "c", (("i",), ("f",), ("g",))),
        (cell_named("gru_cho"), "h", (("z",), ("n",))),
        (Mixed(), "h", (("z",), ("p", "q"), ("w", ""))),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_means_over_groups_are_those_over_all(cell: Cell, state: str, groups: Any, copies: int) -> None:
    line = Line.of(cell, state)
    assert line.groups == groups
    generator, drawn = torch.Generator().manual_seed(0), {}
    for place, group in enumerate(groups):
        for name in group:
            shape = [1] * len(groups)
            shape[place] = 7
            one = torch.randn(7, dtype=torch.float64, generator=generator)
            # the copies have one law, and their pair another
            drawn[name] = torch.stack([one, one.roll(1)][:copies]).reshape(copies, *shape)
    x = drawn.pop("", torch.zeros(copies, *(1,) * len(groups), dtype=torch.float64))

    def mean(value: Tensor) -> Tensor:
        return value.mean(tuple(range(1, value.dim())))

    found = line.moments([line.means_over(group, Values(**drawn), x, mean) for group in groups])
    missing = {gate: torch.zeros(()) for gate in cell.gates if gate not in drawn}
    torch.testing.assert_close(torch.stack(found), torch.stack(direct(cell, state, drawn | missing, x)))


def test_what_is_kept_has_the_groups_of_that_alone() -> None:
    kept = Line.of(GRU(), "h").kept()
    assert kept.groups == (("z",),)
    u = Values(z=torch.tensor([[0.5]], dtype=torch.float64))
    a, b, *_ = kept.moments([kept.means_over(("z",), u, None, lambda value: value.mean(-1))])
    assert float(a) == pytest.approx(1 / (1 + np.exp(-0.5))) and float(b) == 0


@pytest.mark.parametrize("correlation", [1.0, 0.6])
def test_a_gru_that_reads_inputs_only_has_its_moments_in_closed_form(correlation: float) -> None:
    # h = z h + (1 - z) n with n = tanh(u_nx + r b) and independent z, n: E h^2 (1 - E z^2) = E(1-z)^2 E n^2 by E n = 0.
    gates = {"r": Gate(0, 1.0), "z": Gate(0, 1.5, bias_mean=1.0), "nx": Gate(0, 2.0), "nh": Gate(0)}
    found = analyze(Spec(GRU(), gates, Input(correlation=correlation))).fixed_point
    x, w = np.polynomial.hermite_e.hermegauss(60)
    w = w / w.sum()
    other = correlation * x[:, None] + np.sqrt(1 - correlation**2) * x

    def across(function: Any, std: float, mean: float = 0.0) -> float:
        return float(w @ (function(mean + std * x)[:, None] * function(mean + std * other)) @ w)

    def sigma(u: Any) -> Any:
        return 1 / (1 + np.exp(-u))

    z, keep = 1.5**0.5, float(w @ sigma(1 + 1.5**0.5 * x))
    second = float(w @ (1 - sigma(1 + z * x)) ** 2) * float(w @ np.tanh(2**0.5 * x) ** 2)
    second /= 1 - float(w @ sigma(1 + z * x) ** 2)
    both = across(sigma, z, 1.0)
    pair = (1 - 2 * keep + both) * across(np.tanh, 2**0.5) / (1 - both)
    assert found.second_moment.number() == pytest.approx(second, abs=4 * found.second_moment.error() + 1e-6)
    assert found.correlation.number() == pytest.approx(pair / second, abs=4 * found.correlation.error() + 1e-6)
    assert found.second_moment.error() < 0.003 * second
