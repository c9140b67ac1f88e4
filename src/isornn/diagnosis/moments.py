"""The state's moments over time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.diagnosis.numbers import listed, thinned
from isornn.diagnosis.replay import Replay


@dataclass(frozen=True)
class StateMoments:
    """One state's moments over units and sequences, at some of the times; exact for this batch.

    Args:
        times: from 1 to T in the layer's own order of steps; every one up to 128, then ever fewer.
        mean: ``mu = E[h]``.
        second_moment: ``Q = E[h^2]``.
        correlation: ``(E[h_a h_b] - mu^2) / (Q - mu^2)`` over pairs of different sequences; NaN where fewer than two
            sequences are left or no unit varies.
        spread: standard deviation over sequences of a sequence's own mean square over units; NaN for one sequence.
    """

    times: Tensor
    mean: Tensor
    second_moment: Tensor
    correlation: Tensor
    spread: Tensor

    def to_json(self) -> dict[str, object]:
        """One JSON object; what is not defined is null."""
        names = ("mean", "second_moment", "correlation", "spread")
        return {"times": self.times.tolist(), **{name: listed(getattr(self, name)) for name in names}}


def state_moments(replay: Replay) -> dict[str, StateMoments]:
    """Of every state of the cell, by name."""
    times = thinned(replay.steps) + 1
    names = replay.step.cell.states
    return {name: _moments(values, replay.inside, times) for name, values in zip(names, replay.states, strict=True)}


def _moments(values: Tensor, inside: Tensor, times: Tensor) -> StateMoments:
    rows = torch.stack([torch.stack(_at(values[time], inside[time - 1])) for time in times.tolist()]).cpu()
    return StateMoments(times, *rows.unbind(1))


def _at(values: Tensor, inside: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, second moment, correlation, spread of (B, N) over the sequences that go on."""
    own = values[inside]
    missing = own.new_tensor(math.nan)
    count = len(own)
    if count == 0:
        return missing, missing, missing, missing
    mean, square = own.mean(), own.square().mean()
    if count == 1:
        return mean, square, missing, missing
    # sum over pairs a != b of h_a h_b = (sum h)^2 - sum h^2
    together = ((own.sum(0).square() - own.square().sum(0)) / (count * (count - 1))).mean()
    variance = square - mean.square()
    varies = variance > 1e-12 * square
    correlation = torch.where(varies, (together - mean.square()) / torch.where(varies, variance, 1.0), missing)
    return mean, square, correlation, own.square().mean(1).std()
