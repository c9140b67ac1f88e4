"""Second moments of the outputs of tied networks on given sequences, by sampled paths."""

from __future__ import annotations

import torch
from torch import Tensor

from isornn.cells import Values
from isornn.theory.population.units import HUGE, Draws
from isornn.theory.tied.inputs import GivenInput
from isornn.theory.tied.paths import Paths, TiedLaws


class TooLarge(ValueError):
    """A state grew beyond what is followed."""


class SequencePaths(Paths):
    """Paths on many sequences: in so many dimensions evenly spread variates are no better than independent ones."""

    def normals(self, columns: int, key: Tensor | None = None) -> Tensor:
        """Standard normals ``(columns * S, G, R, n)``."""
        shape = (columns * self.input.copies, *self.draws.shape)
        return torch.randn(shape, dtype=torch.float64, generator=self.draws.generator)


def output_moments(
    laws: TiedLaws, gram: Tensor, mean_over_steps: bool, units: int, replicates: int, generator: torch.Generator
) -> Tensor:
    """Means over units of ``o_a o_b``, o the last outputs or their means over the steps: ``(R, S, S)``.

    With matrices drawn once, ``W r^1, W r^2, ...`` are given the past Gaussian with second moments over the N units
    themselves. So each replicate is in law a network of ``units`` units, but for evenly spread biases.

    Args:
        laws: of one spec.
        gram: ``x_a^t . x_b^s / D``, ``(T, S, T, S)``.

    Raises:
        TooLarge: a state grew beyond what is followed.
    """
    cell = laws.units.cell
    paths = SequencePaths(laws, GivenInput(gram), Draws(1, replicates, units, generator), persistent=())
    total = gram.new_zeros(())
    for _ in range(len(gram)):
        u, x = paths.drawn()
        paths.move(u, x)
        states = paths.units.states
        output = cell.output(Values(**states), u)
        total = total + output if mean_over_steps else output
    if any(bool((value.detach().abs() >= HUGE).any()) for value in states.values()):
        raise TooLarge("states grew without bound")
    total = total / len(gram) if mean_over_steps else total
    read = total.expand(paths.input.copies, 1, replicates, units)[:, 0].movedim(0, 1)
    return read @ read.mT / units
