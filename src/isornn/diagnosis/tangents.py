"""Displacements of a layer's states carried from step to step by the Jacobian, which is never formed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from isornn.diagnosis.layers import States
from isornn.diagnosis.replay import CHUNK, Replay


class Tangents:
    """``ds_(t+1) = J_t ds_t`` along a replay, for k directions of every sequence at once, by forward derivatives.

    Args:
        replay: B sequences.
    """

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self._start = -1
        self._drive: dict[str, Tensor] = {}
        self._x: Tensor | None = None

    @torch.no_grad()
    def pushed(self, time: int, tangents: Tensor) -> Tensor:
        """Tangents (B, k, S) at ``time`` carried to ``time + 1``; S is the width of all states together."""
        replay, step = self.replay, self.replay.step
        drive, x = self._driven(time)
        count = tangents.shape[1]
        with forward_ad.dual_level():
            duals = tuple(
                forward_ad.make_dual(value[time].unsqueeze(1).repeat(1, count, 1), part.contiguous())
                for value, part in zip(replay.states, tangents.split(step.sizes, -1), strict=True)
            )
            new, _ = step(drive, duals, x)
            parts = [forward_ad.unpack_dual(value) for value in new]
            return torch.cat([_tangent(part.primal, part.tangent) for part in parts], -1)

    def _driven(self, time: int) -> tuple[dict[str, Tensor], Tensor | None]:
        start = time - time % CHUNK
        if start != self._start:
            x = self.replay.inputs[start : start + CHUNK].double().unsqueeze(2)
            self._start, self._drive, self._x = start, self.replay.step.drive(x), self.replay.step.pointwise(x)
        place = time - start
        return {gate: value[place] for gate, value in self._drive.items()}, None if self._x is None else self._x[place]


def _tangent(primal: Tensor, tangent: Tensor | None) -> Tensor:
    # A state that is not formed from the old states has none.
    return torch.zeros_like(primal) if tangent is None else tangent


def joined(states: States) -> Tensor:
    """The states side by side, (..., S)."""
    return torch.cat(states, -1)
