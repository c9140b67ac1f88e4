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
    laws: TiedLaws, gram: Tensor, mean_over_steps: bool, units: int, generator: torch.Generator
) -> Tensor:
    """``E[o_a o_b]`` of the last outputs, or of their means over the steps, over ``units`` units: ``(S, S)``.

    Args:
        laws: of one spec.
        gram: ``x_a^t . x_b^s / D``, ``(T, S, T, S)``.

    Raises:
        TooLarge: a state grew beyond what is followed.
    """
    cell = laws.units.cell
    paths = SequencePaths(laws, GivenInput(gram), Draws(1, 1, units, generator), live=())
    total = gram.new_zeros(())
    for _ in range(len(gram)):
        u, x = paths.drawn()
        paths.move(u, x)
        states = paths.units.states
        output = cell.output(Values(**states), u)
        total = total + output if mean_over_steps else output
    if any(bool((value.detach().abs() >= HUGE).any()) for value in states.values()):
        raise TooLarge("states grew without bound")
    read = (total / len(gram) if mean_over_steps else total).expand(paths.input.copies, 1, 1, units)[:, 0, 0]
    return read @ read.mT / units
