"""Gradients of a scalar with respect to a layer's outputs, which may be far below what a float holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from isornn.capture.calls import States
from isornn.diagnosis.replay import Replay
from isornn.nn.sequences import within


@dataclass(frozen=True)
class Scaled:
    """``values * exp(scale)``, which may be beyond what a float64 holds.

    Args:
        values: (T, B, .), the largest of each step and sequence of size 1, or all of them 0.
        scale: (T, B, 1); -inf where values are 0.
    """

    values: Tensor
    scale: Tensor

    @staticmethod
    def of(values: Tensor, scale: Tensor | float = 0.0) -> Scaled:
        """``values * exp(scale)``, scale (B, 1) or (T, B, 1)."""
        size = values.double().abs().amax(-1, keepdim=True)
        return Scaled(values.double() / torch.where(size > 0, size, 1.0), size.log() + scale)

    @staticmethod
    def joined(parts: Iterable[Scaled]) -> Scaled:
        """Parts one after the other in time."""
        values, scales = zip(*((part.values, part.scale) for part in parts), strict=True)
        return Scaled(torch.cat(values), torch.cat(scales))

    def at(self, scale: Tensor) -> Tensor:
        """The values times ``exp(self.scale - scale)``, scale (B, 1) or (T, B, 1)."""
        return torch.where(self.values == 0, 0.0, self.values * (self.scale - scale).exp())

    def __add__(self, other: Scaled) -> Scaled:
        larger = torch.maximum(self.scale, other.scale)
        return Scaled.of(self.at(larger) + other.at(larger), larger)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Scaled:
        """Both parts by a function that moves steps or sequences, or takes some."""
        return Scaled(function(self.values), function(self.scale))


class Cotangent(Protocol):
    """Gradients of a scalar with respect to a layer's outputs, and to its states at some times."""

    @property
    def ends(self) -> Mapping[int, tuple[States, Tensor]]:
        """By time, gradients with respect to the states then, (B, .) each, and for which sequences, (B,).

        They are total: the contribution of later steps is included.
        """
        ...

    def of_output(self, start: int, stop: int) -> Scaled:
        """(stop - start, B, .): with respect to the outputs of these steps, all other outputs held."""
        ...


@dataclass(frozen=True)
class LastOutput:
    """A Gaussian vector times each sequence's last output: ``v . o_L``, ``v_i ~ N(0, 1)``, one v for each sequence.

    Args:
        vectors: (B, .).
        lengths: (B,).
    """

    vectors: Tensor
    lengths: Tensor

    @staticmethod
    def drawn(replay: Replay, generator: torch.Generator) -> LastOutput:
        """Drawn on the generator's device, so that equal seeds give equal profiles on all."""
        shape = (replay.batch, replay.output.shape[-1])
        vectors = torch.randn(shape, generator=generator, dtype=torch.float64, device=generator.device)
        return LastOutput(vectors.to(replay.output.device), replay.lengths)

    def of_output(self, start: int, stop: int) -> Scaled:
        steps = torch.arange(start, stop, device=self.lengths.device).unsqueeze(1)
        return Scaled.of(torch.where((steps == self.lengths - 1).unsqueeze(-1), self.vectors, 0.0))

    @property
    def ends(self) -> Mapping[int, tuple[States, Tensor]]:
        return {}

    def entering(self, steps: int) -> Tensor:
        """(T + 1, B): its norm at each sequence's end, else 0."""
        blank = self.vectors.new_zeros(steps + 1, len(self.lengths))
        return blank.scatter(0, self.lengths.unsqueeze(0), self.vectors.norm(dim=-1).unsqueeze(0))


@dataclass(frozen=True)
class LossCotangent:
    """A loss's gradients with respect to a layer's outputs (T, B, .), and to its states at the ends of its calls."""

    outputs: Scaled
    ends: Mapping[int, tuple[States, Tensor]]

    def of_output(self, start: int, stop: int) -> Scaled:
        return self.outputs.mapped(lambda values: values[start:stop])

    def last_alone(self, lengths: Tensor) -> LossCotangent:
        """The same without what enters before each sequence's last step.

        What enters at the end of an earlier call has what comes from later ones in it, unless it is 0, where autograd
        was cut.
        """
        steps = torch.arange(len(self.outputs.values), device=lengths.device).unsqueeze(1)
        is_last = (steps == lengths - 1).unsqueeze(-1)
        values = torch.where(is_last, self.outputs.values, 0.0)
        scale = torch.where(is_last, self.outputs.scale, -torch.inf)
        ends = {}
        for time, (states, which) in self.ends.items():
            cut = not any(bool(state[which].any()) for state in states)
            which = which if cut else which & (lengths == time)
            if bool(which.any()):
                ends[time] = states, which
        return LossCotangent(Scaled(values, scale), ends)

    def enters_where(self, other: LossCotangent) -> bool:
        """Whether both enter at the same steps."""
        if self.ends.keys() != other.ends.keys() or not torch.equal(self.outputs.scale, other.outputs.scale):
            return False
        return all(torch.equal(which, other.ends[time][1]) for time, (_, which) in self.ends.items())

    def share_of_steps(self, lengths: Tensor) -> float:
        """Of all steps, those at which a gradient enters the outputs or the last states."""
        entered = self.outputs.scale.squeeze(-1) > -torch.inf
        for time, (states, which) in self.ends.items():
            given = torch.stack([(state != 0).any(-1) for state in states]).any(0) & which
            if time > 0:
                entered[time - 1] |= given
        inside = within(lengths, len(entered))
        return float((entered & inside).sum()) / int(lengths.sum())

    def entering(self) -> Tensor:
        """(T + 1, B): norms of what enters the states at time t, by the output of the step before or as last states."""
        norms = self.outputs.at(torch.zeros_like(self.outputs.scale)).norm(dim=-1)
        found = torch.cat([norms.new_zeros(1, norms.shape[1]), norms])
        for time, (states, which) in self.ends.items():
            found[time] += torch.where(which, torch.cat(states, -1).double().norm(dim=-1), 0.0)
        return found
