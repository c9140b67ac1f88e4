"""Comparisons of two rows of a table over several seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from isornn.experiments.target import Answer
from isornn.figures import Curve

WORDS = {True: "yes", False: "the other way round", None: "seeds mix"}
"""Of `below`."""


SAID = {True: "yes", False: "no", None: "cannot tell"}
"""Of the parts of a claim, as `answer_of` has them."""


def below(low: Sequence[float], high: Sequence[float]) -> bool | None:
    """Whether all of ``low`` are below all of ``high``; false where it is the other way round, else ``None``.

    >>> below([1, 2], [3]), below([3], [1, 2]), below([1, 3], [2])
    (True, False, None)
    """
    if max(low) < min(high):
        return True
    return False if min(low) > max(high) else None


def of_all(seeds: Sequence[bool]) -> bool | None:
    """Whether it is so with every seed, or with none; ``None`` where they differ.

    >>> of_all([True, True]), of_all([False, False]), of_all([True, False])
    (True, False, None)
    """
    return all(seeds) if len(set(seeds)) == 1 else None


def answer_of(parts: Mapping[str, bool | None]) -> Answer:
    """Holds where all parts do; one part that is false refutes the claim."""
    answers = list(parts.values())
    return "does not hold" if False in answers else "holds" if None not in answers else "cannot tell"


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
