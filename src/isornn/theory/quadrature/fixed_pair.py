"""The fixed point of the correlation of two copies in the affine theory, at settled moments."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.theory.quadrature.affine import AffineTheory
from isornn.theory.quadrature.fixed_point import PROFILE_ROUNDS, UNCHANGED, Settled, needs_shape
from isornn.theory.quadrature.roots import Function, bracketed_root, newton_step

SCAN = 24
ROUNDING = 1e-12
_EPSILON = torch.finfo(torch.float64).eps
_KNOWN_TO = 100  # a width so many times its rounding is known to 1 %


@dataclass(frozen=True)
class SettledPair:
    """The stable fixed point of ``E[s_a s_b]``: per unit, averaged, and as a correlation C.

    ``defined`` is False where all units agree (Q = mu^2) and C is 0/0; ``keeps_any`` is True where every C is left
    unchanged (a linear network without input).
    """

    pair: Tensor
    correlation: Tensor
    defined: Tensor
    residual: Tensor
    keeps_any: Tensor


def room_for_correlation(theory: AffineTheory, settled: Settled) -> tuple[Tensor, Tensor]:
    """``mu^2`` and ``Q - mu^2`` over all units; a width that is rounding only counts as 0."""
    mean, second = theory.over_units(settled.state.mean), theory.over_units(settled.state.second)
    width = second - mean**2
    # a moment is what a step adds over what it loses, so that rounding of a factor near 1 grows by 1 / lost
    kept = theory.expect(theory.A * theory.A, settled.laws, settled.state).detach()
    lost = (1 - theory.over_units(kept)).clamp(min=_EPSILON)
    rounding = (_KNOWN_TO * _EPSILON / lost).clamp(min=1e-13)
    return mean**2, torch.where(width > rounding * second, width, 0.0)


class _PairMap:
    """What ``E[s_a s_b]`` becomes when pre-activations are as correlated as a pair given, and carried states settle.

    The pair that is given is an average over units: a unit has its share of it by second moment, ``spread``, and beyond
    that ``uneven``, which is 0 on average.
    """

    def __init__(self, theory: AffineTheory, settled: Settled) -> None:
        self.theory, self.settled = theory, settled
        self.floor, self.width = room_for_correlation(theory, settled)
        self.divisor = torch.where(settled.second > 0, settled.second, 1.0)
        self.spread = torch.where(settled.second > 0, settled.state.second / self.divisor, 1.0)
        self.uneven = torch.zeros_like(self.spread)

    def of_units(self, pair: Tensor) -> Tensor:
        return self.theory.settled_pair(self.settled.laws, self.settled.state, pair * self.spread + self.uneven)

    def image(self, pair: Tensor) -> Tensor:
        return self.theory.over_units(self.of_units(pair))

    def excess(self, correlation: Tensor) -> Tensor:
        pair = self.floor + self.width * correlation
        return torch.nan_to_num(self.image(pair) - pair, nan=0.0, posinf=0.0)

    def keeps_any(self) -> Tensor:
        kept = self.settled.keeps_any
        if not bool(kept.any()):
            return kept
        return kept & (self.excess(torch.full_like(self.width, 0.5)).abs() <= UNCHANGED * self.width)

    def spread_over_units(self, pair: Tensor, alike: Tensor) -> Tensor:
        """The fixed point next to ``pair``, once each unit's part has settled too; ``alike`` pairs stay as they are."""
        for _ in range(PROFILE_ROUNDS if needs_shape(self.theory) else 0):
            with torch.no_grad():
                found, before = self.of_units(pair), self.uneven
                self.uneven = torch.where(alike, 0.0, found - self.theory.over_units(found) * self.spread)
                pair = torch.where(alike, pair, newton_step(self.image, pair))
            if not bool(((self.uneven - before).abs() > 1e-12 * self.divisor).any()):
                break
        return torch.where(alike, pair, newton_step(self.image, pair))


def settle_pair(theory: AffineTheory, settled: Settled, stable_together: Tensor) -> SettledPair:
    """The stable correlation that two copies reach when they start apart (C = 0).

    Args:
        stable_together: where identical copies stay identical (with identical inputs C = 1 is then the answer).
    """
    pairs = _PairMap(theory, settled)
    floor, width = pairs.floor, pairs.width
    defined = width > 0
    identical = theory.input_correlation.expand_as(width) == 1
    together = (identical & stable_together) | ~defined
    with torch.no_grad():
        keeps_any = pairs.keeps_any()
        correlation = torch.ones_like(width)
        if not bool(together.all()):
            correlation = torch.where(together, 1.0, _first_root(pairs.excess, identical))
    alike = correlation == 1
    pair, per_unit = floor + width * correlation, settled.state.second
    if not bool(together.all()):
        pair = pairs.spread_over_units(pair, alike)
        per_unit = torch.where(alike, per_unit, pairs.of_units(pair))
    after = theory.over_units(theory.pair_step(settled.laws, settled.state, per_unit, theory.input_correlation))
    residual = (after - pair).abs() / pairs.divisor
    correlation = torch.where(correlation < 1, (pair - floor) / torch.where(defined, width, 1.0), 1.0)
    return SettledPair(per_unit, correlation, defined, residual.detach(), keeps_any)


def _first_root(excess: Function, identical: Tensor) -> Tensor:
    """Follow the map from C = 0 in the direction it moves, to the first correlation it leaves unchanged."""
    low = torch.zeros_like(identical, dtype=torch.float64)
    at_low = at_start = excess(low)
    # with identical inputs C = 1 is a fixed point too, an unstable one: stop short of it
    end = torch.where(at_start >= 0, torch.where(identical, 1 - 1e-9, 1.0), -1.0)
    high, at_high = low, at_low
    found = at_start == 0
    for step in range(1, SCAN + 1):
        if bool(found.all()):
            break
        x = end * (step / SCAN)
        value = excess(x)
        if step == SCAN:
            # just below an unstable fixed point the map leads away from it, whatever rounding says
            value = torch.where(identical & (end > 0), value.clamp(max=-ROUNDING), value)
        crosses = ~found & (value * at_start <= 0)
        high, at_high = torch.where(found, high, x), torch.where(found, at_high, value)
        found = found | crosses
        low, at_low = torch.where(found, low, x), torch.where(found, at_low, value)
    return bracketed_root(excess, low, high, at_low, at_high)
