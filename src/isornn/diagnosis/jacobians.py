"""The state-to-state Jacobian: singular values of one step, Lyapunov exponents, distance of nearby states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from isornn.capture.calls import States
from isornn.diagnosis.facts import JacobianAt, Lyapunov, Profile
from isornn.diagnosis.json_record import single
from isornn.diagnosis.linearised import Linearised, MixedSteps, linearised
from isornn.diagnosis.profiles import profile_of
from isornn.diagnosis.replay import CHUNK, Replay
from isornn.theory import Quantity

TIMES = 4
_WIDE, LARGEST = 1024, 4096  # widths of a layer's states from which one time is enough, and from which none
EXPONENTS, LYAPUNOV_SEQUENCES = 8, 2
SEQUENCES, DIRECTIONS, SETTLING = 8, 4, 100
_EVERY = 4  # steps between two decompositions, or two rescalings
TOO_SHORT = "the sequences are too short: exponents need at least 2 steps"
NOTHING_LEFT = "minus infinity: nothing of that many directions is left"


@torch.no_grad()
def jacobians(replay: Replay) -> tuple[JacobianAt, ...]:
    """At four times evenly over the sequence, the last among them; of states wider than 1024, of which a decomposition
    takes seconds, at the last alone, and at none of those wider than 4096."""
    width = sum(replay.step.sizes)
    if width > LARGEST:
        return ()
    one = replay.longest(1)
    identity = torch.eye(width, dtype=torch.float64, device=one.output.device).unsqueeze(0)
    directions = identity.split(one.step.sizes, -1)
    times = sorted({max(1, one.steps * (place + 1) // TIMES) for place in range(TIMES)})
    if width > _WIDE:
        times = times[-1:]
    # Rows are directions, so this is the transpose, which has the same singular values.
    found = [torch.cat(linearised(one, t - 1, t).pushed(0, directions), -1)[0] for t in times]
    return tuple(JacobianAt(t, torch.linalg.svdvals(rows).cpu()) for t, rows in zip(times, found, strict=True))


def lyapunov(replay: Replay, generator: torch.Generator, count: int = EXPONENTS) -> Lyapunov:
    """The ``count`` leading exponents by QR, matrix-free, over the last nine tenths of the steps.

    A random orthonormal frame is multiplied by the Jacobians and re-orthonormalised every four steps; the factors R
    give the growth. The standard error is over blocks of time and sequences, and includes that the frame may not have
    aligned with the leading directions yet (`_error`).

    Source: Benettin, Galgani, Giorgilli & Strelcyn 1980; for recurrent networks Vogt et al. 2022.
    """
    replay = replay.longest(LYAPUNOV_SEQUENCES)
    steps, width = int(replay.lengths.min()), sum(replay.step.sizes)
    count = min(count, width)
    if steps < 2:
        return Lyapunov((single(0.0, reasons={TOO_SHORT: True}),) * count, (0, steps), replay.batch)
    shape = (replay.batch, width, count)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64, device=generator.device)
    frame = torch.linalg.qr(drawn.to(replay.output.device)).Q
    push, growth, taken = Tangents(replay), [], []
    parts = _rows(frame, replay.step.sizes)
    start = steps // 10 // _EVERY * _EVERY
    for time in range(steps):
        parts = push.pushed(time, parts)
        if (time + 1) % _EVERY == 0 or time + 1 == steps:
            frame, r = torch.linalg.qr(torch.cat(parts, -1).mT)
            parts = _rows(frame, replay.step.sizes)
            if time >= start:
                growth.append(r.diagonal(dim1=-2, dim2=-1).abs().log().cpu())
                taken.append(min(_EVERY, time + 1 - time // _EVERY * _EVERY))
    return Lyapunov(_exponents(torch.stack(growth), torch.tensor(taken)), (start, steps), replay.batch)


def _rows(frame: Tensor, sizes: Sequence[int]) -> States:
    """By state, the columns of a frame (B, S, k) as tangents (B, k, .)."""
    return tuple(part.mT.contiguous() for part in frame.split(sizes, 1))


def _exponents(growth: Tensor, taken: Tensor) -> tuple[Quantity, ...]:
    """From (periods, B, k) of ln growth over ``taken`` (periods,) steps each."""
    blocks = max(1, min(8, len(growth)))
    edges = torch.linspace(0, len(growth), blocks + 1).round().long().tolist()
    rates = torch.stack([growth[a:b].sum(0) / taken[a:b].sum() for a, b in pairwise(edges)])
    mean = (growth.sum(0) / taken.sum()).mean(0)
    error = _error(rates) if blocks > 1 else torch.full_like(mean, math.inf)
    return tuple(
        single(float(m), float(e) if math.isfinite(m) else 0.0, {NOTHING_LEFT: bool(m.isinf())})
        for m, e in zip(mean, error, strict=True)
    )


def _error(rates: Tensor) -> Tensor:
    """Standard errors (k,) of the means of the rates (blocks, B, k).

    The frame takes as many steps to turn to the leading directions as one over the difference of neighbouring
    exponents. Until then rates drift, and differ from frame to frame, of which each sequence has its own. Beyond the
    blocks' noise the error counts twice the drift from the first half to the second, as rates approach their limits
    like 1/t or slower, and the difference of sequences.
    """
    blocks, batch, _ = rates.shape
    noise = rates.flatten(0, 1).var(0) / (blocks * batch)
    drift = rates[blocks // 2 :].mean((0, 1)) - rates[: (blocks + 1) // 2].mean((0, 1))
    frames = rates.mean(0).var(0) / batch if batch > 1 else torch.zeros_like(noise)
    return (noise + 4 * (drift.square() - 4 * noise).clamp(min=0) + (frames - noise).clamp(min=0)).sqrt()


def forward_profile(replay: Replay, generator: torch.Generator) -> Profile:
    """Distance of two copies of the state with the same input, by steps since the displacement.

    All states are displaced by ``ds ~ N(0, 1)``, four times for each of at most eight sequences, the longest, after a
    quarter of the steps or 100, where the states have settled. The displacement then follows the Jacobians,
    ``ds_(t+1) = J_t ds_t``: the limit of small distances, without rounding. Norms of a sequence are root mean squares
    over its four displacements.
    """
    replay = replay.longest(SEQUENCES)
    start = min(replay.steps // 4, SETTLING)
    # A sequence that has ended before the displacement would contribute nothing.
    start = min(start, int(replay.lengths.min()) // 4)
    width = sum(replay.step.sizes)
    shape = (replay.batch, DIRECTIONS, width)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64, device=generator.device)
    tangents: States = drawn.to(replay.output.device).split(replay.step.sizes, -1)
    scale = torch.zeros_like(replay.lengths, dtype=torch.float64)
    push, found, scales = Tangents(replay), [tangents], [scale]
    logs: list[Tensor] = []
    for time in range(start, replay.steps):
        tangents = push.pushed(time, tangents)
        if time % _EVERY == 0:
            tangents, scale = _rescaled(tangents, scale)
        found.append(tangents)
        scales.append(scale)
        if len(found) == CHUNK or time + 1 == replay.steps:
            logs.append(_log_norms(found) + torch.stack(scales).unsqueeze(1))
            found, scales = [], []
    times = torch.arange(start, replay.steps + 1, device=replay.lengths.device)
    whole = torch.where((times.unsqueeze(1) <= replay.lengths).unsqueeze(1), torch.cat(logs), torch.nan).cpu()
    return profile_of(dict(zip((*replay.step.cell.states, "all"), whole.unbind(1), strict=True)))


def _log_norms(tangents: Sequence[States]) -> Tensor:
    """(c, states + 1, B) of c times (B, k, .): ln norm, root mean square over directions; by state and of all."""
    squares = torch.stack([_squares(torch.stack(part)) for part in zip(*tangents, strict=True)], 1)
    return torch.cat([squares, squares.sum(1, keepdim=True)], 1).log() / 2


def _squares(tangents: Tensor) -> Tensor:
    """(..., B) of (..., B, k, .): squared norm, mean over directions."""
    return tangents.square().sum(-1).mean(-1)


def _rescaled(tangents: States, scale: Tensor) -> tuple[States, Tensor]:
    size = torch.stack([_squares(part) for part in tangents]).sum(0).sqrt()
    divisor = torch.where(size > 0, size, 1.0)
    return tuple(part / divisor[:, None, None] for part in tangents), scale + divisor.log()


class Tangents:
    """``ds_(t+1) = J_t ds_t`` along a replay, for k directions of every sequence at once.

    Args:
        replay: B sequences.
    """

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self._start = -1
        self._chunk: Linearised | MixedSteps

    @torch.no_grad()
    def pushed(self, time: int, tangents: States) -> States:
        """Tangents (B, k, .) by state at ``time``, carried to ``time + 1``."""
        start = time - time % CHUNK
        if start != self._start:
            self._start = start
            self._chunk = linearised(self.replay, start, min(start + CHUNK, self.replay.steps))
        return self._chunk.pushed(time - start, tangents)
