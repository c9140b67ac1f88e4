"""Recompute each layer in float64 from its captured inputs, and verify the outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from isornn.capture.calls import States
from isornn.capture.modules import RecurrentModule
from isornn.capture.sequences import CapturedSequence
from isornn.cells import Values
from isornn.diagnosis.records import ReplayCheck
from isornn.nn.gate_tensors import RecurrentLayer
from isornn.nn.layer_step import LayerStep, cast
from isornn.nn.recurrence import recurrence
from isornn.nn.sequences import within
from isornn.nn.stepped import stepped
from isornn.nn.upwards import gate_inputs, own_time, upwards

CHUNK = 64
# Steps that are computed in one go. Up to a span they go step by step in torch: it takes a second or two to load the
# compiled kernels, and several to compile them once.
_SPAN = 1024
# Pre-activations of a module's layers are kept where all together have at most this many bytes: four directions of an
# LSTM of 128 units over 32 sequences of 1000 steps.
_KEPT = 2**29
# Part of the largest value by which a module's own rounding may differ from the replay, over one step or a few.
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
# Two chaotic runs that round differently, a fast kernel and steps of torch, diverge at one rate, not from one distance.
# In half precision, 1000 times the rounding of one step would be more than the values themselves.
_SLACK = {torch.float64: 1000, torch.float32: 1000, torch.float16: 10, torch.bfloat16: 6}


class ReplayError(RuntimeError):
    """The replay does not reproduce the module's outputs, so measurements on it would not describe the user's model.

    >>> from torch import nn
    >>> from isornn.diagnosis import measure
    >>> class Halved(nn.GRU):
    ...     def forward(self, x):
    ...         hx, weights = x.new_zeros(1, x.shape[1], 8), [weight / 2 for weight in self._flat_weights]
    ...         return torch.gru(x, hx, weights, True, 1, 0.0, False, False, False)
    >>> measure(Halved(1, 8), torch.randn(20, 4, 1))
    Traceback (most recent call last):
    ...
    isornn.diagnosis.replay.ReplayError: ...
    """


@dataclass(frozen=True)
class Replay:
    """One layer and direction over its sequences, in its own time: a reverse direction's first step is the last.

    Args:
        step: what one step is.
        inputs: (T, B, D), as the model has them; steps behind a sequence's end are ignored.
        lengths: (B,), at least 1 each.
        states: at times 0 .. T, (T + 1, B, .) each, float64; 0 is before the first step.
        output: (T, B, .), float64.
        gates: pre-activations by name, (T, B, N) each; ``None`` where they are too many to be kept.
    """

    step: LayerStep
    inputs: Tensor
    lengths: Tensor
    states: States
    output: Tensor
    gates: Mapping[str, Tensor] | None = None

    @staticmethod
    @torch.no_grad()
    def of(step: LayerStep, inputs: Tensor, lengths: Tensor, initial: Sequence[Tensor], keep: bool) -> Replay:
        """Run the layer from its ``initial`` states (B, .), a chunk of steps at a time: inputs stay as they are.

        Args:
            keep: the pre-activations, of a sequence that has no more than a span of steps.
        """
        length, batch = inputs.shape[:2]
        if length <= _SPAN and (keep or step.gives_state):
            return Replay._of_few(step, inputs, lengths, initial, keep)
        states = tuple(inputs.new_empty(length + 1, batch, size, dtype=torch.float64) for size in step.sizes)
        separate = None if step.gives_state else states[0].new_empty(length, batch, step.hidden)
        for whole, first in zip(states, initial, strict=True):
            whole[0] = first
        for start, stop in spans(length, _SPAN):
            x = inputs[start:stop].double()
            now = tuple(whole[start] for whole in states)
            found = recurrence(step.cell, step.layout, x, step.pointwise(x), step.weights, now)
            for whole, values in zip(states, found, strict=False):
                whole[start + 1 : stop + 1] = values
            if separate is not None:
                separate[start:stop] = found[-1]
        return Replay(step, inputs, lengths, states, states[0][1:] if separate is None else separate)

    @staticmethod
    def _of_few(step: LayerStep, inputs: Tensor, lengths: Tensor, initial: Sequence[Tensor], keep: bool) -> Replay:
        """Step by step."""
        x = inputs.double()
        drive = {gate: values.unbind(0) for gate, values in step.drive(x).items()}
        fed = step.pointwise(x)
        states, u = [tuple(first.double() for first in initial)], list[Values]()
        for t in range(len(x)):
            now = {gate: values[t] for gate, values in drive.items()}
            new, of_step = step(now, states[-1], None if fed is None else fed[t])
            states.append(new)
            if keep:
                u.append(of_step)
        known = tuple(torch.stack(values) for values in zip(*states, strict=True))
        if not keep:
            return Replay(step, inputs, lengths, known, known[0][1:])
        gates = {gate: torch.stack([getattr(values, gate) for values in u]) for gate in step.cell.gates}
        after = tuple(values[1:] for values in known)
        output = after[0] if step.gives_state else step.output(after, Values(**gates, **step.weights.units))
        return Replay(step, inputs, lengths, known, output, gates)

    def pre_activations(self, start: int, stop: int) -> Values:
        """Of the steps ``start`` to ``stop``, (steps, B, N) by gate, and the cell's own parameters."""
        if self.gates is not None:
            own = {gate: values[start:stop] for gate, values in self.gates.items()}
            return Values(**own, **self.step.weights.units)
        before = tuple(values[start:stop] for values in self.states)
        return self.step.pre_activations(self.inputs[start:stop].double(), before)

    @property
    def steps(self) -> int:
        """T."""
        return self.inputs.shape[0]

    @property
    def batch(self) -> int:
        """B."""
        return self.inputs.shape[1]

    @cached_property
    def inside(self) -> Tensor:
        """(T, B): whether the step belongs to the sequence."""
        return within(self.lengths, self.steps)

    @cached_property
    def kept(self) -> dict[tuple[int, int], Any]:
        """By span of steps, what need not be computed from them again; a copy of the replay has its own."""
        return {}

    def at(self, time: int) -> States:
        """The states at one time, 0 .. T."""
        return tuple(values[time] for values in self.states)

    def select(self, sequences: Sequence[int]) -> Replay:
        """Some of the sequences, up to the end of the longest of them."""
        chosen = torch.as_tensor(sequences, device=self.lengths.device)
        lengths = self.lengths[chosen]
        stop = int(lengths.max())
        states = tuple(values[: stop + 1].index_select(1, chosen) for values in self.states)
        output, inputs = (values[:stop].index_select(1, chosen) for values in (self.output, self.inputs))
        gates = self.gates and {gate: values[:stop].index_select(1, chosen) for gate, values in self.gates.items()}
        return replace(self, inputs=inputs, lengths=lengths, states=states, output=output, gates=gates)

    def longest(self, count: int) -> Replay:
        """At most ``count`` sequences, the longest; the first of equals."""
        chosen = sorted(range(self.batch), key=lambda b: -int(self.lengths[b]))[:count]
        return self if chosen == list(range(self.batch)) else self.select(chosen)


def spans(length: int, size: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of runs of at most ``size`` that cover ``range(length)``.

    >>> list(spans(5, 2))
    [(0, 2), (2, 4), (4, 5)]
    """
    return ((start, min(start + size, length)) for start in range(0, length, size))


@dataclass(frozen=True)
class LayerReplay:
    """One layer and direction of a module with its replay; ``inputs`` (T, B, D) in its own order of steps."""

    layer: RecurrentLayer
    replay: Replay
    check: ReplayCheck
    inputs: Tensor


def replay_module(module: RecurrentModule, captured: CapturedSequence) -> list[LayerReplay]:
    """Every layer and direction, from the bottom, each given the replayed output of the one below.

    Raises:
        ReplayError: a replay does not reproduce what the module returned.
    """
    done = list[LayerReplay]()
    dtype, top = captured.precision, max(layer.layer for layer in module.layers)
    numbers = sum(len(layer.cell.gates) * layer.hidden for layer in module.layers)
    keep = 8 * captured.sequences.values.shape[:2].numel() * numbers <= _KEPT
    for number, one in enumerate(upwards(module.layers, captured.sequences)):
        layer = one.layer
        with torch.no_grad():
            x = gate_inputs(layer, one.inputs, captured.previous)
        step = LayerStep.of(layer)
        initial = initial_states(step, x, None if captured.initial is None else captured.initial[number])
        replay = Replay.of(step, x, captured.lengths, initial, keep)
        ends = {time: states[number] for time, states in captured.ends.items()}
        returned = None
        if layer.layer == top:
            part = captured.output.chunk(module.directions, -1)[layer.direction]
            returned = own_time(captured.sequences, part, layer.direction)
        rounded = partial(_rounded_inputs, layer, captured, tuple(done), dtype)
        check = _check(layer, replay, ends, returned, dtype, rounded)
        done.append(LayerReplay(layer, replay, check, one.inputs))
        one.output = replay.output
    return done


@torch.no_grad()
def _rounded_inputs(
    layer: RecurrentLayer, captured: CapturedSequence, replays: Sequence[LayerReplay], dtype: torch.dtype
) -> Tensor:
    """What the layer is given where all those below it compute in ``dtype``, one on the results of the other."""
    below = [one for one in replays if one.layer.layer < layer.layer]
    passes = upwards([*(one.layer for one in below), layer], captured.sequences)
    for known, one in zip(below, passes, strict=False):
        results = _in_dtype(known.replay, gate_inputs(one.layer, one.inputs, captured.previous), dtype)
        one.output = torch.cat([known.replay.step.shown(values) for _, values in results])
    return gate_inputs(layer, next(passes).inputs, captured.previous)


def initial_states(step: LayerStep, x: Tensor, given: States | None) -> States:
    """Those that a layer with inputs (T, B, D) starts from: given, or 0."""
    return tuple(x.new_zeros(x.shape[1], size) for size in step.sizes) if given is None else given


def _check(
    layer: RecurrentLayer,
    replay: Replay,
    ends: dict[int, States],
    returned: Tensor | None,
    dtype: torch.dtype,
    rounded: Callable[[], Tensor],
) -> ReplayCheck:
    """``rounded`` gives the layer's inputs as the module has them in its own precision."""
    tolerance = _TOLERANCE[dtype]
    gaps = _gaps(replay, ends, returned)
    rounding = torch.zeros_like(gaps)
    if not bool((gaps <= tolerance).all()):
        rounding = _rounding(replay, dtype, rounded())
    allowed = (_SLACK[dtype] * rounding).clamp(min=tolerance)
    residual = float((gaps * tolerance / allowed).max())
    # `not <=`, so that NaN is an error too.
    if not residual <= tolerance:
        advice = (
            "If its forward is its own, let it call its class's, super().forward(...), with the module's own weights"
        )
        if parametrize.is_parametrized(layer.module):
            advice = "Its weights are parametrised; they have to be the same whenever they are read"
        raise ReplayError(
            f"{layer.where}: recomputed step by step in float64 it differs from what the module returned by "
            f"{float(gaps.max()):.1e} of the largest value, by rounding in {str(dtype).removeprefix('torch.')} at most "
            f"{float(rounding[-1]):.1e}. Nothing is reported on a replay that is not the model. {advice}"
        )
    return ReplayCheck(residual, tolerance, float(rounding[-1]))


def _gaps(replay: Replay, ends: dict[int, States], returned: Tensor | None) -> Tensor:
    """(T + 1,): at every time the largest difference from what the module returned, over the largest value."""
    gaps = replay.states[0].new_zeros(replay.steps + 1)
    rows, largest = torch.arange(replay.batch, device=gaps.device), [_largest(own) for own in replay.states]
    for time, states in ends.items():
        # With lengths, a call's last states are those at each sequence's own end.
        times = replay.lengths.clamp(max=time)
        for own, given, scale in zip(replay.states, states, largest, strict=True):
            distance = (own[times, rows] - given.double()).abs().amax(-1) / scale
            gaps.scatter_reduce_(0, times, distance, "amax")
    if returned is not None:
        distance = torch.where(replay.inside, (returned.double() - replay.output).abs().amax(-1), 0.0).amax(1)
        gaps[1:] = torch.maximum(gaps[1:], distance / _largest(replay.output))
    return gaps


@torch.no_grad()
def _rounding(replay: Replay, dtype: torch.dtype, inputs: Tensor) -> Tensor:
    """(T + 1,): distance of a replay in the module's own dtype, on ``inputs``, from this one, as `_gaps`.

    Chaos amplifies rounding errors, and behind gates that are almost closed or open nothing but rounding is left; a
    layer that is given small inputs amplifies those of the layer below.
    """
    gaps = replay.states[0].new_zeros(replay.steps + 1)
    for (start, stop), values in _in_dtype(replay, inputs, dtype):
        for own, copy in zip(replay.states, values, strict=False):
            distance = (own[start + 1 : stop + 1] - copy.double()).abs().amax((1, 2)) / _largest(own)
            gaps[start + 1 : stop + 1] = torch.maximum(gaps[start + 1 : stop + 1], distance)
    return gaps.cummax(0).values


def _in_dtype(replay: Replay, inputs: Tensor, dtype: torch.dtype) -> Iterator[tuple[tuple[int, int], list[Tensor]]]:
    """Spans of steps and their results, computed in ``dtype`` from ``inputs`` (T, B, D)."""
    step, states = replay.step, [first.to(dtype) for first in replay.at(0)]
    weights = cast(step.weights, dtype)
    for span in spans(replay.steps, _SPAN):
        x = inputs[slice(*span)].to(dtype)
        values = stepped(step.cell, step.layout, x, step.pointwise(x), weights, states)
        states = [copy[-1] for copy, _ in zip(values, states, strict=False)]
        yield span, values


def _largest(values: Tensor) -> Tensor:
    return values.abs().max().clamp(min=1e-30)
