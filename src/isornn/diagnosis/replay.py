"""A layer's sequence run again, step by step, in float64: every state, and the step as a function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from isornn.diagnosis.layers import LayerStep, States
from isornn.nn.recurrence import recurrence

CHUNK = 64


@dataclass(frozen=True)
class Replay:
    """One layer and direction over its sequences, in its own time: a reverse direction's first step is the last.

    Args:
        step: what one step is.
        inputs: (T, B, D), as the model has them; what lies behind a sequence's end is not looked at.
        lengths: (B,), at least 1 each.
        states: at times 0 .. T, (T + 1, B, .) each, float64; 0 is before the first step.
        output: (T, B, .), float64.
    """

    step: LayerStep
    inputs: Tensor
    lengths: Tensor
    states: States
    output: Tensor

    @staticmethod
    @torch.no_grad()
    def of(step: LayerStep, inputs: Tensor, lengths: Tensor, initial: Sequence[Tensor]) -> Replay:
        """Run the layer from its ``initial`` states (B, .), a chunk of steps at a time: inputs stay as they are."""
        length, batch = inputs.shape[:2]
        states = tuple(inputs.new_empty(length + 1, batch, size, dtype=torch.float64) for size in step.sizes)
        separate = None if step.gives_state else states[0].new_empty(length, batch, step.hidden)
        for whole, first in zip(states, initial, strict=True):
            whole[0] = first
        for start, stop in spans(length, 1024):
            x = inputs[start:stop].double()
            now = tuple(whole[start] for whole in states)
            found = recurrence(step.cell, step.layout, x, step.pointwise(x), step.weights, now)
            for whole, values in zip(states, found, strict=False):
                whole[start + 1 : stop + 1] = values
            if separate is not None:
                separate[start:stop] = found[-1]
        return Replay(step, inputs, lengths, states, states[0][1:] if separate is None else separate)

    @property
    def steps(self) -> int:
        """T."""
        return self.inputs.shape[0]

    @property
    def batch(self) -> int:
        """B."""
        return self.inputs.shape[1]

    @cached_property
    def inside(self) -> Tensor:
        """(T, B): whether the step belongs to the sequence."""
        return torch.arange(self.steps, device=self.lengths.device).unsqueeze(1) < self.lengths

    def at(self, time: int) -> States:
        """The states at one time, 0 .. T."""
        return tuple(values[time] for values in self.states)

    def select(self, sequences: Sequence[int]) -> Replay:
        """Some of the sequences, up to the end of the longest of them."""
        chosen = torch.as_tensor(sequences, device=self.lengths.device)
        lengths = self.lengths[chosen]
        stop = int(lengths.max())
        states = tuple(values[: stop + 1].index_select(1, chosen) for values in self.states)
        output = self.output[:stop].index_select(1, chosen)
        return replace(
            self, inputs=self.inputs[:stop].index_select(1, chosen), lengths=lengths, states=states, output=output
        )

    def longest(self, count: int) -> Replay:
        """At most ``count`` sequences, the longest; the first of equals."""
        return self.select(sorted(range(self.batch), key=lambda b: -int(self.lengths[b]))[:count])


def spans(length: int, size: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of runs of at most ``size`` that cover ``range(length)``.

    >>> list(spans(5, 2))
    [(0, 2), (2, 4), (4, 5)]
    """
    return ((start, min(start + size, length)) for start in range(0, length, size))
