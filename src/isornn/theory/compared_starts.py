"""Named starts side by side: over how many steps a cell carries information with each, and how that compares with T."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from isornn.cells import Cell, Input, Spec, SpecError, full_name
from isornn.cells.arguments import whole_number
from isornn.cells.starts import IN_USE, TEXTBOOK, start
from isornn.formatting import with_error_of
from isornn.notebook import table, tag
from isornn.theory.analysis import analyze
from isornn.theory.critical_points.point import critical
from isornn.theory.reasons import UNENDING, TheoryMissing
from isornn.theory.records import Analysis

COLUMNS = ("start", "reach, steps", "xi", "chi", "left after T", "verdict", "why not")
_LONGEST_PROFILE = 10_000  # further on it is continued by chi
# Verdicts by the largest ratio of reach to length that they are for.
_VERDICTS = ((0.1, "blind"), (0.5, "short"), (2.0, "fits"), (math.inf, "long"))


@dataclass(frozen=True)
class ComparedStart:
    """What a named start gives a cell.

    Args:
        name: as `isornn.init` has it, without its underscore; ``"critical"``.
        spec, analysis: its hyper-parameters, and the theory's answer; ``None`` where the cell has no such start or
            there is no theory of it.
        left, left_stderr: as the functions `left_after` and `left_stderr`.
        verdict: as `verdict`; ``"none"`` without an analysis.
        reason: why there is no analysis, or no reach.

    >>> from isornn.cells import Vanilla
    >>> first = compare(Vanilla(), 20, hidden=64, inputs=8).starts[0]
    >>> first.name, first.verdict, round(first.analysis.reach.number())
    ('critical', 'fits', 20)
    """

    name: str
    spec: Spec | None
    analysis: Analysis | None
    left: float | None
    left_stderr: float | None
    verdict: str
    reason: str | None

    def distance(self, length: float) -> float:
        """``|ln(reach / length)|``, infinite without a reach."""
        reach = None if self.analysis is None else self.analysis.reach.number()
        return abs(math.log(reach / length)) if reach else math.inf

    def to_json(self) -> dict[str, Any]:
        """One JSON object; what does not exist is null."""
        numbers: dict[str, float | None] = {}
        for name in ("reach", "xi", "chi"):
            found = None if self.analysis is None else getattr(self.analysis, name)
            numbers[name] = None if found is None else found.number()
            numbers[f"{name}_stderr"] = None if found is None else found.error()
        left = {"left": self.left, "left_stderr": self.left_stderr}
        return {"start": self.name, **numbers, **left, "verdict": self.verdict, "reason": self.reason}

    def row(self) -> tuple[str, ...]:
        """Its cells under `COLUMNS`."""
        found = self.to_json()
        numbers = (with_error_of(found[name], found[f"{name}_stderr"]) for name in ("reach", "xi", "chi", "left"))
        return self.name, *numbers, self.verdict, self.reason or ""


@dataclass(frozen=True)
class ComparedStarts:
    """What `compare` found; printed, a table.

    Args:
        cell, hidden, inputs, length: as asked for.
        starts: the one whose reach is closest to ``length`` first.

    >>> from isornn.cells import Vanilla
    >>> found = compare(Vanilla(), 20, hidden=64, inputs=8)
    >>> {one.name: one.verdict for one in found.starts}["torch"]
    'blind'
    """

    cell: Cell
    hidden: int
    inputs: int
    length: int
    starts: tuple[ComparedStart, ...]

    @property
    def heading(self) -> str:
        """The cell, its sizes and T."""
        return f"{self.cell.name}, N = {self.hidden}, D = {self.inputs}, T = {self.length}"

    def __str__(self) -> str:
        rows = [COLUMNS, *(one.row() for one in self.starts)]
        widths = [max(len(row[place]) for row in rows) for place in range(len(COLUMNS))]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join([self.heading, *(f"  {line}".rstrip() for line in lines)])

    def _repr_html_(self) -> str:
        return tag("h4", self.heading) + table(COLUMNS, (one.row() for one in self.starts))

    def to_json(self) -> dict[str, Any]:
        """One JSON object; what does not exist is null."""
        sizes = {"cell": full_name(self.cell), "hidden": self.hidden, "inputs": self.inputs, "length": self.length}
        return {**sizes, "starts": [one.to_json() for one in self.starts]}


def compare(
    cell: Cell,
    length: int,
    *,
    hidden: int,
    inputs: int,
    input: Input | None = None,
    in_use: bool = False,
    progress: Callable[[str], None] | None = None,
) -> ComparedStarts:
    """All starts of a cell side by side for sequences of T steps, the one whose reach is closest to T first.

    For each start `analyze` gives the reach, the steps after the first until the mean square P_t of a small change of
    the state has fallen to ``P_1 / e``, its rate ``chi`` a step and ``xi = -1/ln chi``, of infinitely many units with
    weights redrawn at every step. Beside them stand ``sqrt(P_T / P_1)`` (`left_after`) and a word for reach / T
    (`verdict`). Numbers have their standard error unless they are exact, that of ``sqrt(P_T / P_1)`` to first order.

    Args:
        cell: the cell.
        length: T, the number of steps to bridge, at least 1.
        hidden, inputs: N and D.
        input: the law of the input sequences; mean 0, variance 1 and independent steps by default.
        in_use: also the starts of libraries in use, which takes some 20 s more.
        progress: called with the name of each start before it is analysed.

    Raises:
        SpecError: sizes, a length or an input law outside what is allowed.

    Source: chi and xi: Gilboa et al. 2019, section 3; the starts: `isornn.cells.starts.start`.

    >>> from isornn.cells import Vanilla
    >>> print(compare(Vanilla(), 20, hidden=64, inputs=8))  # doctest: +ELLIPSIS
    vanilla, N = 64, D = 8, T = 20
      start         reach, steps  xi     chi ...
    """
    length = whole_number("length", length, what="whole number of steps")
    law = Input() if input is None else input
    # Sizes and input are checked once, so that only what is peculiar to a start is left as its reason.
    if Spec(cell, input=law).batch_shape:
        raise SpecError("input", law, "it must be one law, not a batch")
    start("torch", cell, hidden, inputs, length, law)
    found = []
    for name in (*TEXTBOOK, *(IN_USE if in_use else ()), "critical"):
        if progress is not None:
            progress(name)
        found.append(_compared(name, cell, hidden, inputs, length, law))
    return ComparedStarts(cell, hidden, inputs, length, tuple(sorted(found, key=lambda one: one.distance(length))))


def _compared(name: str, cell: Cell, hidden: int, inputs: int, length: int, input: Input) -> ComparedStart:
    try:
        if name == "critical":
            spec = critical(cell, length, input=input).spec
        else:
            spec = start(name, cell, hidden, inputs, length, input)
        found = analyze(spec, length=min(length, _LONGEST_PROFILE))
    except (SpecError, TheoryMissing) as reason:
        return ComparedStart(name, None, None, None, None, "none", str(reason))
    left = left_after(found, length), left_stderr(found, length)
    return ComparedStart(name, spec, found, *left, verdict(found, length), found.reach.reason())


def verdict(analysis: Analysis, length: int) -> str:
    """``blind`` up to a tenth of the length, ``short`` to a half, ``fits`` to twice, ``long``; ``endless`` where
    changes do not fade, ``unknown`` where the theory gives no reach."""
    reach = analysis.reach.number()
    if reach is None:
        return "endless" if analysis.reach.reason() == UNENDING else "unknown"
    return next(word for most, word in _VERDICTS if reach / length <= most)


def left_after(analysis: Analysis, length: int) -> float | None:
    """``sqrt(P_T / P_1)``: the norm of the response after T steps relative to one step; ``None`` where that is unknown,
    or P is negative.

    At T = reach it is ``e^(-1/2)``, 61 %, as the reach is of the mean square.

    Beyond the end of the profile it is continued by chi, where the decay is exponential.
    """
    profile = analysis.profile
    last = min(length, profile.shape[-1] - 1)
    first, end = float(profile[1]), float(profile[last])
    if not (math.isfinite(first) and math.isfinite(end)) or first <= 0 or end < 0:
        return None
    if last == length:
        return math.sqrt(end / first)
    chi = analysis.chi.number()
    if chi is None or not 0 <= chi < 1:
        return None
    return math.sqrt(end / first * chi ** (length - last))


def left_stderr(analysis: Analysis, length: int) -> float | None:
    """Standard error of `left_after`, to first order; ``None`` where that is unknown.

    All time scales share the relative error of xi, or of the reach where there is no xi.
    """
    left = left_after(analysis, length)
    scale = analysis.reach if analysis.xi.number() is None else analysis.xi
    time = scale.number()
    if left is None or not time:
        return None
    profile = analysis.profile
    last = min(length, profile.shape[-1] - 1)
    before = max(1, math.floor(0.9 * last))
    if left == 0 or last == before:
        return 0.0
    fall = float(profile[last] / profile[before])
    if not 0 < fall < math.inf:
        return None
    slope = math.log(fall) / 2 / math.log(last / before) * length / last
    return left * abs(slope) * (scale.error() or 0.0) / time
