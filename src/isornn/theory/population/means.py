"""Means of what a state's new value is made of, given the unit: over its pre-activations, by trapezoid rules."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isornn.theory.population.line import Group, Means, Products
from isornn.theory.population.units import Field, Laws, Units, draw_gates, variates

# Trapezoid rules: range and step in standard deviations, and the step in units of the pre-activation that resolves
# the logistic function and tanh; where pre-activations hardly vary few values do.
RESOLVED = 0.65
STILL = 0.03
_RANGE, _STEP = 7.0, 1.1
_FINEST = 0.1
_FEWEST = 4
PER_UNIT = 256  # values of a rule for each unit
_AT_ONCE = 2**17  # values of a rule for all units at once


def averages(
    laws: Laws, units: Units, held: Field, products: Products, most: int, coarser: float = 1.0
) -> list[Tensor]:
    """Moments of the products at every unit, ``(G, R, n)``, by the few values of a rule for each group: see `Rule.of`.

    Replicates take the two rules in turn, so that standard errors show how large their errors are.
    """
    means: list[Means] = []
    shape = next(iter(units.states.values())).shape[1:]
    together = max(1, _AT_ONCE // shape.numel())
    crowd = replace(units, states={state: value[:, None] for state, value in units.states.items()})
    for group in products.groups:
        rule = Rule.of(laws, held, units.copies, group, most, coarser)
        points, weight = rule.points(variates(laws, units.copies), shape[1])
        total: Means = {}
        for some, shares in zip(points.split(together, 1), weight.split(together), strict=True):
            normal = some[:, :, None, :, None]
            u, x = draw_gates(laws, crowd, held, normal, normal=normal.split(units.copies), wanted=group)
            found = products.means_over(group, u, x, functools.partial(_over_first, shares[:, None, :, None]))
            total = {key: total.get(key, 0.0) + value for key, value in found.items()}
        means.append(total)
    return [value.expand(shape) for value in products.moments(means)]


def _over_first(weight: Tensor, value: Tensor) -> Tensor:
    """From ``(copies, values of a rule, ..)`` to the part of the mean ``(copies, ..)`` that they make."""
    return (value * weight).sum(1)


@dataclass(frozen=True)
class Rule:
    """Two rules for means over the pre-activations of a group.

    Products over variates of trapezoid rules, whose error falls exponentially with the number of values; the second
    rule has its values halfway between those of the first, which turns the sign of the error. Symmetric, so that a mean
    that is zero by symmetry comes out as zero: a slow state would multiply the rest by its time scale.

    Args:
        columns: the variates that vary, in the order of ``draw_gates``.
        tables: by variate, values of a standard normal ``(2, count)``, and their weights.
        step: the largest, in units of a pre-activation.
    """

    columns: tuple[int, ...]
    tables: tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
    step: float

    @staticmethod
    def of(laws: Laws, field: Field, copies: int, group: Group, most: int, coarser: float = 1.0) -> Rule:
        """With about ``most`` values in all, at most.

        Args:
            coarser: the smallest step, in parts of the one that resolves.
        """
        spread = {gate: float(laws.spread(gate, field).max()) for gate in group if gate}
        if "" in group:
            spread[""] = float(laws.input_variance.max()) ** 0.5
        spread = {gate: width for gate, width in spread.items() if width > 0}
        names = [*laws.cell.gates, ""]
        columns = tuple(names.index(name) * copies + k for name in spread for k in range(copies))
        widths = [width for width in spread.values() for _ in range(copies)]
        while True:
            steps = [coarser * max(_FINEST, min(_STEP, RESOLVED / max(width, STILL))) for width in widths]
            still = 3 if copies == 1 else 2  # a pair has so many to the power of its gates
            counts = [still if w <= STILL else _count(h) for h, w in zip(steps, widths, strict=True)]
            if math.prod(counts) <= most or all(count <= _FEWEST for count in counts):
                break
            coarser *= 1.1
        drawn = [
            _still(count) if count < _FEWEST else _trapezoids(h, count) for h, count in zip(steps, counts, strict=True)
        ]
        largest = max((h * w for h, w in zip(steps, widths, strict=True) if w > STILL), default=0.0)
        return Rule(columns, (tuple(v for v, _ in drawn), tuple(w for _, w in drawn)), largest)

    def points(self, count: int, rows: int) -> tuple[Tensor, Tensor]:
        """Of both rules in turn all standard normals ``(count, size, rows)``, zero for variates that do not vary, and
        weights ``(size, rows)``."""
        one = torch.ones(1, dtype=torch.float64)
        drawn, weights = [], []
        for place in range(2):
            values, shares = ([table[place] for table in tables] for tables in self.tables)
            grid = torch.cartesian_prod(*values, one).reshape(-1, len(values) + 1)
            points = torch.zeros(count, len(grid), dtype=torch.float64)
            points[list(self.columns)] = grid[:, :-1].T
            drawn.append(points)
            weights.append(torch.cartesian_prod(*shares, one).reshape(len(grid), -1).prod(-1))
        turn = torch.arange(rows) % 2
        return torch.stack(drawn, -1)[..., turn], torch.stack(weights, -1)[..., turn]


def _count(step: float) -> int:
    """How many values with this step cover the range: an even number."""
    return max(_FEWEST, 2 * math.ceil(_RANGE / step))


def _trapezoids(step: float, count: int) -> tuple[Tensor, Tensor]:
    """Values of a standard normal, half a step off its middle and on it, and their weights; each ``(2, count)``."""
    values = step * (torch.arange(count, dtype=torch.float64) - count // 2 + torch.tensor([[0.5], [0.0]]))
    density = torch.exp(-values.square() / 2)
    density[1, 0] = 0.0  # has no opposite
    return values, density / density.sum(-1, keepdim=True)


def _still(count: int) -> tuple[Tensor, Tensor]:
    """Two or three Gauss-Hermite values and their weights, right to the third or fifth power of the width."""
    values, weights = ([-1.0, 1.0], [0.5, 0.5]) if count == 2 else ([-(3.0**0.5), 0.0, 3.0**0.5], [1 / 6, 2 / 3, 1 / 6])
    tables = (torch.tensor(table, dtype=torch.float64).expand(2, count) for table in (values, weights))
    return next(tables), next(tables)
