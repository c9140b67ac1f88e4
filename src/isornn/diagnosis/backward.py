"""How far a gradient comes back through a layer: exact, by the layer's own steps, and without underflow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from isornn.diagnosis.layers import States
from isornn.diagnosis.profiles import Profile, profile_of
from isornn.diagnosis.replay import CHUNK, Replay, spans


class Cotangent(Protocol):
    """What a scalar says to a layer: its gradients with respect to what the layer gives out."""

    @property
    def ends(self) -> Mapping[int, tuple[States, Tensor]]:
        """By time, gradients with respect to the states then, (B, .) each, and for which sequences, (B,).

        They are whole: what comes from later steps is in them.
        """
        ...

    def of_output(self, start: int, stop: int) -> Tensor:
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

    def of_output(self, start: int, stop: int) -> Tensor:
        steps = torch.arange(start, stop, device=self.lengths.device).unsqueeze(1)
        return torch.where((steps == self.lengths - 1).unsqueeze(-1), self.vectors, 0.0)

    @property
    def ends(self) -> Mapping[int, tuple[States, Tensor]]:
        return {}


@dataclass(frozen=True)
class Carried:
    """Gradients with respect to the states at one time, times ``exp(-scale)``, which keeps them within range.

    Args:
        parts: (B, .) by state.
        scale: (B,).
    """

    parts: States
    scale: Tensor


def gradient_norms(
    replay: Replay, cotangent: Cotangent, of_inputs: Callable[[int, int, Tensor], None] | None = None
) -> dict[str, Tensor]:
    """ln of the norm over units of d scalar / d s_t for t = 0 .. T: (T + 1, B) by state, and of all together.

    The states at one time are independent coordinates, as in the state-to-state Jacobian: for an LSTM, the gradient
    with respect to c_t is what goes on with c to the next step, not what o_t tanh(c_t) shows of it at step t.

    Args:
        replay: the layer's sequences.
        cotangent: the scalar.
        of_inputs: is given (start, stop, d scalar / d inputs) of every chunk of steps, from the last.
    """
    names = (*replay.step.cell.states, "all")
    logs = {name: replay.states[0].new_empty(replay.steps + 1, replay.batch) for name in names}
    carried = Carried(tuple(torch.zeros_like(v) for v in replay.at(0)), torch.zeros_like(logs["all"][0]))
    for start, stop in _backwards(replay.steps, cotangent.ends):
        if stop in cotangent.ends:
            carried = _replaced(carried, *cotangent.ends[stop])
        outputs = cotangent.of_output(start, stop).double()
        carried, outputs = _on_one_scale(carried, outputs)
        at_inputs, found = _through(replay, start, stop, carried.parts, outputs)
        for name, states in zip(names, [*zip(*found, strict=True), None], strict=False):
            sizes = [torch.cat(parts, -1) for parts in found] if states is None else list(states)
            logs[name][start + 1 : stop + 1] = torch.stack(sizes[1:]).norm(dim=-1).log() + carried.scale
            if start == 0:
                logs[name][0] = sizes[0].norm(dim=-1).log() + carried.scale
        if of_inputs is not None:
            of_inputs(start, stop, at_inputs * carried.scale.exp().unsqueeze(-1))
        carried = Carried(found[0], carried.scale)
    return logs


def backward_profile(replay: Replay, cotangent: Cotangent) -> Profile:
    """Norm of the gradient against the number of steps from the state to its sequence's end."""
    return by_lag(replay, gradient_norms(replay, cotangent))


def by_lag(replay: Replay, logs: dict[str, Tensor]) -> Profile:
    """Norms (T + 1, B) by time, as a profile over lags: lag l is the state l steps before the sequence's end."""
    lags = torch.arange(replay.steps + 1, device=replay.lengths.device).unsqueeze(1)
    times = replay.lengths - lags
    found = {
        name: torch.where(times >= 0, values.gather(0, times.clamp(min=0)), torch.nan) for name, values in logs.items()
    }
    return profile_of({name: values.cpu() for name, values in found.items()})


def _backwards(steps: int, cuts: Iterable[int]) -> list[tuple[int, int]]:
    """Chunks of steps from the last to the first, none of which goes across a cut."""
    edges = sorted({0, steps, *cuts})
    return [(a + i, a + j) for a, b in reversed(list(pairwise(edges))) for i, j in reversed(list(spans(b - a, CHUNK)))]


def _replaced(carried: Carried, states: States, which: Tensor) -> Carried:
    pairs = zip(states, carried.parts, strict=True)
    parts = tuple(torch.where(which.unsqueeze(-1), given.double(), part) for given, part in pairs)
    return Carried(parts, torch.where(which, 0.0, carried.scale))


def _on_one_scale(carried: Carried, added: Tensor) -> tuple[Carried, Tensor]:
    """What is carried (B, .), and what is added to it (c, B, .), both on the scale of the larger."""
    size = torch.cat(carried.parts, -1).norm(dim=-1)
    scales = torch.stack([size.log() + carried.scale, added.abs().amax((0, -1)).log()]).amax(0)
    scales = torch.where(scales.isfinite(), scales, 0.0)
    factor = torch.where(size > 0, (carried.scale - scales).exp(), 0.0).unsqueeze(-1)
    parts = tuple(part * factor for part in carried.parts)
    # Far below the range of exp only what is 0 has been added.
    return Carried(parts, scales), torch.where(added == 0, 0.0, added * (-scales).exp().unsqueeze(-1))


def _through(
    replay: Replay, start: int, stop: int, last: States, outputs: Tensor
) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
    """Gradients of the chunk's inputs (c, B, D), and of the states at times start .. stop."""
    step = replay.step
    with torch.enable_grad():
        x = replay.inputs[start:stop].double().requires_grad_(True)
        drive = {gate: value.unbind(0) for gate, value in step.drive(x).items()}
        fed = step.pointwise(x)
        coordinates = [tuple(value.clone().requires_grad_(True) for value in replay.at(start))]
        shown = []
        for t in range(stop - start):
            now = {gate: value[t] for gate, value in drive.items()}
            new, u = step(now, coordinates[-1], None if fed is None else fed[t])
            # Views: coordinates of their own, through which alone the later steps see the states.
            coordinates.append(tuple(value.view_as(value) for value in new))
            shown.append(step.output(coordinates[-1], u))
        flat = [value for states in coordinates for value in states]
        found = torch.autograd.grad(
            [*shown, *coordinates[-1]], [x, *flat], [*outputs.unbind(0), *last], allow_unused=True
        )
    at_inputs, *at_states = (
        torch.zeros_like(value) if grad is None else grad for value, grad in zip([x, *flat], found, strict=True)
    )
    count = len(step.sizes)
    return at_inputs, [tuple(at_states[place : place + count]) for place in range(0, len(at_states), count)]
