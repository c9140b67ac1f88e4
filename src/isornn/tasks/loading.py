"""Batches of a task's items, time first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

from isornn.tasks.task import Item, Stream, Task, at_least, checked_seed

Batch = tuple[Tensor, ...]

NO_TARGET = -100
"""In the place of a class: torch's cross-entropy leaves it out. In the place of values there is NaN, which no loss
takes for one."""


def loader(task: Task, batch_size: int, seed: int = 0, *, start: int = 0, workers: int = 0) -> DataLoader[Batch]:
    """Batches of training without end, of which number k is a function of the task, ``batch_size``, ``seed`` and k.

    A task of n items gives one random order of all n after another, and a batch may lie across two of them; noise and
    augmentation are drawn afresh each time. Tasks whose ``columns`` say that order matters come in order; number k
    begins a new pass, with a new state, where ``task.new_pass(k)``.

    Args:
        task: what to load.
        batch_size: B.
        seed: of order, noise and augmentation, from 0.
        start: the number k of the first batch, as a run that goes on with batch ``start`` wants it.
        workers: processes that prepare batches; the batches do not depend on it.

    Returns:
        A DataLoader of (x, y), or (x, y, lengths) where the task's lengths vary:
        x (T, B, D), or (T, B) of symbols; y (B,) or (B, outputs), or (T, B) where the task has a target per step;
        lengths (B,). T is the batch's longest sequence; behind the end of a shorter one x is 0 and y is -100, which
        torch's cross-entropy leaves out, or NaN where y holds values.

    Raises:
        ValueError: an argument that is not allowed, or a batch size other than the task's columns.

    >>> from isornn.tasks import Copy
    >>> x, y = next(iter(loader(Copy(30), 4, start=1000)))
    >>> x.shape, y.shape
    (torch.Size([50, 4]), torch.Size([50, 4]))
    """
    _check(task, batch_size, workers)
    at_least("start", start, 0, "it must be the number of a batch, from 0")
    return _loader(task, Stream(task, checked_seed(seed)), _Positions(batch_size, start), workers)


def one_pass(task: Task, batch_size: int, *, workers: int = 0) -> DataLoader[Batch]:
    """Every item of a held-out task once, in order, as ``task[i]`` has it; the last batch may be smaller.

    Otherwise as `loader`.

    Raises:
        ValueError: as `loader`, and a task that has no end.

    >>> from isornn.tasks import Adding
    >>> [len(y) for x, y in one_pass(Adding(10, size=7), 3)]
    [3, 3, 1]
    """
    _check(task, batch_size, workers)
    if task.size is None:
        raise ValueError(f"task: {task.name} is not allowed; it has no end, give it a size")
    return _loader(task, task, _Pass(batch_size, task.size), workers)


def _check(task: Task, batch_size: int, workers: int) -> None:
    at_least("batch_size", batch_size, 1, "it must be at least 1")
    at_least("workers", workers, 0, "it must be a number of processes, at least 0")
    if task.columns not in (None, batch_size):
        raise ValueError(f"batch_size: {batch_size} is not allowed; {task.name} is laid out for {task.columns}")


class _Positions(Sampler[list[int]]):
    """Batch k has positions kB to kB + B - 1."""

    def __init__(self, batch_size: int, start: int) -> None:
        self.batch_size, self.start = batch_size, start

    def __iter__(self) -> Iterator[list[int]]:
        for k in count(self.start):
            yield list(range(k * self.batch_size, (k + 1) * self.batch_size))


class _Pass(Sampler[list[int]]):
    """Items 0 to n - 1 once."""

    def __init__(self, batch_size: int, size: int) -> None:
        self.batch_size, self.size = batch_size, size

    def __iter__(self) -> Iterator[list[int]]:
        for first in range(0, self.size, self.batch_size):
            yield list(range(first, min(first + self.batch_size, self.size)))

    def __len__(self) -> int:
        return -(-self.size // self.batch_size)


def _loader(task: Task, data: Dataset[Item], batches: Sampler[list[int]], workers: int) -> DataLoader[Batch]:
    collate = _padded if task.lengths_vary else _stacked
    return DataLoader(
        data,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=partial(collate, per_step=task.per_step),
        # It seeds workers, whose items do not care; without it that seed would come from torch's global generator.
        generator=torch.Generator(),
    )


def _stacked(items: Sequence[Item], per_step: bool) -> Batch:
    xs, ys = zip(*items, strict=True)
    return torch.stack(xs, 1), torch.stack(ys, 1 if per_step else 0)


def _padded(items: Sequence[Item], per_step: bool) -> Batch:
    xs, ys = zip(*items, strict=True)
    padding = math.nan if ys[0].is_floating_point() else NO_TARGET
    y = pad_sequence(list(ys), padding_value=padding) if per_step else torch.stack(ys)
    return pad_sequence(list(xs)), y, torch.tensor([len(x) for x in xs])
