"""The state-to-state Jacobian: singular values of one step, Lyapunov exponents of all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from isornn.diagnosis.numbers import listed, quantity_json, single
from isornn.diagnosis.replay import Replay
from isornn.diagnosis.tangents import Tangents
from isornn.theory import Quantity

TIMES, LARGEST = 4, 4096
EXPONENTS, SEQUENCES = 8, 2
_EVERY = 4  # steps between two decompositions
TOO_SHORT = "the sequences are too short: exponents need at least 2 steps"
NOTHING_LEFT = "minus infinity: nothing of that many directions is left"


@dataclass(frozen=True)
class JacobianAt:
    """Singular values of ``d s_t / d s_(t-1)``, all states side by side, along the first of the longest sequences.

    Args:
        time: t, in the layer's own order of steps.
        singular_values: from the largest, exact.
    """

    time: int
    singular_values: Tensor

    @property
    def mean_square(self) -> float:
        """m1, the mean squared singular value."""
        return float(self.singular_values.square().mean())

    def to_json(self) -> dict[str, object]:
        """One JSON object."""
        return {"time": self.time, "mean_square": self.mean_square, "singular_values": listed(self.singular_values)}


@dataclass(frozen=True)
class Lyapunov:
    """The leading Lyapunov exponents: growth of ln volume per step, direction by direction.

    Args:
        exponents: in the order of the decomposition, so from the largest but for their errors; finite-time values,
            mean over sequences of ``sum_t ln r_ii / T``.
        window: times from and to which growth is taken.
        sequences: how many, the longest.
    """

    exponents: tuple[Quantity, ...]
    window: tuple[int, int]
    sequences: int

    def to_json(self) -> dict[str, object]:
        """One JSON object."""
        return {
            "exponents": [quantity_json(exponent) for exponent in self.exponents],
            "window": list(self.window),
            "sequences": self.sequences,
        }


def jacobians(replay: Replay) -> tuple[JacobianAt, ...]:
    """At four times evenly over the sequence, the last among them; none where the states are wider than 4096."""
    width = sum(replay.step.sizes)
    if width > LARGEST:
        return ()
    one = replay.longest(1)
    push = Tangents(one)
    identity = torch.eye(width, dtype=torch.float64, device=one.output.device).unsqueeze(0)
    times = sorted({max(1, one.steps * (place + 1) // TIMES) for place in range(TIMES)})
    # Rows are directions, so this is the transpose, which has the same singular values.
    return tuple(JacobianAt(t, torch.linalg.svdvals(push.pushed(t - 1, identity)[0]).cpu()) for t in times)


def lyapunov(replay: Replay, generator: torch.Generator, count: int = EXPONENTS) -> Lyapunov:
    """The ``count`` leading exponents by QR, matrix-free, over the last nine tenths of the steps.

    An orthonormal frame, drawn at random, is carried by the Jacobians and made orthonormal again every four steps;
    what is taken out of it is the growth. The error of the mean is over blocks of time and sequences, and does not
    count that the frame has not turned to the leading directions from the start.

    Source: Benettin, Galgani, Giorgilli & Strelcyn 1980; for recurrent networks Vogt et al. 2022.
    """
    replay = replay.longest(SEQUENCES)
    steps, width = int(replay.lengths.min()), sum(replay.step.sizes)
    count = min(count, width)
    if steps < 2:
        return Lyapunov((single(0.0, reasons={TOO_SHORT: True}),) * count, (0, steps), replay.batch)
    shape = (replay.batch, width, count)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64, device=generator.device)
    frame = torch.linalg.qr(drawn.to(replay.output.device)).Q
    push, growth, taken = Tangents(replay), [], []
    start = steps // 10 // _EVERY * _EVERY
    for time in range(steps):
        frame = push.pushed(time, frame.mT.contiguous()).mT
        if (time + 1) % _EVERY == 0 or time + 1 == steps:
            frame, r = torch.linalg.qr(frame)
            if time >= start:
                growth.append(r.diagonal(dim1=-2, dim2=-1).abs().log().cpu())
                taken.append(min(_EVERY, time + 1 - time // _EVERY * _EVERY))
    return Lyapunov(_exponents(torch.stack(growth), torch.tensor(taken)), (start, steps), replay.batch)


def _exponents(growth: Tensor, taken: Tensor) -> tuple[Quantity, ...]:
    """From (periods, B, k) of ln growth over ``taken`` (periods,) steps each."""
    blocks = max(1, min(8, len(growth)))
    edges = torch.linspace(0, len(growth), blocks + 1).round().long().tolist()
    rates = torch.stack([growth[a:b].sum(0) / taken[a:b].sum() for a, b in pairwise(edges)]).flatten(0, 1)
    mean = (growth.sum(0) / taken.sum()).mean(0)
    error = rates.std(0) / math.sqrt(len(rates)) if len(rates) > 1 else torch.full_like(mean, math.inf)
    return tuple(
        single(float(m), float(e) if math.isfinite(m) else 0.0, {NOTHING_LEFT: bool(m.isinf())})
        for m, e in zip(mean, error, strict=True)
    )
