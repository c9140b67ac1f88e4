"""Displacements of a layer's states carried from step to step by the Jacobian, which is never formed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from isornn.cells import Values
from isornn.diagnosis.layers import LayerStep, States
from isornn.diagnosis.replay import CHUNK, Replay

Diagonals = Mapping[str, Tensor]


class Tangents:
    """``ds_(t+1) = J_t ds_t`` along a replay, for k directions of every sequence at once.

    What a cell does to one unit is differentiated for all steps of a chunk together: a diagonal for each state and
    pre-activation, so that a step is one product with the recurrent matrix and some with diagonals. A cell whose update
    mixes units has no diagonals; it is pushed by forward derivatives of the whole step, some five times slower.

    Args:
        replay: B sequences.
    """

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self._start = -1
        self._chunk: _Diagonal | _Mixed

    @torch.no_grad()
    def pushed(self, time: int, tangents: Tensor) -> Tensor:
        """Tangents (B, k, S) at ``time`` carried to ``time + 1``; S is the width of all states together."""
        start = time - time % CHUNK
        if start != self._start:
            kind = _Diagonal if self.replay.step.cell.pointwise else _Mixed
            self._start, self._chunk = start, kind.of(self.replay, start)
        parts = tangents.split(self.replay.step.sizes, -1)
        return torch.cat(self._chunk.pushed(time - start, parts), -1)


@dataclass(frozen=True)
class _Diagonal:
    """A chunk of steps: by new state, and by gate for what its matrix reads where that is gated, (c, B, 1, N) each.

    Keys are the names of states and gates with respect to which the derivative is.
    """

    step: LayerStep
    states: Mapping[str, Diagonals]
    reads: Mapping[str, Diagonals]

    @staticmethod
    def of(replay: Replay, start: int) -> _Diagonal:
        step, stop = replay.step, min(start + CHUNK, replay.steps)
        cell, layout = step.cell, step.layout
        x = replay.inputs[start:stop].double()
        before = tuple(values[start:stop] for values in replay.states)
        _, found = step(step.drive(x), before, step.pointwise(x))
        with torch.enable_grad():
            s = {name: value.detach().requires_grad_(True) for name, value in zip(cell.states, before, strict=True)}
            u = {gate: getattr(found, gate).detach().requires_grad_(True) for gate in cell.gates}
            held, values = Values(**s), Values(**u, **step.weights.units)
            new = cell.update(held, values, step.pointwise(x))
            gated = [gate for gate, reads in cell.gates.items() if reads.state and gate not in layout.plain]
            read = {gate: cell.read(gate, held, values) for gate in gated}
            leaves = s | u
            return _Diagonal(
                step,
                {name: _derivatives(new[name], leaves) for name in cell.states},
                {gate: _derivatives(value, leaves) for gate, value in read.items()},
            )

    def pushed(self, place: int, tangents: States) -> States:
        step = self.step
        known = dict(zip(step.cell.states, tangents, strict=True)) | step.shared_products(tangents[0])
        for gate, diagonals in self.reads.items():
            known[gate] = nn.functional.linear(_applied(diagonals, place, known), step.matrices[gate])
        blank = torch.zeros_like(tangents[-1])
        parts = [_applied(diagonals, place, known, blank) for diagonals in self.states.values()]
        return step.projected(parts)


@dataclass(frozen=True)
class _Mixed:
    """A chunk of steps of a cell that is not pointwise."""

    step: LayerStep
    states: States
    drive: Diagonals
    x: Tensor | None

    @staticmethod
    def of(replay: Replay, start: int) -> _Mixed:
        step, stop = replay.step, min(start + CHUNK, replay.steps)
        x = replay.inputs[start:stop].double().unsqueeze(2)
        return _Mixed(step, tuple(values[start:stop] for values in replay.states), step.drive(x), step.pointwise(x))

    def pushed(self, place: int, tangents: States) -> States:
        with forward_ad.dual_level():
            duals = tuple(
                forward_ad.make_dual(value[place].unsqueeze(1).repeat(1, part.shape[1], 1), part.contiguous())
                for value, part in zip(self.states, tangents, strict=True)
            )
            drive = {gate: value[place] for gate, value in self.drive.items()}
            new, _ = self.step(drive, duals, None if self.x is None else self.x[place])
            return tuple(forward_ad.unpack_dual(value).tangent for value in new)


def _derivatives(value: Tensor, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of a pointwise value with respect to the leaves that it depends on, elementwise."""
    if not value.requires_grad:
        return {}
    # Each element depends on its own unit's values alone, so the gradient of the sum is the elementwise derivative.
    found = torch.autograd.grad(value.sum(), list(leaves.values()), retain_graph=True, allow_unused=True)
    return {name: grad.unsqueeze(2) for name, grad in zip(leaves, found, strict=True) if grad is not None}


def _applied(diagonals: Diagonals, place: int, known: Mapping[str, Tensor], blank: Tensor | None = None) -> Tensor:
    """``sum_k D_k d_k`` over what changes; a gate that reads no state does not."""
    total = blank
    for name, diagonal in diagonals.items():
        if name in known:
            own = diagonal[place]
            total = own * known[name] if total is None else torch.addcmul(total, own, known[name])
    assert total is not None
    return total
