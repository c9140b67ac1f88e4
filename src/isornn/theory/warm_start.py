"""Slow states started from the stationary moments that the present gate law gives them, in closed form."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from isornn.cells import Values
from isornn.theory.units import Draws, Field, Laws, Units, bounded, correlated, draw_gates, variates

_WARM_DRAWS = 32


def redrawn_state(laws: Laws, draws: Draws, units: Units, held: Field, name: str) -> Units:
    """``name`` drawn afresh as Gaussian pairs with the stationary moments of ``s' = A s + B``.

    mean = E B / (1 - E A), E s^2 = (E B^2 + 2 E[AB] mean) / (1 - E A^2), and likewise for the pair; given the
    unit where it keeps its bias, else pooled. A unit whose E A^2 is 1 keeps its state.
    """
    a, b, b2, ab, a2, pair_a2, pair_ab, pair_b2 = _line_moments(laws, draws, units, held, name)
    mean = b / (1 - a)
    variance = (b2 + 2 * ab * mean) / (1 - a2) - mean.square()
    pair = (pair_b2 + 2 * pair_ab * mean) / (1 - pair_a2) - mean.square()
    known = (1 - a2 > 1e-14) & (variance >= 0) & variance.isfinite() & mean.isfinite()
    variance, mean = torch.where(known, variance, 0.0), torch.where(known, mean, 0.0)
    gap = torch.where(variance > 0, 1 - pair / variance.clamp(min=1e-300), 0.0).nan_to_num(0.0)
    normal = torch.special.ndtri(draws.uniform(units.copies))
    normal = normal.gather(-1, draws.order(None).expand(normal.shape))
    drawn = mean + variance.sqrt() * correlated(normal, gap)
    return replace(units, states=bounded({**units.states, name: torch.where(known, drawn, units.states[name])}))


def _line_moments(laws: Laws, draws: Draws, units: Units, held: Field, name: str) -> list[Tensor]:
    """E of A, B, B^2, AB, A^2 and of the pairs A_a A_b, A_a B_b (symmetrised), B_a B_b."""
    total: list[Tensor] = []
    count = variates(laws, units.copies)
    uniforms = _per_unit(count, draws) if units.offsets else [draws.uniform(count)]
    for uniform in uniforms:
        lines = _line(laws, units, held, name, uniform)
        moments = lines if units.offsets else [units.mean(value) for value in lines]
        total = [x + y for x, y in zip(total, moments, strict=True)] if total else moments
    return [value / len(uniforms) for value in total]


def _line(laws: Laws, units: Units, held: Field, name: str, uniform: Tensor) -> list[Tensor]:
    cell, state = laws.cell, units.states[name]
    u, x = draw_gates(laws, units, held, uniform)
    b = cell.update(Values(**{**units.states, name: torch.zeros_like(state)}), u, x)[name]
    a = cell.update(Values(**{**units.states, name: torch.ones_like(state)}), u, x)[name] - b
    own = [value.expand(state.shape).mean(0) for value in (a, b, b * b, a * b, a * a)]
    if units.copies == 1:
        return [*own, own[4], own[3], own[2]]
    return [*own, a[0] * a[1], (a[0] * b[1] + a[1] * b[0]) / 2, b[0] * b[1]]


def _per_unit(count: int, draws: Draws) -> list[Tensor]:
    """Variates evenly spread over the draws that one unit sees, each unit with a shift of its own."""
    shift = torch.rand(count, *draws.shape, dtype=torch.float64, generator=draws.generator)
    points = torch.quasirandom.SobolEngine(count).draw(_WARM_DRAWS, dtype=torch.float64)
    return [((shift + point.reshape(-1, 1, 1, 1)) % 1.0).clamp(1e-15, 1 - 1e-15) for point in points]
