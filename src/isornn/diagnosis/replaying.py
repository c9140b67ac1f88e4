"""All layers and directions of a module replayed from what it heard, and checked against what it said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isornn.diagnosis.heard import Heard
from isornn.diagnosis.layers import LayerStep, RecurrentModule, States
from isornn.diagnosis.replay import Replay
from isornn.nn.gate_tensors import RecurrentLayer
from isornn.nn.rnn import RNN, suffix
from isornn.nn.sequences import Sequences

# Part of the largest value by which a module's own rounding may differ from the replay, over one step or a few.
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_NUDGE = 1e-9


class ReplayError(RuntimeError):
    """A replay that does not give what the module gave: nothing measured on it would be of the user's model."""


@dataclass(frozen=True)
class Check:
    """How well the replay gives what the module gave.

    Args:
        residual: largest difference at any step, as part of the largest value and of the growth until that step.
        tolerance: what is allowed: 1e-5 for float32, 1e-10 for float64, 1e-2 for float16, 5e-2 for bfloat16.
        growth: by how much the layer itself carries rounding errors apart over the sequence; 1 where that need not be
            asked, because the differences are within the tolerance.
    """

    residual: float
    tolerance: float
    growth: float

    def to_json(self) -> dict[str, float]:
        return {"residual": self.residual, "tolerance": self.tolerance, "growth": self.growth}


@dataclass(frozen=True)
class Replayed:
    """One place of a module with its replay; ``heard`` is its input (T, B, D), in its own time."""

    place: RecurrentLayer
    replay: Replay
    check: Check
    heard: Tensor


def replayed(module: RecurrentModule, found: Heard) -> list[Replayed]:
    """Every layer and direction, from the bottom, each fed with the replay of the one below.

    Raises:
        ReplayError: a replay is not what the module gave.
    """
    layers: list[list[RecurrentLayer]] = []
    for place in module.places:
        if place.layer == len(layers):
            layers.append([])
        layers[place.layer].append(place)
    heard = found.sequences
    done: list[Replayed] = []
    dtype = found.output.dtype
    for places in layers:
        replays = []
        for place in places:
            own = own_time(heard, heard.values, place.direction)
            with torch.no_grad():
                x = prepared(module, place, own, found.previous)
            replay = Replay.of(LayerStep.of(place), x, found.lengths, _initial(found, len(done), x, place))
            ends = {time: states[len(done)] for time, states in found.ends.items()}
            said = None
            if place.layer == len(layers) - 1:
                said = own_time(found.sequences, part_of(found.output, place, len(places)), place.direction)
            done.append(Replayed(place, replay, _check(place, replay, ends, said, dtype), own))
            replays.append(replay)
        outputs = [
            own_time(heard, replay.output, place.direction) for replay, place in zip(replays, places, strict=True)
        ]
        heard = heard.with_values(heard.ended(torch.cat(outputs, -1)) if len(outputs) > 1 else heard.ended(outputs[0]))
    return done


def own_time(sequences: Sequences, values: Tensor, direction: int) -> Tensor:
    """``values`` (T, B, .) in the direction's own order of steps, or back."""
    return sequences.reversed(values) if direction else values


def part_of(values: Tensor, place: RecurrentLayer, directions: int) -> Tensor:
    """One direction's part of (T, B, .) with directions side by side."""
    return values.chunk(directions, -1)[place.direction]


def prepared(module: RecurrentModule, place: RecurrentLayer, x: Tensor, previous: Tensor | None) -> Tensor:
    """What the layer's matrix multiplies: x itself, but for features and previous inputs of our own layers."""
    layer: Any = module.module
    if not isinstance(layer, RNN):
        return x
    if layer._maps_features(place.layer):
        dtype = next(layer.parameters()).dtype
        x = layer._with_features(x.to(dtype), place.layer, suffix(place.layer, place.direction))
    return layer._with_previous(x, previous) if layer.layout.stacks["weight_ph"] else x


def _initial(found: Heard, number: int, x: Tensor, place: RecurrentLayer) -> States:
    if found.initial is not None:
        return found.initial[number]
    sizes = LayerStep.of(place).sizes
    return tuple(x.new_zeros(x.shape[1], size) for size in sizes)


def _check(
    place: RecurrentLayer, replay: Replay, ends: dict[int, States], said: Tensor | None, dtype: torch.dtype
) -> Check:
    tolerance = _TOLERANCE[dtype]
    gaps = _gaps(replay, ends, said)
    growth = torch.ones_like(gaps)
    if not bool((gaps <= tolerance).all()):
        growth = _growth(replay)
    residual = float((gaps / growth).max())
    # `not <=`, so that NaN is an error too.
    if not residual <= tolerance:
        raise ReplayError(
            f"{place.where}: run again step by step in float64 it differs from what the module gave by {residual:.1e} "
            f"of the largest value; {tolerance:.0e} is allowed for {str(dtype).removeprefix('torch.')}. "
            f"Nothing is reported on a replay that is not the model"
        )
    return Check(residual, tolerance, float(growth[-1]))


def _gaps(replay: Replay, ends: dict[int, States], said: Tensor | None) -> Tensor:
    """(T + 1,): at every time the largest difference from what the module gave then, as part of the largest value."""
    gaps = replay.states[0].new_zeros(replay.steps + 1)
    rows = torch.arange(replay.batch, device=gaps.device)
    for time, states in ends.items():
        # With lengths, a call's last states are those at each sequence's own end.
        times = replay.lengths.clamp(max=time)
        for own, given in zip(replay.states, states, strict=True):
            apart = (own[times, rows] - given.double()).abs().amax(-1) / _largest(own)
            gaps.scatter_reduce_(0, times, apart, "amax")
    if said is not None:
        apart = torch.where(replay.inside, (said.double() - replay.output).abs().amax(-1), 0.0).amax(1)
        gaps[1:] = torch.maximum(gaps[1:], apart / _largest(replay.output))
    return gaps


def _growth(replay: Replay) -> Tensor:
    """(T + 1,): by how much two copies have parted whose states are a hair apart at the start, at least 1.

    Chaos does that to rounding errors; a replay of a chaotic network is another path of the same network.
    """
    noise = torch.Generator().manual_seed(0)
    scales = [_largest(values) for values in replay.states]
    nudged = [
        first + _NUDGE * scale * torch.randn(first.shape, generator=noise, dtype=torch.float64).to(first.device)
        for first, scale in zip(replay.at(0), scales, strict=True)
    ]
    other = Replay.of(replay.step, replay.inputs, replay.lengths, nudged)
    apart = [
        (a - b).abs().amax((1, 2)) / (scale * _NUDGE)
        for a, b, scale in zip(replay.states, other.states, scales, strict=True)
    ]
    return torch.stack(apart).amax(0).cummax(0).values.clamp(min=1.0)


def _largest(values: Tensor) -> Tensor:
    return values.abs().max().clamp(min=1e-30)
