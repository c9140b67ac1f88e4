"""All layers and directions of a module replayed from what it heard, and checked against what it said."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isornn.diagnosis.heard import Heard
from isornn.diagnosis.layers import LayerStep, RecurrentModule, States
from isornn.diagnosis.replay import Replay, spans
from isornn.nn.gate_tensors import RecurrentLayer
from isornn.nn.rnn import RNN, suffix
from isornn.nn.sequences import Sequences
from isornn.nn.stepped import Weights, stepped

# Part of the largest value by which a module's own rounding may differ from the replay, over one step or a few.
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
# Two chaotic runs that round differently, a fast kernel and steps of torch, part at one rate, not from one distance.
_SLACK = 1000


class ReplayError(RuntimeError):
    """A replay that does not give what the module gave: nothing measured on it would be of the user's model."""


@dataclass(frozen=True)
class Check:
    """How well the replay gives what the module gave.

    Args:
        residual: largest difference at any step, as part of the layer's largest value; where ``rounding`` allows more
            than the tolerance, shrunk by as much.
        tolerance: what is allowed: 1e-5 for float32, 1e-10 for float64, 1e-2 for float16, 5e-2 for bfloat16; or ten
            times what rounding has done until that step.
        rounding: how far a second replay, in the module's own dtype, went from the first: more than the tolerance in
            chaotic networks and behind gates that are all but shut. 0 where that need not be asked.
    """

    residual: float
    tolerance: float
    rounding: float

    def to_json(self) -> dict[str, float]:
        return {"residual": self.residual, "tolerance": self.tolerance, "rounding": self.rounding}


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
    rounding = torch.zeros_like(gaps)
    if not bool((gaps <= tolerance).all()):
        rounding = _rounding(replay, dtype)
    allowed = (_SLACK * rounding).clamp(min=tolerance)
    residual = float((gaps * tolerance / allowed).max())
    # `not <=`, so that NaN is an error too.
    if not residual <= tolerance:
        raise ReplayError(
            f"{place.where}: run again step by step in float64 it differs from what the module gave by "
            f"{float(gaps.max()):.1e} of the largest value, by rounding in {str(dtype).removeprefix('torch.')} at most "
            f"{float(rounding[-1]):.1e}. Nothing is reported on a replay that is not the model"
        )
    return Check(residual, tolerance, float(rounding[-1]))


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


@torch.no_grad()
def _rounding(replay: Replay, dtype: torch.dtype) -> Tensor:
    """(T + 1,): how far a replay in the module's own dtype has gone from this one, as `_gaps`.

    Chaos carries rounding errors apart, and gates that are all but shut or open leave nothing but rounding.
    """
    step, found = replay.step, [first.to(dtype) for first in replay.at(0)]
    weights = _cast(step.weights, dtype)
    gaps = replay.states[0].new_zeros(replay.steps + 1)
    for start, stop in spans(replay.steps, 1024):
        x = replay.inputs[start:stop].to(dtype)
        values = stepped(step.cell, step.layout, x, step.pointwise(x), weights, found)
        for own, copy in zip(replay.states, values, strict=False):
            apart = (own[start + 1 : stop + 1] - copy.double()).abs().amax((1, 2)) / _largest(own)
            gaps[start + 1 : stop + 1] = torch.maximum(gaps[start + 1 : stop + 1], apart)
        found = [copy[-1] for copy, _ in zip(values, found, strict=False)]
    return gaps.cummax(0).values


def _cast(weights: Weights, dtype: torch.dtype) -> Weights:
    own = {name: value.to(dtype) for name, value in vars(weights).items() if isinstance(value, Tensor)}
    return replace(weights, **own, units={name: value.to(dtype) for name, value in weights.units.items()})


def _largest(values: Tensor) -> Tensor:
    return values.abs().max().clamp(min=1e-30)
