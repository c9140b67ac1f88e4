"""From the Dyson equation to a density on the real axis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from isornn.cells import Spec, Values, initial_parameters
from isornn.cells.arguments import seeded
from isornn.theory.population.units import Laws, Units
from isornn.theory.spectra.blocks import Step, advanced, carried, joined, row_energy, step_of
from isornn.theory.spectra.dyson import Blocks, Dyson, NotSolved, Solution
from isornn.theory.spectra.laws import interpolated

_PROBED, _LAST_DRAWS = 4000, 16
_DRIVES = ((3.0, 60), (30.0, 600))  # widths and steps
_WALL = 1e-3


@dataclass(frozen=True)
class Extremes:
    """What units can do.

    Args:
        bounded: whether rows of J stay bounded over units.
        singular: whether det A comes near 0: then the support begins at 0, for a square matrix with rows that the
            random part alone can make dependent.
        path: the units that carry and that receive most; they have next to no weight in the law, and where rows are
            bounded they say where its support ends.
    """

    bounded: bool
    singular: bool
    path: list[Step]


def extremes(spec: Spec, steps: int) -> Extremes:
    """Found by driving units with pre-activations of standard deviation 3 over 60 steps and 30 over 600, half of the
    units by the same ones at all steps but the last, which finds states that can grow.
    """
    largest, nearest = [], []
    for scale, length in _DRIVES:
        path = _driven(spec, scale, length, steps)
        source_terms = [float(torch.einsum("ssn->n", v).max()) for v in path[0].source_terms.values()]
        largest.append(torch.tensor([float(path[0].mean.square().sum((0, 1)).max()), *source_terms]))
        values = torch.linalg.svdvals(path[0].carried.movedim(-1, 0))
        nearest.append(float(values[:, -1].min()) <= _WALL * float(values[:, 0].max()))
    most = torch.stack([carried(path).argmax(), row_energy(path).argmax()])
    few = [step.taken(most, torch.ones(2, dtype=torch.float64)) for step in path]
    return Extremes(bool((largest[1] <= 1.5 * largest[0]).all()), any(nearest), few)


def _driven(spec: Spec, scale: float, length: int, steps: int) -> list[Step]:
    generator, laws = seeded(None), Laws.of(spec)
    cell = laws.cell
    gates = [gate for gate in cell.gates if _moves(laws, gate)]
    kept = torch.arange(_PROBED) % 2 == 0

    def drive() -> tuple[dict[str, Tensor], Tensor]:
        draws = scale * torch.randn(len(cell.gates) + 1, _PROBED, dtype=torch.float64, generator=generator)
        values = {
            gate: laws.bias_mean[gate] + (value if gate in gates else torch.zeros_like(value)).expand(1, 1, 1, -1)
            for gate, value in zip(cell.gates, draws, strict=False)
        }
        return values, laws.input_variance.sqrt() * draws[-1].expand(1, 1, 1, -1)

    states = {name: torch.zeros(1, 1, 1, _PROBED, dtype=torch.float64) for name in cell.states}
    (same, same_x), parameters = drive(), initial_parameters(cell)
    for _ in range(length):
        values, x = drive()
        mixed = {gate: torch.where(kept, same[gate], value) for gate, value in values.items()}
        u, mixed_x = Values(**mixed, **parameters), torch.where(kept, same_x, x)
        new = cell.update(Values(**states), u, mixed_x)
        states = {name: value.expand(states[name].shape) for name, value in new.items()}
    found = []
    for _ in range(_LAST_DRAWS):
        path, units = [], Units(states, {}, None)
        for _ in range(steps):
            values, x = drive()
            u = Values(**values, **parameters)
            path.append(step_of(laws, units, u, x))
            units = advanced(laws, units, u, x)
        found.append(path)
    return [joined(parts) for parts in zip(*found, strict=True)]


def _moves(laws: Laws, gate: str) -> bool:
    """Whether the gate's pre-activation varies over units."""
    spread = float(laws.weight[gate] + laws.drive[gate] + laws.bias_var[gate])
    return laws.bias_law[gate] is not None or spread > 0


RESOLVED = 0.015  # the widest angle at which a law counts as resolved
SHARES = (0.13, 1.0, 3.0)  # of the angle at which a law is resolved, for the smallest of the rays: see scans
COARSE, POINTS = 97, 200
_BETWEEN = 4
_TAIL = 32  # points beyond those
LEAST_MASS = 2e-4  # below the first x
LONGEST_FALL = 1e-40  # of the first x, relative to the mean
_ROUGH_UNITS = 512  # for rays far from the real axis, where every population looks alike
_ROUGH_ANGLE = 0.2
_ANGLES = (2.0, 1.2, 0.7, 0.4, 0.2, *(0.06 / 4**k for k in range(12)))
_WIDE = (0.2, 0.06)
_RESOLVING = tuple(RESOLVED / 4**k for k in range(8))
STILL = 6e-3  # of the distribution function, between two angles
_CHUNK = 32
_BEFORE_END = (2e-3, 5e-3, 0.01, 0.02, 0.04, 0.08)
_CONTOUR = 16
_FARTHEST = 40  # doublings
_FLAT = 12  # half decades over which mass that stays is mass at 0
_LIFTS = (0, 6, 12, 24)  # half decades


@dataclass(frozen=True)
class Scan:
    """What was read off rays.

    Args:
        x, density: points and the density there.
        at_zero, below: the mass at 0, and that between 0 and the first x.
        residual: the largest of the equations solved.
        moved: by how much the distribution function, resolved four times as finely, still moves.
    """

    x: Tensor
    density: Tensor
    at_zero: float
    below: float
    residual: float
    moved: float


def moments(blocks: Blocks, end: float) -> tuple[float, float]:
    """m1 and m2 of the equation's law, by Cauchy's formula on a circle around the spectrum, which ends near ``end``."""
    dyson = Dyson(blocks)
    radius = 1.6 * end
    angle = math.pi * (torch.arange(_CONTOUR, dtype=torch.float64) + 0.5) / _CONTOUR
    z = torch.polar(torch.full_like(angle, radius), angle)
    m = dyson.solved(z, dyson.guess(z)).m
    first, second = (float(-(z ** (k + 1) * m).mean().real) for k in (1, 2))
    return first, second


@dataclass(frozen=True)
class _Home:
    """Where the mass is, by a few units: points ``x`` with x rho there, and the angle at which the law is resolved;
    what `Scan` says of mass and of that angle; solutions on the negative axis, from which all rays start."""

    rough: Blocks
    negative: _Negative
    x: Tensor
    xrho: Tensor
    resolved: float
    moved: float
    at_zero: float
    below: float
    low: float


def scans(blocks: Blocks, shares: Sequence[float], top: float, end: float | None = None) -> Iterator[Scan]:
    """The density of the squared singular values on points chosen by itself, from as low as the equation can be solved
    in floating point.

    Near the real axis x rho(x) = Im z m(z) / pi is read off rays at once, twice and three times a small angle, where
    the sampled units' discreteness is smoothed over that share of x, and extrapolated to the axis to third order:
    what is below 1e-6 of the largest value is given as 0. Mass at 0 is real in z m(z) and drops out.

    Near isometry all mass lies within a thousandth of its place. So angles go down, each with points where the one
    before found mass, until the distribution function stays: that is the angle at which the law is resolved.

    Args:
        shares: of that angle, for the small one, a scan each. Sharp edges want it small; weak weights, where single
            units show as spikes, wide.
        top: where the law of these units ends, roughly.
        end: the upper edge of the support where it is known, which the density reaches like a square root.

    Raises:
        NotSolved: not even from high above the lowest point at which it is solved on the negative axis.
    """

    @cache
    def home(lift: int) -> _Home:
        return _home(blocks, top, lift)

    def found(share: float) -> Scan:
        for lift in _LIFTS[:-1]:
            with suppress(NotSolved):
                return _scan_from(blocks, home(lift), share, end)
        return _scan_from(blocks, home(_LIFTS[-1]), share, end)

    yield from map(found, shares)


def _home(blocks: Blocks, top: float, lift: int) -> _Home:
    rough = _subset(blocks)
    low, at_zero, below = _lowest(rough, 4 * top, float((blocks.energy * blocks.weight).sum()), lift)
    coarse = torch.logspace(math.log10(low), math.log10(1.5 * top), COARSE, dtype=torch.float64)
    negative = _Negative(rough, coarse)
    return _Home(rough, negative, *_homed(rough, negative, coarse), at_zero, below, low)


def _scan_from(blocks: Blocks, home: _Home, share: float, end: float | None) -> Scan:
    negative, coarse, xrho = home.negative, home.x, home.xrho
    angle = share * home.resolved
    for points in (POINTS // 2, POINTS):
        x = refined(coarse, xrho, points)
        if points < POINTS:
            xrho, _ = _on_axis(home.rough, negative, x, angle)
            coarse = x
    if end is not None:
        x = torch.cat([x, end * (1 - torch.tensor(_BEFORE_END, dtype=torch.float64))]).sort()[0]
        x = x[x < 0.9999 * end]
    else:
        # single rows of the tail are singular values of their own
        top = max(1.15 * float(blocks.energy.max()), 1.01 * float(x[-1]))
        beyond = torch.linspace(math.log(float(x[-1])), math.log(top), _TAIL + 1, dtype=torch.float64).exp()
        x = torch.cat([x, beyond[1:]])
    xrho, residual = _on_axis(blocks, negative, x, angle)
    # E low/(lambda + low) has its share of what lies above as well
    below = max(0.0, home.below - float(torch.trapezoid(xrho * home.low / (x + home.low), x.log())))
    if end is not None:
        x, xrho = torch.cat([x, x.new_tensor([end])]), torch.cat([xrho, xrho.new_zeros(1)])
    # between the points solved x rho is smooth in ln x, and cheaper to interpolate
    place = torch.arange(_BETWEEN * (len(x) - 1) + 1) / _BETWEEN
    fine = np.interp(place.numpy(), np.arange(len(x)), x.log().numpy())
    from scipy.interpolate import PchipInterpolator  # half a second to import

    between = torch.from_numpy(PchipInterpolator(x.log().numpy(), xrho.numpy())(fine))
    x = torch.from_numpy(fine).exp()
    return Scan(x, between / x, home.at_zero, below, residual, home.moved)


def _homed(rough: Blocks, negative: _Negative, x: Tensor) -> tuple[Tensor, Tensor, float, float]:
    """Points where the mass is, x rho there, the angle at which the law is resolved, and by how much it still moves.

    That is the widest angle at which it moves by less than `STILL`, or else where it moves least: beyond, the few
    units that stand for all come apart.
    """
    xrho, _ = _on_axis(rough, negative, x, _WIDE[0])
    for angle in (*_WIDE[1:], RESOLVED):
        x, xrho = _nearer(rough, negative, x, xrho, angle)
    best = (x, xrho, RESOLVED, math.inf)
    for angle, finer in pairwise(_RESOLVING):
        x, xrho = _nearer(rough, negative, x, xrho, angle)
        ahead, there = _nearer(rough, negative, x, xrho, finer)
        moved = float((_distribution(ahead, there) - interpolated(ahead, x, _distribution(x, xrho))).abs().max())
        if moved < best[-1]:
            best = (x, xrho, angle, moved)
        if moved < STILL or moved > 2 * best[-1]:
            break
        x, xrho = ahead, there
    return best


def _nearer(rough: Blocks, negative: _Negative, x: Tensor, xrho: Tensor, angle: float) -> tuple[Tensor, Tensor]:
    x = refined(x, xrho, POINTS // 2)
    return x, _on_axis(rough, negative, x, angle)[0]


def _distribution(x: Tensor, xrho: Tensor) -> Tensor:
    """As a share of all that these points see."""
    below = torch.cat([x.new_zeros(1), torch.cumulative_trapezoid(xrho, x.log())])
    return below / below[-1]


def upper_edge(blocks: Blocks, precision: float = 1e-3) -> float:
    """Where the support of these units' law ends: coming from above, where the equation ceases to have a
    real solution at which its fixed point iteration is stable."""
    dyson = Dyson(blocks)
    x, unknowns = _outside(dyson)
    share = 0.8
    while share < 1 - precision:
        found = None  # inside the support there is no real solution; single units' shares of it are not skipped
        if float(share * x) > blocks.floor:
            with suppress(NotSolved):
                found = dyson.solved(share * x, unknowns)
        if found is None or dyson.slope(found) >= 1:
            share = share**0.5
        else:
            x, unknowns = found.z, found.unknowns
    return float(x)


def _outside(dyson: Dyson) -> tuple[Tensor, Tensor]:
    """A point above the support and the solution there."""
    x = 4 * dyson.blocks.energy.max().reshape(1)
    for _ in range(_FARTHEST):
        try:
            found = dyson.solved(x, dyson.guess(x))
        except NotSolved:
            found = None
        if found is not None and dyson.slope(found) < 1:
            return x, found.unknowns
        x = 2 * x
    raise NotSolved("no point above the spectrum was found at which the Dyson equation is solved")


def _subset(blocks: Blocks) -> Blocks:
    """A few units that stand for all: half of them by their share, half by their share of the second moment."""
    if blocks.weight.numel() <= _ROUGH_UNITS:
        return blocks
    order = blocks.energy.argsort()
    energy, share = blocks.energy[order].square(), blocks.weight[order]
    wanted = (share + share * energy / (share * energy).sum().clamp(min=1e-300)) / 2
    ladder = wanted.cumsum(0)
    places = (torch.arange(_ROUGH_UNITS, dtype=torch.float64) + 0.5) / _ROUGH_UNITS * ladder[-1]
    chosen = torch.searchsorted(ladder, places).clamp(max=len(order) - 1)
    return blocks.taken(order[chosen], share[chosen] / wanted[chosen])


class _Negative:
    """Solutions on the negative axis, where the equation is easy: at ``-sizes``, the largest first, each started from
    the one before; elsewhere started between these."""

    def __init__(self, blocks: Blocks, sizes: Tensor) -> None:
        self.dyson, self.places = Dyson(blocks), sizes.log()
        found = torch.empty(len(sizes), 2 * self.dyson.count, dtype=torch.float64)
        x = self.dyson.guess(-sizes[-1:])
        for place in reversed(range(len(sizes))):
            x = self.dyson.solved(-sizes[place : place + 1], x).unknowns
            found[place] = x[0]
        self.found = found

    def at(self, sizes: Tensor) -> Tensor:
        """Unknowns (Z, 2 S) at ``-sizes``."""
        size, places = self.found.abs().log(), sizes.log()
        between = torch.stack([interpolated(places, self.places, column) for column in size.unbind(-1)], -1)
        return self.dyson.solved(-sizes, self.found[:1].sign() * between.exp()).unknowns


def _lowest(blocks: Blocks, top: float, mean: float, lift: int) -> tuple[float, float, float]:
    """Where to begin, the mass at 0, and that between: -z m(z) = E eps/(lambda + eps) at z = -eps.

    Down to where there is hardly any mass left, or to where rounding keeps the equation from being solved; then
    ``lift`` half decades up.
    """
    dyson = Dyson(blocks)
    size = torch.tensor([top], dtype=torch.float64)
    x = dyson.guess(-size)
    masses: list[float] = []
    at_zero = 0.0
    while float(size) > LONGEST_FALL * mean and not at_zero:
        try:
            found = dyson.solved(-size, x)
        except NotSolved:
            lift += 2  # rays to the positive axis start from here too
            break
        x = found.unknowns
        masses.append(float(size * found.m))
        if masses[-1] < LEAST_MASS:
            break
        if len(masses) > _FLAT and masses[-_FLAT] - masses[-1] < 1e-4 * masses[-1]:
            at_zero, lift = masses[-1], lift + _FLAT // 2
        size = size / 10**0.5
    last = len(masses) - 1 - lift
    if last < 1:
        raise NotSolved("the Dyson equation of the spectrum was not solved on the negative axis")
    return top / 10 ** (last / 2), at_zero, masses[last] - at_zero


def _on_axis(blocks: Blocks, negative: _Negative, x: Tensor, angle: float) -> tuple[Tensor, float]:
    """x rho(x), by turning each ray from the negative axis to the positive one."""
    dyson, chunks = Dyson(blocks), zip(x.split(_CHUNK), negative.at(x).split(_CHUNK), strict=True)
    parts = [_turned(dyson, negative.dyson, *both, angle) for both in chunks]
    xrho = torch.cat([part for part, _ in parts])
    return torch.where(xrho > 1e-6 * xrho.max(), xrho, 0.0), max(residual for _, residual in parts)


def _turned(dyson: Dyson, rough: Dyson, x: Tensor, start: Tensor, least: float) -> tuple[Tensor, float]:
    far = _turned_first(dyson, rough, x, start, 3 * least)
    middle = _continued(dyson, x, far.unknowns, 3 * least, 2 * least)
    near = _jumped(dyson, _ray(x, least), 2 * middle.unknowns - far.unknowns)
    if near is None:
        near = _continued(dyson, x, middle.unknowns, 2 * least, least)
    values = [(found.z * found.m).imag / math.pi for found in (near, middle, far)]
    xrho = 3 * values[0] - 3 * values[1] + values[2]
    return xrho, max(found.residual for found in (near, middle, far))


def _turned_first(dyson: Dyson, rough: Dyson, x: Tensor, start: Tensor, to: float) -> Solution:
    """The solution at angle ``to`` from that on the negative axis, which the solutions of a few units lead to, all the
    way or to `_ROUGH_ANGLE`."""

    def by(least_rough: float) -> Solution:
        unknowns, angle = torch.complex(start, 1e-12 * start.abs()), math.pi
        for turn in (turn for turn in _ANGLES if turn > to):
            unknowns = _continued(rough if turn > least_rough else dyson, x, unknowns, angle, turn).unknowns
            angle = turn
        return _continued(dyson, x, unknowns, angle, to)

    with suppress(NotSolved):
        return by(to)
    return by(_ROUGH_ANGLE)


def _jumped(dyson: Dyson, z: Tensor, ahead: Tensor) -> Solution | None:
    """The solution from where the line through the last two comes out, if it is near enough."""
    if not bool((ahead.imag > 0).all()):
        return None
    try:
        return dyson.solved(z, ahead)
    except NotSolved:
        return None


def _continued(dyson: Dyson, x: Tensor, unknowns: Tensor, angle: float, to: float, depth: int = 6) -> Solution:
    """The solution at angle ``to`` from that at ``angle``, by way of angles between where it is too far."""
    try:
        return dyson.solved(_ray(x, to), unknowns)
    except NotSolved:
        if depth == 0:
            raise
    half = math.sqrt(angle * to)
    unknowns = _continued(dyson, x, unknowns, angle, half, depth - 1).unknowns
    return _continued(dyson, x, unknowns, half, to, depth - 1)


def _ray(x: Tensor, angle: float) -> Tensor:
    return torch.polar(x, torch.full_like(x, angle))


def refined(x: Tensor, xrho: Tensor, points: int) -> Tensor:
    """Even shares of mass, of x^2-mass, and of ln x and x where there is any density."""
    step = x.log().diff()

    def shares(weight: Tensor) -> Tensor:
        pieces = (weight[1:] + weight[:-1]) / 2 * step
        return pieces / pieces.sum()

    inside = (xrho > 0).to(torch.float64)
    pieces = (3 * shares(xrho) + shares(xrho * x**2) + shares(inside) + shares(inside * x)) / 6
    ladder = torch.cat([torch.zeros(1, dtype=torch.float64), pieces.cumsum(0)])
    places = torch.linspace(0, float(ladder[-1]), points, dtype=torch.float64)
    right = torch.searchsorted(ladder, places).clamp(1, len(x) - 1)
    share = (places - ladder[right - 1]) / (ladder[right] - ladder[right - 1]).clamp(min=1e-300)
    fine = x.log()[right - 1] + share.clamp(0, 1) * step[right - 1]
    return _graded(torch.cat([fine[:1], fine[1:][fine.diff() > 1e-9]])).exp()


def _graded(places: Tensor) -> Tensor:
    """With places between, so that no step is more than four times the one beside it: beside a narrow peak the density
    is not nothing until the next place."""
    while True:
        step = places.diff()
        widens, narrows = step[1:] > 4 * step[:-1], step[:-1] > 4 * step[1:]
        if not bool((widens | narrows).any()):
            return places
        after = (places[1:-1] + 3 * step[:-1])[widens]
        before = (places[1:-1] - 3 * step[1:])[narrows]
        places = torch.cat([places, after, before]).sort().values
