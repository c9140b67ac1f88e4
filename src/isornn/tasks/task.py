"""The interface of a task: items (x, y), each a function of its index, that a loader collates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import count
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.utils.data import Dataset

Item = tuple[Tensor, Tensor]
Part = Literal["train", "valid", "test"]

# What a seed's streams are for, so that a held-out set and a training run of equal seeds are not the same.
_ITEM, _ORDER, _POSITION = range(3)
_64_BITS = 2**64 - 1
GENERATED = "generated"  # the source of what `Task.draw` makes without files


class Task(Dataset[Item]):
    """A map-style Dataset of sequences whose item i depends on (``seed``, i) only.

    Whoever reads item i, worker or not, first or again after an interrupt, finds the same, so that a place in the
    data is one number.

    A subclass says what one item is in `draw`, and has these:

    Args:
        size: the number of items; None where they are drawn without end.
        seed: from 0.

    Attributes:
        name: which task, as records name it.
        source: which data; the package's own digits are named where they stand in for others.
        inputs: D of x (T, D), or the number of symbols where x is (T,).
        outputs: the number of classes where y holds integers, else the number of values.
        symbolic: x holds symbols, int64 (T,).
        per_step: y has an entry for each step; else one for the sequence, asked for at the last step.
        predicts_next: y is x one step on, which a model that reads backwards too would only have to copy.
        lengths_vary: items have different numbers of steps.
        columns: None, or the batch size that items are laid out for: item i + columns goes on where item i ends.
        baseline: the loss (mean cross-entropy in nats, or mean squared error) of the best answer without memory,
            where it is known in closed form.

    >>> class Copy(Task):
    ...     name = "copy"
    ...     def draw(self, index, generator):
    ...         x = torch.rand(5, 1, generator=generator)
    ...         return x, x
    >>> task = Copy(size=100, seed=0)
    >>> len(task), torch.equal(task[3][0], task[3][0])
    (100, True)
    """

    name: str
    source: str = GENERATED
    inputs: int
    outputs: int
    symbolic: bool = False
    per_step: bool = False
    predicts_next: bool = False
    lengths_vary: bool = False
    columns: int | None = None
    baseline: float | None = None

    def __init__(self, size: int | None, seed: int) -> None:
        if size is not None:
            at_least("size", size, 1, "it must be at least 1 item, or None for no end")
        self.size, self.seed = size, checked_seed(seed)

    @abstractmethod
    def draw(self, index: int, generator: torch.Generator) -> Item:
        """Item ``index``, with whatever is random about it from ``generator``."""

    def __getitem__(self, index: int) -> Item:
        if index < 0 or (self.size is not None and index >= self.size):
            raise IndexError(f"index: {index} is not allowed; {self.name} has {self.size or 'endless'} items, from 0")
        return self.draw(index, _generator(self.seed, _ITEM, index))

    def __iter__(self) -> Iterator[Item]:
        return map(self.__getitem__, count() if self.size is None else range(self.size))

    def __len__(self) -> int:
        if self.size is None:
            raise TypeError(f"{self.name}: items are drawn without end")
        return self.size

    @property
    def described(self) -> str:
        """Its name and its data's, as records have them."""
        return f"{self.name}; {self.source}"

    def __repr__(self) -> str:
        return f"<{self.described}; {'without end' if self.size is None else f'{self.size} items'}>"


class Stream(Dataset[Item]):
    """A task without end: position p has item p of one random order after another, its randomness fresh each time.

    Where a task has no end itself, or an order that matters, items come in that order.
    """

    def __init__(self, task: Task, seed: int) -> None:
        self.task, self.seed = task, seed
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def __getitem__(self, position: int) -> Item:
        return self.task.draw(self._index(position), _generator(self.task.seed, _POSITION, self.seed, position))

    def _index(self, position: int) -> int:
        if self.task.size is None:
            return position
        epoch, place = divmod(position, self.task.size)
        if self.task.columns is not None:
            return place
        if epoch != self._epoch:
            generator = _generator(self.task.seed, _ORDER, self.seed, epoch)
            self._epoch, self._order = epoch, torch.randperm(self.task.size, generator=generator)
        return int(self._order[place])


def _generator(seed: int, *key: int) -> torch.Generator:
    """A generator for each seed and key.

    torch's generator on the CPU keeps 32 bits of its seed. So two of n items have the same randomness with probability
    n^2 / 2^33: of a million items that a run sees some hundred twice, and one in 4000 runs has seen a given one.
    """
    state = seed
    for part in key:
        state = _split_mix(_split_mix(state) ^ part)
    return torch.Generator().manual_seed(_split_mix(state) >> 1)


def _split_mix(state: int) -> int:
    """SplitMix64: 64 bits to 64 bits, one to one, after which neighbours have nothing to do with each other.

    Source: Steele, Lea & Flood 2014.
    """
    state = (state + 0x9E3779B97F4A7C15) & _64_BITS
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _64_BITS
    return state ^ (state >> 31)


def checked_seed(seed: int) -> int:
    """``seed``, which must be one.

    Raises:
        ValueError: it is not.
    """
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed: {seed} is not allowed; it must be at least 0 and below 2**63")
    return seed


def checked_part(part: Part) -> Part:
    """``part``, which must be one of a data set's three.

    Raises:
        ValueError: it is not.
    """
    if part not in get_args(Part):
        raise ValueError(f"part: {part!r} is not allowed; it must be {', '.join(get_args(Part))}")
    return part


def at_least(field: str, value: int, least: int, why: str) -> None:
    """Refuse a number that is too small.

    Raises:
        ValueError: names the field, the value and what is allowed.
    """
    if value < least:
        raise ValueError(f"{field}: {value} is not allowed; {why}")
