"""Which of the critical points: an objective over specs, and its Pareto front over a cell's free hyper-parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from isornn.cells import Spec, SpecError
from isornn.cells.arguments import seeded, whole_number
from isornn.cells.bias_laws import WITH_ENDS
from isornn.cells.laws import GATE_NUMBERS, INPUT_FIELDS
from isornn.cells.spec import check_spec, is_number_path
from isornn.modes import usual_modes
from isornn.theory.critical_points.costs import COSTS, costs
from isornn.theory.quantity import Quantity

LAW_ENDS = ("bias_law.low", "bias_law.high")
WEIGHTED = tuple(name for name in COSTS if name != "sight")
FEWEST, MOST = 8, 100_000
SURE = 2.0  # standard errors from which a difference counts
_TOGETHER = 16  # specs of one batch: enough to share the work, few enough to show how far it is
_ROWS = 256  # of the comparison of all with all, at once


@dataclass(frozen=True)
class Range:
    """From ``low`` to ``high`` of the field ``path``, evenly in the value or, with ``log``, in its logarithm.

    Args:
        path: a number of the spec, ``"z.bias_mean"``, ``"input.variance"``; or ``"bias_law.low"``, ``"bias_law.high"``:
            the ends of the time-scale laws of all gates that have one.

    >>> Range("f.weight_var", 0.01, 1.0, log=True).at(torch.tensor([0.0, 0.5, 1.0]))
    tensor([0.0100, 0.1000, 1.0000])
    """

    path: str
    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        numbers = (self.low, self.high)
        plain = all(isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x) for x in numbers)
        if not plain or not self.low < self.high:
            raise SpecError(f"ranges.{self.path}", numbers, "LOW is below HIGH, and both are finite numbers")
        if self.log and self.low <= 0:
            raise SpecError(f"ranges.{self.path}", numbers, "LOW is above 0 where the logarithm is spread evenly")

    def at(self, share: Tensor) -> Tensor:
        """The values at shares from 0 to 1 of the way."""
        if self.log:
            return (math.log(self.low) + share * math.log(self.high / self.low)).exp().clamp(self.low, self.high)
        return self.low + share * (self.high - self.low)


@dataclass(frozen=True)
class Objective:
    """Experimental: which spec is preferred of those with a reach of T: the one with the least weighted sum of `costs`.

    ``sum_c w_c cost_c``. The minimum is flat, some 2 % between `isometric`'s rule and the best of 512 specs, and what
    the costs are worth in training is not measured.

    The cost ``sight`` is no part of the sum but a condition: reach (xi) >= T. The other costs all count e-folds over T
    steps, so with equal weights, the default, a factor e is as bad wherever it is lost: in the length of gradients,
    between their directions, in the time scales of units, in the gradients of gates' weights. A weighted sum finds the
    points of the front that lie on its convex hull.

    Args:
        isometry, variance, time_scales, saturation: weights, at least 0 and one of them above; a cost that the cell
            does not have counts nothing.
        ranges: where to look; `isometric` has ranges of its own for each cell where none are given.
        specs: how many to look at.

    >>> Objective(saturation=2.0).weights
    {'isometry': 1.0, 'variance': 1.0, 'time_scales': 1.0, 'saturation': 2.0}
    """

    isometry: float = 1.0
    variance: float = 1.0
    time_scales: float = 1.0
    saturation: float = 1.0
    ranges: tuple[Range, ...] = ()
    specs: int = 128

    def __post_init__(self) -> None:
        for name, weight in self.weights.items():
            number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
            if not number or not 0 <= weight < math.inf:
                raise SpecError(f"objective.{name}", weight, "a weight is a finite number of at least 0")
        if not any(self.weights.values()):
            raise SpecError("objective", tuple(self.weights.values()), "one weight is above 0")
        whole_number("specs", self.specs, FEWEST, most=MOST)

    @property
    def weights(self) -> dict[str, float]:
        """By cost."""
        return {name: getattr(self, name) for name in WEIGHTED}

    @property
    def counted(self) -> tuple[str, ...]:
        """Costs that have a weight."""
        return tuple(name for name, weight in self.weights.items() if weight)

    def score(self, found: Mapping[str, Quantity]) -> Quantity:
        """The weighted sum of ``costs``, over those that have a number somewhere in the batch."""
        present = {name: self.weights[name] for name in self.counted if bool(found[name].defined.any())}
        blank = torch.zeros_like(found["sight"].value)
        value, square = blank, blank
        reasons: dict[str, Tensor | bool] = {}
        for name, weight in present.items():
            value = value + weight * found[name].value
            square = square + (weight * found[name].stderr).square()
            reasons |= dict(found[name].reasons)
        return Quantity.of(value, square.sqrt(), reasons)


@dataclass(frozen=True)
class ParetoFront:
    """Experimental: specs of one cell and what they cost; ``front`` marks those that no other betters.

    Args:
        spec: what all share.
        length: T.
        ranges: the d fields that vary.
        points: their values, (n, d) float64.
        costs: by name, each (n,), with standard errors and reasons.
        counted: the costs beside the sight in which points are compared.
        front: (n,) whether no other point dominates it. A reach of T is a condition, so a point whose reach is shorter
            of T is dominated (constrained domination, Deb 2000); otherwise one dominates another if it costs no more in
            anything and less in something. Less, and shorter, is what differs by more than two standard errors of the
            difference. Points that lack a number that others have are not compared and never on the front.

    >>> from isornn.cells import Gate, Peephole
    >>> base = Spec(Peephole(), {"i": Gate(input_var=0.1), "g": Gate(input_var=1.0)})
    >>> found = pareto_front(base, 50, [Range("f.bias_mean", 2.0, 7.0)], specs=16)
    >>> found.points.shape, bool(found.front.any())
    (torch.Size([16, 1]), True)
    """

    spec: Spec
    length: float
    ranges: tuple[Range, ...]
    points: Tensor
    costs: Mapping[str, Quantity]
    counted: tuple[str, ...]
    front: Tensor

    @property
    def compared(self) -> Tensor:
        """(n,) where every counted cost that the cell has is a number."""
        return _compared(_counted(self.costs, self.counted))

    def spec_at(self, place: int) -> Spec:
        """The spec of one point."""
        values = self.points[place].tolist()
        return _placed(self.spec, {r.path: value for r, value in zip(self.ranges, values, strict=True)})

    def ranked(self, objective: Objective) -> list[int]:
        """Places on the front, best first: those with a reach of T beyond the error by their score, then the others by
        how much shorter their reach is."""
        score = objective.score(self.costs).value
        sight = self.costs["sight"]
        short = sight.value + SURE * sight.stderr
        on_front = torch.nonzero(self.front)[:, 0].tolist()
        return sorted(on_front, key=lambda i: (float(short[i]), float(score[i])))


@usual_modes()
def pareto_front(
    spec: Spec,
    length: float,
    ranges: Sequence[Range],
    *,
    counted: Sequence[str] = WEIGHTED,
    specs: int = 128,
    generator: torch.Generator | None = None,
    progress: Callable[[int], None] | None = None,
) -> ParetoFront:
    """Experimental: the `costs` at ``length`` of ``specs`` specs that differ in ``ranges``, and their Pareto front.

    Half of the specs are a scrambled Sobol set over the whole box; the other half lie around the front of the first, at
    distances up to that between neighbours of the first half, n^(-1/d) of each range.

    Args:
        spec: plain numbers, no batch.
        length: T >= 2.
        ranges: at least one, of fields that differ; the spec accepts both ends of each.
        counted: the costs beside the sight in which points are compared. The fewer, the smaller the front: in all four
            hardly any of the specs with a reach of T betters another.
        specs: from 8 to 100000. By quadrature some 5 ms each where units are alike and 100 ms where they keep biases of
            their own; sampled cells (LSTM, torch's GRU) take 0.1 to 1 s.
        generator: source of all randomness; seeded with 0 by default, so that equal calls agree.
        progress: called with the number of specs done, after each batch.

    Raises:
        SpecError: names the field.

    >>> from isornn.cells import Gate, Peephole
    >>> base = Spec(Peephole(), {"i": Gate(input_var=0.1), "g": Gate(input_var=1.0)})
    >>> ranges = [Range("f.bias_mean", 2.0, 7.0), Range("f.input_var", 1e-3, 1.0, log=True)]
    >>> found = pareto_front(base, 50, ranges, specs=64)
    >>> best = found.ranked(Objective())[0]
    >>> bool(found.costs["sight"].value[best] == 0), found.points.shape
    (True, torch.Size([64, 2]))
    """
    check_length(length)
    specs = whole_number("specs", specs, FEWEST, most=MOST)
    ranges = tuple(ranges)
    _check_ranges(spec, ranges)
    if not counted or not set(counted) <= set(WEIGHTED):
        raise SpecError("counted", tuple(counted), f"costs are {', '.join(WEIGHTED)}, at least one")
    generator = seeded(generator)
    wide = _sobol(len(ranges), specs - specs // 2, generator)
    found = _asked(spec, length, ranges, wide, generator, progress, 0)
    front = nondominated(_counted(found, counted))
    if not bool(front.any()):
        front = torch.ones_like(front)
    centres = wide[front]
    shifts = 2 * _sobol(len(ranges), specs // 2, generator) - 1
    near = centres[torch.arange(specs // 2) % len(centres)] + shifts * len(wide) ** (-1 / len(ranges))
    near = near.clamp(0.0, 1.0)
    more = _asked(spec, length, ranges, near, generator, progress, len(wide))
    both = {name: _joined([found[name], more[name]]) for name in COSTS}
    shares = torch.cat([wide, near])
    points = torch.stack([r.at(share) for r, share in zip(ranges, shares.T, strict=True)], -1)
    front = nondominated(_counted(both, counted))
    return ParetoFront(spec, float(length), ranges, points, both, tuple(counted), front)


def nondominated(found: Mapping[str, Quantity]) -> Tensor:
    """``ParetoFront.front``: which of n specs no other dominates, (n,).

    >>> cost = lambda *x: Quantity(torch.tensor(x), torch.zeros(len(x)))
    >>> nondominated({"sight": cost(0.0, 0.0, 0.0, 0.1), "isometry": cost(2, 1, 3, 0), "variance": cost(1, 2, 1, 0)})
    tensor([ True,  True, False, False])
    """
    compared = _compared(found)
    if not bool(compared.any()):
        return compared
    names = [name for name in found if bool(found[name].defined.any())]
    places = torch.nonzero(compared)[:, 0]
    value = torch.stack([found[name].value[places] for name in names], -1)
    error = torch.stack([found[name].stderr[places] for name in names], -1)
    sight = names.index("sight")
    front = compared.clone()
    for rows in torch.arange(len(places)).split(_ROWS):
        gap = value[rows, None] - value
        surely = gap > SURE * (error[rows, None].square() + error.square()).sqrt()
        dominated = ((gap >= 0).all(-1) & surely.any(-1)) | surely[..., sight]
        front[places[rows]] = ~dominated.any(-1)
    return front


def check_length(length: float) -> None:
    """Refuse what is no number of steps.

    Raises:
        SpecError: names it.
    """
    if isinstance(length, bool) or not isinstance(length, int | float | np.number) or not 2 <= length <= 1e6:
        raise SpecError("length", length, "it must be a number of steps from 2 to 1000000; one step needs no start")


# -- specs of the box -------------------------------------------------------------------------------------------------


def _check_ranges(spec: Spec, ranges: Sequence[Range]) -> None:
    """Every field is a number of the spec, named once, and takes both ends."""
    check_spec(spec)
    if spec.batch_shape:
        raise SpecError("spec", tuple(spec.batch_shape), "it must be one spec, not a batch: the ranges make the batch")
    if not ranges:
        raise SpecError("ranges", (), "there is at least one")
    paths = [r.path for r in ranges]
    for r in ranges:
        if paths.count(r.path) > 1:
            raise SpecError("ranges", r.path, "each field has one range")
        _check_path(spec, r.path)
        for end in (r.low, r.high) if r.path not in LAW_ENDS else ():  # whose two ends make one law
            _placed(spec, {r.path: end})
    ends = {r.path: r for r in ranges if r.path in LAW_ENDS}
    if ends:
        laws = [law for gate in spec.gates.values() if (law := gate.bias_law) is not None and law.kind in WITH_ENDS]
        low = ends["bias_law.low"].high if "bias_law.low" in ends else max(law.low for law in laws)
        high = ends["bias_law.high"].low if "bias_law.high" in ends else min(law.high for law in laws)
        lowest = ends["bias_law.low"].low if "bias_law.low" in ends else 1.0
        if not 0 < lowest <= low <= high:
            raise SpecError("ranges.bias_law", (low, high), "time scales are above 0, and low never exceeds high")


def _check_path(spec: Spec, path: str) -> None:
    if path in LAW_ENDS:
        if not any(
            law is not None and law.kind in WITH_ENDS for law in (gate.bias_law for gate in spec.gates.values())
        ):
            raise SpecError("ranges", path, "no gate of the spec has a time-scale law")
        return
    if not is_number_path(spec, path):
        allowed = f"GATE.{'|'.join(GATE_NUMBERS)} with GATE of {', '.join(spec.gates)}"
        raise SpecError("ranges", path, f"fields are {', '.join(LAW_ENDS)}, input.{'|'.join(INPUT_FIELDS)}, {allowed}")


def _placed(spec: Spec, values: Mapping[str, Any]) -> Spec:
    """The spec with these fields, numbers or columns of a batch."""
    for path, value in values.items():
        if path not in LAW_ENDS:
            spec = spec.replace(path, value)
            continue
        end = path.partition(".")[2]
        for name, gate in spec.gates.items():
            if gate.bias_law is not None and gate.bias_law.kind in WITH_ENDS:
                law = (
                    replace(gate.bias_law, low=float(value))
                    if end == "low"
                    else replace(gate.bias_law, high=float(value))
                )
                spec = spec.replace(f"{name}.bias_law", law)
    return spec


def _sobol(dimensions: int, count: int, generator: torch.Generator) -> Tensor:
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
    return SobolEngine(dimensions, scramble=True, seed=seed).draw(count, dtype=torch.float64)


def _asked(
    spec: Spec,
    length: float,
    ranges: Sequence[Range],
    shares: Tensor,
    generator: torch.Generator,
    progress: Callable[[int], None] | None,
    done: int,
) -> dict[str, Quantity]:
    """Costs of the specs at ``shares`` (n, d) of the ranges; laws of biases are no numbers, so they go one by one."""
    alone = any(r.path in LAW_ENDS for r in ranges)
    answers = []
    for part in shares.split(1 if alone else _TOGETHER):
        values = {r.path: r.at(column) for r, column in zip(ranges, part.T, strict=True)}
        if alone:
            values = {path: value[0] for path, value in values.items()}
        found = costs(_placed(spec, values), length, generator=generator)
        answers.append({name: _flat(quantity, len(part)) for name, quantity in found.items()})
        done += len(part)
        if progress is not None:
            progress(done)
    return {name: _joined([answer[name] for answer in answers]) for name in COSTS}


def _flat(quantity: Quantity, count: int) -> Quantity:
    """One axis of ``count`` specs."""
    reasons = tuple((reason, where.reshape(count)) for reason, where in quantity.reasons)
    return Quantity(quantity.value.reshape(count), quantity.stderr.reshape(count), reasons)


def _joined(parts: Sequence[Quantity]) -> Quantity:
    """One after the other, reasons and all."""
    names = list(dict.fromkeys(reason for part in parts for reason, _ in part.reasons))

    def mask(part: Quantity, reason: str) -> Tensor:
        return dict(part.reasons).get(reason, torch.zeros_like(part.defined))

    reasons = tuple((name, torch.cat([mask(part, name) for part in parts])) for name in names)
    return Quantity(torch.cat([part.value for part in parts]), torch.cat([part.stderr for part in parts]), reasons)


def _counted(found: Mapping[str, Quantity], names: Sequence[str]) -> dict[str, Quantity]:
    return {name: found[name] for name in ("sight", *names)}


def _compared(found: Mapping[str, Quantity]) -> Tensor:
    """Specs that have every cost that some spec has; none where no sight is known at all."""
    present = [quantity.defined for quantity in found.values() if bool(quantity.defined.any())]
    if not bool(found["sight"].defined.any()):
        return torch.zeros_like(found["sight"].defined)
    return torch.stack(present).all(0)
