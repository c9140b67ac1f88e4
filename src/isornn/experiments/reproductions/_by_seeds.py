"""Comparisons of two rows of a table over several seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from scipy.special import stdtrit

from isornn.experiments.target import UNTESTED, Answer, Effect
from isornn.figures import Curve

WORDS = {True: "yes", False: "the other way round", None: "seeds mix"}
"""Of `below`."""


SAID = {True: "yes", False: "no", None: "not decided"}
"""Of the parts of a claim, as `answer_of` has them."""


def below(low: Sequence[float], high: Sequence[float]) -> bool | None:
    """Whether all of ``low`` are below all of ``high``; false where it is the other way round, else ``None``.

    >>> below([1, 2], [3]), below([3], [1, 2]), below([1, 3], [2])
    (True, False, None)
    """
    if max(low) < min(high):
        return True
    return False if min(low) > max(high) else None


def in_order(low: Sequence[float], high: Sequence[float]) -> bool | None:
    """`below`, which one seed of a side does not decide: nothing says how far another would be off.

    >>> in_order([1, 2], [3, 4]), in_order([1], [3])
    (True, None)
    """
    return below(low, high) if min(len(low), len(high)) > 1 else None


def of_all(seeds: Sequence[bool]) -> bool | None:
    """Whether it is so with every seed, or with none; ``None`` where they differ.

    >>> of_all([True, True]), of_all([False, False]), of_all([True, False])
    (True, False, None)
    """
    return all(seeds) if len(set(seeds)) == 1 else None


def answer_of(parts: Mapping[str, bool | None] | Sequence[bool | None]) -> Answer:
    """Holds where all parts do; one part that is false refutes the claim."""
    answers = list(parts.values() if isinstance(parts, Mapping) else parts)
    return "does not hold" if False in answers else "holds" if None not in answers else UNTESTED


def all_known(parts: Iterable[bool | None]) -> bool | None:
    """Whether all are true; ``None`` where none is false and some are not decided.

    >>> all_known([True, True]), all_known([True, None]), all_known([None, False])
    (True, None, False)
    """
    found = list(parts)
    return False if False in found else None if None in found else True


def effect(what: str, values: Sequence[float], published: str = "") -> Effect:
    """The mean over seeds with Student's 95 % interval.

    >>> one = effect("accuracy", [0.5, 0.6, 0.7])
    >>> round(one.value, 3), round(one.low, 3), round(one.high, 3)
    (0.6, 0.352, 0.848)
    """
    if not all(map(math.isfinite, values)):
        return Effect(what, None, seeds=len(values), published=published)
    half = _half_interval(_variance(values) / len(values), len(values) - 1) if len(values) > 1 else None
    return _effect(what, mean(values), half, len(values), published)


def factor(what: str, values: Sequence[float], published: str = "") -> Effect:
    """The geometric mean over seeds of positive numbers, with Student's 95 % interval of their logarithms.

    >>> one = factor("times as long", [1.0, 2.0, 4.0])
    >>> round(one.value, 3), round(one.low, 3), round(one.high, 3)
    (2.0, 0.357, 11.19)
    """
    logs = effect(what, [math.log(value) if value > 0 else -math.inf for value in values], published)
    value, low, high = (None if x is None else math.exp(x) for x in (logs.value, logs.low, logs.high))
    return Effect(what, value, low, high, len(values), published)


def difference(what: str, first: Sequence[float], second: Sequence[float], published: str = "") -> Effect:
    """First's mean over seeds less second's, with Welch's 95 % interval.

    >>> one = difference("a - b", [1.0, 2.0, 3.0], [0.0, 0.5, 1.0])
    >>> round(one.value, 3), round(one.low, 3), round(one.high, 3)
    (1.5, -0.578, 3.578)
    """
    seeds = min(len(first), len(second))
    if not all(map(math.isfinite, (*first, *second))):
        return Effect(what, None, seeds=seeds, published=published)
    half = None
    if seeds > 1:
        parts = [_variance(values) / len(values) for values in (first, second)]
        below = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True))
        half = _half_interval(sum(parts), sum(parts) ** 2 / below) if below else 0.0
    return _effect(what, mean(first) - mean(second), half, seeds, published)


def above(one: Effect, bar: float = 0.0) -> bool | None:
    """Whether the whole interval is above ``bar``; false if it is below, ``None`` where the bar lies within it."""
    if one.low is None or one.high is None:
        return None
    return True if one.low > bar else False if one.high < bar else None


def _effect(what: str, value: float, half: float | None, seeds: int, published: str) -> Effect:
    low, high = (None, None) if half is None else (value - half, value + half)
    return Effect(what, value, low, high, seeds, published)


def _variance(values: Sequence[float]) -> float:
    return statistics.variance(values)


def _half_interval(variance: float, freedom: float) -> float:
    return float(stdtrit(freedom, 0.975)) * math.sqrt(variance)


def known(losses: Sequence[float | None]) -> list[float]:
    """Infinite where a run has ended without one, which a record has as ``None``.

    >>> known([1.0, None])
    [1.0, inf]
    """
    return [math.inf if loss is None else loss for loss in losses]


def mean(values: Sequence[float]) -> float:
    """Over seeds."""
    return sum(values) / len(values)


def mean_range(values: Sequence[float], form: str = ".3f") -> str:
    """The mean, and the range over seeds, if there are several.

    >>> mean_range([1.0, 2.0], ".1f"), mean_range([1.0], ".1f")
    ('1.5 (1.0 to 2.0)', '1.0')
    """
    reach = f" ({min(values):{form}} to {max(values):{form}})" if len(values) > 1 else ""
    return f"{mean(values):{form}}{reach}"


def points(x: Sequence[float], values: Sequence[Sequence[float]], label: str, colour: int | None = None) -> Curve:
    """A point for each mean, with half the range as its error; none where a value is infinite."""
    finite = [all(map(math.isfinite, each)) for each in values]
    means = [mean(each) if there else None for each, there in zip(values, finite, strict=True)]
    half = [(max(each) - min(each)) / 2 if there else 0.0 for each, there in zip(values, finite, strict=True)]
    return Curve(x, means, label, "points", half, colour)
