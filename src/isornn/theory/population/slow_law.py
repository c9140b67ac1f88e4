"""The stationary law of a slow state given the unit, in closed form: its moments, and what it keeps per step."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from isornn.cells import Values
from isornn.theory.population.cubic import cubic
from isornn.theory.population.line import Line
from isornn.theory.population.means import PER_UNIT, RESOLVED, Rule, averages
from isornn.theory.population.units import (
    Draws,
    Field,
    Laws,
    Units,
    bounded,
    correlated,
    draw_gates,
    ranks,
    redraws_law,
    variates,
)

_NODES = 129
_STEP = 1e-3  # of a moment of the field, for derivatives
_THINNED = 8
_TINY = 1e-200
_MOST_VALUES = 2**21
_MOST_DRAWS = 2**15
ROUNDING = 1e-14
SOON_SETTLED = 1 / 8  # what units lose per step that some tens of steps settle
# Slower than this, with little noise in what is kept, a state is a sum of many small parts: Gaussian to 1e-3.
SLOW = 1 / 256


@dataclass(frozen=True)
class SlowLaw:
    """Moments of ``s' = A s + B`` given the unit, ``(G, R, n)``, or ``(G, R, 1)`` where all units are alike.

    ``mean = E B / (1 - E A)``, ``E s^2 = (E B^2 + 2 E[AB] mean) / (1 - E A^2)``, and likewise for the pair of copies.

    Args:
        mean, variance, gap: of s; ``gap`` is 1 minus the correlation of the copies.
        loss: ``1 - E[A_a A_b]``, what a displacement loses per step.
        known: whether there is a stationary law.
        gaussian: whether it is Gaussian within 1e-3: slow, and not by rare resets.
        frozen: whether the state loses nothing: it stays as it is, or accumulates what it is fed.
        exact, exact_pair: whether what concerns one copy, and the pair, holds to a small part of a per cent.
    """

    mean: Tensor
    variance: Tensor
    gap: Tensor
    loss: Tensor
    known: Tensor
    gaussian: Tensor
    frozen: Tensor
    exact: bool = False
    exact_pair: bool = False

    @staticmethod
    def of(laws: Laws, draws: Draws, units: Units, held: Field, name: str) -> SlowLaw:
        """The law of the state ``name`` under the gate law of the field ``held``.

        Units of different biases come in the order of their first bias, as steps change the order of units: see
        ``of_units``.
        """
        line = Line.of(laws.cell, name)
        if not units.offsets:
            steps = [Rule.of(laws, held, 1, group, _MOST_DRAWS).step for group in line.groups]
            if not redraws_law(laws) and max(steps, default=0.0) <= 2 * RESOLVED:
                return _law_at({}, laws, held, line, units.copies, draws.shape[1])
            uniform = draws.uniform(variates(laws, units.copies))
            moments = _line(laws, units, held, name, uniform)
            return _law([units.mean(value) for value in moments])
        if one_variate(laws, units):
            law = _by_nodes(laws, units, held, line)
        else:
            law = _at_slow_units(laws, units, held, line)
        return law.taken(own_bias(units).argsort(-1))

    def of_units(self, units: Units) -> SlowLaw:
        """The law of the same units, in the order in which they are now."""
        return self.taken(ranks(own_bias(units))) if units.offsets else self

    def taken(self, order: Tensor) -> SlowLaw:
        """The units ``order`` ``(G, R, n)``, in that order."""
        tensors = {f.name: getattr(self, f.name) for f in fields(self) if not f.name.startswith("exact")}
        return SlowLaw(
            **{name: value.gather(-1, order) for name, value in tensors.items()},
            exact=self.exact,
            exact_pair=self.exact_pair,
        )

    def moments(self) -> Tensor:
        """E s, E s^2 and E s_a s_b of the one state, ``(1, 3, ...)``."""
        square = self.mean.square()
        return torch.stack([self.mean, square + self.variance, square + self.variance * (1 - self.gap)])[None]

    def redrawn(self, draws: Draws, units: Units, names: Sequence[str], where: Tensor) -> Units:
        """The one state of ``names`` drawn afresh from the Gaussian with these moments in the units ``where``."""
        (name,) = names
        normal = spread_normals(draws, self.loss, units.copies)
        value = self.mean + self.variance.sqrt() * correlated(normal, self.gap)
        states = {**units.states, name: torch.where(where, value, units.states[name])}
        return replace(units, states=bounded(states))


def spread_normals(draws: Draws, loss: Tensor, count: int) -> Tensor:
    """Standard normals ``(count, G, R, n)`` for units that lose ``loss`` per step.

    Units are put in the order of their time scales and meet variates that are evenly spread over time scale and
    value together, so that means over units have little noise.
    """
    uniform = draws.uniform(1 + count)
    key = loss if loss.shape == draws.shape else draws.order(None)
    place = uniform[0].argsort(-1).gather(-1, ranks(key))
    return torch.special.ndtri(uniform[1:].gather(-1, place.expand(count, *place.shape)))


def _law(moments: Sequence[Tensor], exact: bool = False, exact_pair: bool = False) -> SlowLaw:
    a, b, b2, ab, a2, pair_a2, pair_ab, pair_b2 = moments
    mean = b / (1 - a)
    variance = (b2 + 2 * ab * mean) / (1 - a2) - mean.square()
    pair = (pair_b2 + 2 * pair_ab * mean) / (1 - pair_a2) - mean.square()
    known = (1 - a2 > ROUNDING) & (variance >= 0) & variance.isfinite() & mean.isfinite()
    variance, mean = torch.where(known, variance, 0.0), torch.where(known, mean, 0.0)
    gap = torch.where(variance > 0, 1 - pair / variance.clamp(min=1e-300), 0.0).nan_to_num(0.0)
    slow = known & (1 - a2 < SLOW) & (1 - a2 > 1.9 * (1 - a))
    frozen = (1 - a2).abs() <= ROUNDING
    return SlowLaw(mean, variance, gap, 1 - pair_a2, known, slow, frozen, exact, exact_pair)


def own_bias(units: Units) -> Tensor:
    return next(iter(units.offsets.values()))


def one_variate(laws: Laws, units: Units) -> bool:
    """Whether all biases of a unit are functions of one variate, each of them monotone."""
    normal = [gate for gate in units.offsets if bool((laws.bias_var[gate] > 0).any())]
    by_law = [gate for gate in units.offsets if laws.bias_law[gate] is not None]
    if any(law is not None and law.kind == "empirical" for law in laws.bias_law.values()):
        return not normal and _monotone(units)
    return not normal or (len(normal) == 1 and not by_law)


def _monotone(units: Units) -> bool:
    """Whether every gate's bias is a function of the first gate's that rises, or falls."""
    order = own_bias(units).argsort(-1)
    own = own_bias(units).gather(-1, order).diff()
    steps = [value.gather(-1, order).diff() for value in units.offsets.values()]
    alike = all(bool((step[own == 0] == 0).all()) for step in steps)
    return alike and all(bool((step >= 0).all()) or bool((step <= 0).all()) for step in steps)


def loss_by_bias(laws: Laws, units: Units, held: Field, name: str) -> Tensor:
    """``1 - E[A_a A_b]`` in the order of ``SlowLaw.of``: cheaper than the whole law, as fewer gates matter."""
    kept = averages(laws, units, held, Line.of(laws.cell, name).kept(), PER_UNIT // units.copies**2)[5]
    return (1 - kept).gather(-1, own_bias(units).argsort(-1))


def of_units(sorted_values: Tensor, units: Units) -> Tensor:
    """What is in the order of ``SlowLaw.of``, in the present order of units."""
    return sorted_values.gather(-1, ranks(own_bias(units)))


def _by_nodes(laws: Laws, units: Units, held: Field, line: Line) -> SlowLaw:
    """Units at equally spaced biases of the first gate are averaged finely; the others lie between."""
    gate = next(iter(units.offsets))
    flat = {g: value.flatten(1) for g, value in units.offsets.items()}
    own, order = flat[gate].sort(-1)
    low, high = own[:, :1], own[:, -1:]
    nodes = low + (high - low) * torch.linspace(0, 1, _NODES, dtype=torch.float64)
    nodes[:, -1:] = high
    biases = {g: _linear(nodes, own, value.gather(-1, order)) for g, value in flat.items()} | {gate: nodes}
    shared = held.over_replicates()
    law_of = functools.partial(_law_at, biases, laws, line=line, copies=units.copies, rows=_NODES)
    between = functools.partial(_between, low=low, high=high, at=units.offsets[gate])
    moves = [
        (between(law_of(moved)), share)
        for name in shared.values
        for moved, share in _moves(shared, held, name, units.copies)
    ]
    return _first_order(between(law_of(shared)), moves)


def _moves(shared: Field, held: Field, name: str, copies: int) -> Iterator[tuple[Field, Tensor]]:
    """Fields a small step away from ``shared``, and how many such steps it is to each replicate's, ``(G, R, 1)``."""
    (own, pair), (own_here, pair_here) = shared.values[name], held.values[name]
    step = _STEP * own.clamp(min=_TINY)
    yield shared.moved(name, step, step), (own_here - own) / step
    if copies == 2:
        apart, apart_here = own - pair, own_here - pair_here
        yield shared.moved(name, torch.zeros_like(step), -step), (apart_here - apart) / step


def _first_order(law: SlowLaw, moves: Sequence[tuple[SlowLaw, Tensor]]) -> SlowLaw:
    """The law at each replicate's own field, to first order in how it differs from the mean of all.

    At that mean alone, replicates would agree on a moment however uncertain the field is that it follows from.
    """

    def at(name: str) -> Tensor:
        value = getattr(law, name)
        return value + sum(share * (getattr(moved, name) - value) for moved, share in moves)

    known = functools.reduce(torch.logical_and, (moved.known for moved, _ in moves), law.known)
    return replace(
        law, mean=at("mean"), variance=at("variance").clamp(min=0), gap=at("gap"), loss=at("loss"), known=known
    )


def _linear(at: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """``y`` of the rising ``x`` ``(G, n)`` at ``at`` ``(G, m)``."""
    right = torch.searchsorted(x, at).clamp(1, x.shape[-1] - 1)
    low, high = x.gather(-1, right - 1), x.gather(-1, right)
    part = torch.where(high > low, (at - low) / torch.where(high > low, high - low, 1.0), 1.0).clamp(0.0, 1.0)
    left = y.gather(-1, right - 1)
    return left + part * (y.gather(-1, right) - left)


def _law_at(offsets: Mapping[str, Tensor], laws: Laws, field: Field, line: Line, copies: int, rows: int) -> SlowLaw:
    """The law at ``rows`` units with ``offsets`` ``(G, K)``, or without them of each replicate ``(G, R, 1)``."""
    moments, step = _fine_averages(laws, offsets, field, line, 1, rows)
    step_pair = step
    if copies == 2:
        # The pair needs twice the dimensions: how it differs from one copy, by a coarser rule at fewer nodes.
        few = {g: value[:, ::_THINNED] for g, value in offsets.items()}
        coarse, step_pair = _fine_averages(laws, few, field, line, 2, -(-rows // _THINNED) if few else rows)
        moments[5:] = _paired(moments, coarse, _THINNED if offsets else 1)
        step_pair = max(step, step_pair)
    if not offsets:
        moments = [value[..., None] for value in moments]
    return _law(moments, exact=step <= 1.2 * RESOLVED, exact_pair=step_pair <= 2 * RESOLVED)


def _fine_averages(
    laws: Laws, offsets: Mapping[str, Tensor], field: Field, line: Line, copies: int, rows: int
) -> tuple[list[Tensor], float]:
    """Moments of the line at units with ``offsets`` ``(G, K)``, each ``(G, K)``, and the largest step of the rules."""
    most = min(_MOST_DRAWS, _MOST_VALUES // (rows * laws.batch * copies))
    # Rows take the two rules in turn: their errors are opposite, so means over rows hardly have them, and where rows
    # are replicates standard errors show how large they are.
    turn = torch.arange(rows) % 2
    # Nodes where replicates are.
    biases = {gate: value[..., None] for gate, value in offsets.items()}
    means, largest = [], 0.0
    for group in line.groups:
        rule = Rule.of(laws, field, copies, group, most)
        # An axis for each variate, so that functions of one gate are computed on that alone.
        depth = len(rule.columns)
        values, weights = (
            [table[turn].T.reshape(-1, *(1,) * (depth - k), rows, 1) for k, table in enumerate(tables)]
            for tables in rule.tables
        )
        blank = torch.zeros(copies, *(1,) * (depth + 3), dtype=torch.float64)
        normal = {column: value + blank[0] for column, value in zip(rule.columns, values, strict=True)}
        columns = [
            torch.stack(torch.broadcast_tensors(*(normal.get(place + k, blank[0]) for k in range(copies))))
            for place in range(0, variates(laws, copies), copies)
        ]
        units = Units(dict.fromkeys(laws.cell.states, blank), biases, None)
        u, x = draw_gates(laws, units, field, blank, normal=columns, wanted=group)
        means.append(line.means_over(group, u, x, functools.partial(_over_axes, weights)))
        largest = max(largest, rule.step)
    return [value.expand(laws.batch, rows) for value in line.moments(means)], largest


def _over_axes(weights: Sequence[Tensor], value: Tensor) -> Tensor:
    """From ``(copies, .., G, K, 1)`` with an axis for each of the ``weights`` to the mean ``(copies, G, K)``."""
    for weight in weights:
        value = value.squeeze(1) if value.shape[1] == 1 else (value * weight).sum(1)
    return value[..., 0]


def _paired(one: Sequence[Tensor], few: Sequence[Tensor], thinned: int) -> list[Tensor]:
    """A_a A_b, A_a B_b and B_a B_b at all nodes, from one copy there and both copies at every few nodes."""

    def spread(value: Tensor) -> Tensor:
        places = torch.arange(thinned * (value.shape[-1] - 1) + 1, dtype=value.dtype) / thinned
        return cubic(value, places.expand(len(value), -1)) if thinned > 1 else value

    def ratio(above: Tensor, below: Tensor) -> Tensor:
        return spread(torch.where(below.abs() > _TINY, above / below, 1.0))

    _, _, b2, ab, a2 = one[:5]
    loss = ratio(1 - few[5], 1 - few[4]) * (1 - a2)
    scale, scale_few = ((m[2] * (1 - m[4]).clamp(min=0)).sqrt() for m in (one, few))
    cross = torch.where(scale_few > _TINY, (few[6] - few[3]) / scale_few.clamp(min=_TINY), 0.0)
    return [1 - loss, ab + spread(cross) * scale, ratio(few[7], few[2]) * b2]


def _at_slow_units(laws: Laws, units: Units, held: Field, line: Line) -> SlowLaw:
    """The law at the units that lose little per step; of the others, which steps settle soon, it is not known.

    With biases in all of a GRU's gates few are slow, and a pair's means over three gates take thousands of values each.
    """
    loss = 1 - averages(laws, units.one_copy(), held, line.kept(), PER_UNIT)[4]
    count = max(1, int((loss < SOON_SETTLED).sum(-1).max()))
    slow = loss.argsort(-1)[..., :count]
    law = _law(averages(laws, units.taken(slow), held, line, PER_UNIT))
    nothing, nowhere = torch.zeros_like(loss), torch.zeros_like(loss, dtype=torch.bool)
    return SlowLaw(
        mean=nothing.scatter(-1, slow, law.mean),
        variance=nothing.scatter(-1, slow, law.variance),
        gap=nothing.scatter(-1, slow, law.gap),
        loss=loss.scatter(-1, slow, law.loss),
        known=nowhere.scatter(-1, slow, law.known),
        gaussian=nowhere.scatter(-1, slow, law.gaussian),
        frozen=nowhere.scatter(-1, slow, law.frozen),
    )


def _between(law: SlowLaw, low: Tensor, high: Tensor, at: Tensor) -> SlowLaw:
    """A law at equally spaced biases from ``low`` to ``high`` ``(G, 1)``, at the biases ``at`` ``(G, R, n)``."""
    count = law.loss.shape[-1]
    width = torch.where(high > low, high - low, 1.0)
    place = ((at.flatten(1) - low) / width * (count - 1)).clamp(0, count - 1)
    left = place.floor().clamp(0, count - 2).to(torch.int64)

    def value(of: Tensor) -> Tensor:
        return cubic(of, place).reshape(at.shape)

    def both(of: Tensor) -> Tensor:
        return (of.gather(-1, left) & of.gather(-1, left + 1)).reshape(at.shape)

    return SlowLaw(
        mean=value(law.mean),
        variance=value(law.variance),
        gap=value(law.gap),
        loss=value(law.loss),
        known=both(law.known),
        gaussian=both(law.gaussian),
        frozen=both(law.frozen),
        exact=law.exact,
        exact_pair=law.exact_pair,
    )


def _line(laws: Laws, units: Units, held: Field, name: str, uniform: Tensor) -> list[Tensor]:
    """A, B, B^2, AB, A^2 (means over the copies), A_a A_b, A_a B_b (symmetrised), B_a B_b, for one draw."""
    cell, state = laws.cell, units.states[name]
    u, x = draw_gates(laws, units, held, uniform)
    # At 0 and 1 together: what the update makes of the gates alone is then computed once.
    ends = torch.stack([torch.zeros_like(state), torch.ones_like(state)])
    new = cell.update(Values(**{**units.states, name: ends}), u, x)[name]
    b, at_one = torch.broadcast_tensors(new, ends)[0]
    a = at_one - b
    if units.copies == 1:
        a, b = a[0], b[0]
        moments = [a, b, b * b, a * b, a * a]
        return [*moments, moments[4], moments[3], moments[2]]
    own = [value.mean(0) for value in (a, b, b * b, a * b, a * a)]
    return [*own, a[0] * a[1], (a[0] * b[1] + a[1] * b[0]) / 2, b[0] * b[1]]
