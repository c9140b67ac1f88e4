"""How fast two nearby states come together or part when both hear the same input."""

from __future__ import annotations

import torch
from torch import Tensor

from isornn.diagnosis.profiles import Profile, profile_of
from isornn.diagnosis.replay import Replay
from isornn.diagnosis.tangents import Tangents

SEQUENCES, DIRECTIONS, SETTLING = 8, 4, 100


def forward_profile(replay: Replay, generator: torch.Generator) -> Profile:
    """Norm of the difference of two copies against the steps since they were parted, for differences however small.

    The copies are parted in all states by ``ds ~ N(0, 1)``, four times for each of at most eight sequences, the
    longest, after a quarter of the steps or 100, where the states have settled. The difference then follows the
    Jacobians, ``ds_(t+1) = J_t ds_t``: the limit of copies that are ever nearer, without their rounding. Norms of
    a sequence are root mean squares over its four differences.
    """
    replay = replay.longest(SEQUENCES)
    start = min(replay.steps // 4, SETTLING)
    # Parted where some sequences have ended already, those would have nothing to say.
    start = min(start, int(replay.lengths.min()) // 4)
    width = sum(replay.step.sizes)
    shape = (replay.batch, DIRECTIONS, width)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64, device=generator.device)
    tangents, scale = drawn.to(replay.output.device), torch.zeros_like(replay.lengths, dtype=torch.float64)
    push, names = Tangents(replay), (*replay.step.cell.states, "all")
    logs: dict[str, list[Tensor]] = {name: [] for name in names}
    for time in range(start, replay.steps + 1):
        parts = (*tangents.split(replay.step.sizes, -1), tangents)
        known = time <= replay.lengths
        for name, part in zip(names, parts, strict=True):
            logs[name].append(torch.where(known, _log_norm(part) + scale, torch.nan))
        if time < replay.steps:
            tangents, scale = _rescaled(push.pushed(time, tangents), scale)
    return profile_of({name: torch.stack(values).cpu() for name, values in logs.items()})


def _log_norm(tangents: Tensor) -> Tensor:
    return tangents.square().sum(-1).mean(-1).log() / 2


def _rescaled(tangents: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    size = tangents.square().mean((-1, -2)).sqrt()
    there = size > 0
    divisor = torch.where(there, size, 1.0)
    return tangents / divisor[:, None, None], scale + divisor.log()
