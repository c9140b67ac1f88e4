"""What a checkpoint says of the data that a run was begun on, so that it does not go on with others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from isornn.tasks import Task
from isornn.training.problems import Problem

_ITEMS = 16  # of a part, evenly spaced
_NUMBERS = 4096  # of an item, from its beginning
_CLOSE = 1e-4  # relative: pixels are scaled and pooled on the machine


@dataclass(frozen=True)
class DataMark:
    """A problem's data by their name and by some of their items.

    Args:
        described: name and source.
        items: a few numbers of each of 16 items of every part that has an end: files of the same name that hold other
            data have others, unless they differ in a few items alone.

    >>> from isornn.training.problems import problem_named
    >>> mark = DataMark.of(problem_named("adding", {"length": 9, "held_out": 20}, batch_size=4))
    >>> mark.described, len(mark.items), mark.has_items(list(mark.items))
    ('adding(9); generated', 98, True)
    """

    described: str
    items: tuple[float, ...]

    @staticmethod
    def of(problem: Problem) -> DataMark:
        """Of a problem's three parts."""
        parts = (problem.training, problem.validation, problem.test)
        return DataMark(problem.training.described, tuple(number for part in parts for number in _of_part(part)))

    def has_items(self, kept: Any) -> bool:
        """Whether a checkpoint's numbers are these."""
        return (
            isinstance(kept, list)
            and len(kept) == len(self.items)
            and all(
                isinstance(one, float) and math.isclose(one, own, rel_tol=_CLOSE, abs_tol=_CLOSE)
                for one, own in zip(kept, self.items, strict=True)
            )
        )


def _of_part(part: Task) -> list[float]:
    """Its number of items, and of some their steps, inputs and targets; nothing of what is drawn without end."""
    if part.size is None:
        return []
    numbers = [float(part.size)]
    for item in torch.linspace(0, part.size - 1, min(part.size, _ITEMS)).long().tolist():
        x, y = part[item]
        numbers += [float(len(x)), *(_in_order(one) for one in (x, y))]
    return numbers


def _in_order(values: torch.Tensor) -> float:
    """A mean of numbers that changes with their order."""
    first = values.flatten()[:_NUMBERS].double().nan_to_num()
    return float((first * (1 + torch.arange(len(first)).double()).cos()).mean())
