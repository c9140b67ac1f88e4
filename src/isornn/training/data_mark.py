"""What a checkpoint says of the data that a run was begun on, so that it does not go on with others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isornn.tasks import Task
from isornn.training.problems import Problem

_ITEMS = 16  # of a part, evenly spaced
_NUMBERS = 4096  # of an item, from its beginning
_CLOSE = 1e-4  # pixels are scaled and pooled on the machine
_ROUNDING = 1e-9  # relative, well above that of sums in float64


@dataclass(frozen=True)
class DataMark:
    """A problem's data by their name and by some of their items.

    Args:
        described: name and source.
        numbers: statistics of 16 items of every part that has an end: files of the same name that hold other data have
            others, unless they differ in a few items alone.

    >>> from isornn.training.problems import problem_named
    >>> mark = DataMark.of(problem_named("adding", {"length": 9, "held_out": 20}, batch_size=4))
    >>> mark.described, len(mark.numbers), mark.agrees_with(list(mark.numbers))
    ('adding(9); generated', 226, True)
    """

    described: str
    numbers: tuple[float, ...]

    @staticmethod
    def of(problem: Problem) -> DataMark:
        """Of a problem's three parts."""
        parts = (problem.training, problem.validation, problem.test)
        return DataMark(problem.training.described, tuple(number for part in parts for number in _of_part(part)))

    def agrees_with(self, kept: Any) -> bool:
        """Whether a checkpoint's numbers are these."""
        return (
            isinstance(kept, list)
            and len(kept) == len(self.numbers)
            and all(
                isinstance(one, float) and math.isclose(one, own, rel_tol=_CLOSE, abs_tol=_CLOSE)
                for one, own in zip(kept, self.numbers, strict=True)
            )
        )


def _of_part(part: Task) -> list[float]:
    """Its number of items, and of some their steps, inputs and targets; nothing of what is drawn without end."""
    if part.size is None:
        return []
    numbers = [float(part.size)]
    for item in torch.linspace(0, part.size - 1, min(part.size, _ITEMS)).long().tolist():
        x, y = part[item]
        numbers += [float(len(x)), *_statistics(x), *_statistics(y)]
    return numbers


def _statistics(values: Tensor) -> tuple[float, float, float]:
    """Mean, standard deviation, and a mean of the standardised values that changes with their order."""
    first = values.flatten()[:_NUMBERS].double().nan_to_num(0.0, 0.0, 0.0)
    mean, deviation = first.mean(), first.std(correction=0)
    weights = torch.arange(1, len(first) + 1).double().cos()
    scale = deviation + _ROUNDING * mean.abs()  # constants have no order
    return float(mean), float(deviation), float(((first - mean) * weights).mean() / (scale or 1.0))
