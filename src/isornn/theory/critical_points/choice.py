"""The critical point that an objective prefers, from a front over what the rule leaves open or weak."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from isornn.cells import Cell, Input, Spec, SpecError
from isornn.cells.openings import retention_signs
from isornn.theory.analysis import analyze
from isornn.theory.critical_points.front import LAW_ENDS, Objective, ParetoFront, Range, check_length
from isornn.theory.critical_points.rule import (
    WEAK,
    Biases,
    Family,
    bias_for,
    by_weights,
    family_of,
    mean_square,
    sight_of,
)
from isornn.theory.quantity import Quantity
from isornn.theory.reasons import BEYOND, UNENDING
from isornn.theory.records import Analysis

TRIES = 8  # points of a front that are measured with full effort, best first, until one has a reach of T
_UNIT_INPUT = Input()


def subspace(
    cell: Cell,
    length: float,
    *,
    fixed: Mapping[str, Any] | None = None,
    input: Input = _UNIT_INPUT,
    biases: Biases = "fixed",
) -> tuple[Spec, tuple[Range, ...]]:
    """What `isometric`'s rule decides and an objective leaves open: the rule's other fields as a spec, and the ranges.

    - ``biases="fixed"``: the ends of the law of time scales, ``low`` from 1 to T and ``high`` from T to 32 T.
      ``"redrawn"``: the retention gate's bias, that of time scales T/8 to 32 T.
    - the retention gate's weight_var from the rule's to 1, and its input_var up to 1 / the input's second moment.
    - a cell without a retention gate: its weight_var within 1/sqrt(T) of the critical value, relatively, and its
      input_var from 1/100 to 100 times the rule's.

    Fields in ``fixed`` are not varied. Arguments and errors as for `isometric`.

    >>> from isornn.cells import Vanilla
    >>> [free.path for free in subspace(Vanilla(), 100)[1]]
    ['h.weight_var', 'h.input_var']
    """
    check_length(length)
    fixed = dict(fixed or {})
    family = family_of(cell, input, biases, fixed, float(length))
    keep = tuple(retention_signs(cell))
    spec, ranges = _free_gates(family, length, keep) if keep else _free_weights(family, length)
    return spec, tuple(free for free in ranges if free.path not in fixed)


def _free_gates(family: Family, length: float, keep: tuple[str, ...]) -> tuple[Spec, list[Range]]:
    spec = family(1.0, length)
    fixed = spec.biases == "fixed"
    ranges = [Range(LAW_ENDS[0], 1.0, length, log=True), Range(LAW_ENDS[1], length, 32 * length, log=True)]
    ranges = ranges if fixed else []
    for name in keep:
        gate, reads, second = spec.gates[name], spec.cell.gates[name], mean_square(spec.input)
        if not fixed:
            low, high = sorted(bias_for(spec.cell, name, scale) for scale in (length / 8, 32 * length))
            ranges.append(Range(f"{name}.bias_mean", low, high))
        if reads.state:
            ranges.append(Range(f"{name}.weight_var", min(float(gate.weight_var) or WEAK, WEAK), 1.0, log=True))
        if reads.input:
            seen = 1e-4 / second
            ranges.append(Range(f"{name}.input_var", min(float(gate.input_var) or seen, seen), 1 / second, log=True))
    return spec, ranges


def _free_weights(family: Family, length: float) -> tuple[Spec, list[Range]]:
    spec = by_weights(family, length, length)
    near, ranges = 1 + length**-0.5, []
    for name, reads in spec.cell.gates.items():
        law = spec.gates[name]
        if reads.state:
            ranges.append(Range(f"{name}.weight_var", float(law.weight_var) / near, float(law.weight_var) * near, True))
        if reads.input and law.input_var:
            ranges.append(Range(f"{name}.input_var", float(law.input_var) / 100, float(law.input_var) * 100, True))
    return spec, ranges


def chosen(front: ParetoFront, objective: Objective, generator: torch.Generator | None = None) -> tuple[int, Analysis]:
    """Place and analysis of the point of ``front`` that `isometric` takes.

    The best by the objective's score that, measured with full effort, still has a reach of T; where none has, the one
    with the longest reach of those measured.

    Raises:
        SpecError: the front is empty.

    >>> from isornn.cells import Gate, Peephole, Spec
    >>> from isornn.theory import Range, pareto_front
    >>> base = Spec(Peephole(), {"i": Gate(input_var=0.1), "g": Gate(input_var=1.0)})
    >>> front = pareto_front(base, 50, [Range("f.bias_mean", 2.0, 7.0)], specs=16)
    >>> place, analysis = chosen(front, Objective())
    >>> bool(front.front[place])
    True
    """
    ranked = front.ranked(objective)
    if not ranked:
        raise SpecError("objective.ranges", [r.path for r in front.ranges], "no spec there has a fixed point")
    measured: list[tuple[float, int, Analysis]] = []
    for place in ranked[:TRIES]:
        analysis = analyze(front.spec_at(place), length=math.ceil(front.length), generator=generator)
        sees = steps_seen(sight_of(analysis, front.spec.biases))
        measured.append((sees, place, analysis))
        if sees >= front.length:
            return place, analysis
    return max(measured, key=lambda found: found[0])[1:]


def steps_seen(sight: Quantity) -> float:
    """The sight as a number to compare: infinite where changes do not fade in the steps followed, 0 without one."""
    value = sight.number()
    if value is not None:
        return value
    return math.inf if sight.reason() in (BEYOND, UNENDING) else 0.0
