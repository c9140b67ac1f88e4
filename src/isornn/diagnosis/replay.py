"""Recompute each layer in float64 from its captured inputs, and verify the outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from isornn.cells import Cell, Values
from isornn.cells.trace import graph_of
from isornn.diagnosis.capture import CapturedSequence, RecurrentModule, States
from isornn.diagnosis.records import ReplayCheck
from isornn.nn.gate_tensors import RecurrentLayer
from isornn.nn.layout import Layout
from isornn.nn.recurrence import recurrence
from isornn.nn.rnn import RNN, suffix
from isornn.nn.sequences import Sequences
from isornn.nn.step import pre_activations, step
from isornn.nn.stepped import Weights, stepped

Drive = Mapping[str, Tensor]

CHUNK = 64
# Part of the largest value by which a module's own rounding may differ from the replay, over one step or a few.
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
# Two chaotic runs that round differently, a fast kernel and steps of torch, diverge at one rate, not from one distance.
_SLACK = 1000


class ReplayError(RuntimeError):
    """The replay does not reproduce the module's outputs, so measurements on it would not describe the user's model."""


class LayerStep:
    """One step of one layer and direction, in float64, as a function of its drive and its states.

    ``u_k = drive_k + W_k r``, then the cell's update, then the projection where there is one. Leading axes are free:
    one step of a batch, or all steps at once where all states are known.

    Args:
        cell: the cell.
        weights: all float64.
    """

    def __init__(self, cell: Cell, weights: Weights) -> None:
        self.cell, self.weights, self.layout = cell, weights, Layout.of(cell)
        self.hidden = weights.matrix.shape[0] // len(self.layout.driven)
        stack = self.layout.stacks["weight_hh"]
        recurrent = () if weights.recurrent is None else weights.recurrent.unflatten(0, (-1, self.hidden)).unbind(0)
        self.matrices = dict(zip(stack, recurrent, strict=True))
        plain = [self.matrices[gate] for gate in self.layout.plain]
        self.shared = torch.cat(plain) if plain else None

    @staticmethod
    def of(layer: RecurrentLayer) -> LayerStep:
        """The step of a module's layer, with a copy of its weights."""
        return LayerStep(layer.cell, _weights(layer))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Width of each state: N, or the projection's P for the first."""
        projection = self.weights.projection
        first = self.hidden if projection is None else projection.shape[0]
        return (first, *(self.hidden for _ in self.cell.states[1:]))

    def drive(self, inputs: Tensor) -> dict[str, Tensor]:
        """By gate (..., N): input part and bias of inputs (..., D)."""
        total = nn.functional.linear(inputs, self.weights.matrix, self.weights.bias)
        parts = total.unflatten(-1, (-1, self.hidden)).unbind(-2)
        drive = dict(zip(self.layout.driven, parts, strict=True))
        count = len(self.layout.undriven)
        if count:
            offset = self.weights.offset
            blank = inputs.new_zeros(count * self.hidden) if offset is None else offset
            own = blank.unflatten(-1, (-1, self.hidden)).unbind(-2)
            shape = next(iter(drive.values())).shape
            drive |= {gate: part.expand(shape) for gate, part in zip(self.layout.undriven, own, strict=True)}
        return drive

    def pointwise(self, inputs: Tensor) -> Tensor | None:
        """What enters the update itself."""
        return inputs if self.cell.input_enters_pointwise else None

    def __call__(self, drive: Drive, states: States, x: Tensor | None) -> tuple[States, Values]:
        """New states and this step's pre-activations."""
        named = Values(**dict(zip(self.cell.states, states, strict=True)))
        new, u = step(self.cell, named, drive, self._multiply(states[0]), x, self.weights.units)
        return self.projected([getattr(new, name) for name in self.cell.states]), u

    def pre_activations(self, inputs: Tensor, states: States) -> Values:
        """Of steps with inputs (..., D), from the states before them."""
        named = Values(**dict(zip(self.cell.states, states, strict=True)))
        return pre_activations(self.cell, named, self.drive(inputs), self._multiply(states[0]), self.weights.units)

    def _multiply(self, first: Tensor) -> Callable[[str, Tensor], Tensor]:
        shared = self.shared_products(first)

        def multiply(gate: str, r: Tensor) -> Tensor:
            return shared[gate] if gate in shared else nn.functional.linear(r, self.matrices[gate])

        return multiply

    def shared_products(self, first: Tensor) -> dict[str, Tensor]:
        """``W_k s`` of the gates that read the first state itself, by one product."""
        if self.shared is None:
            return {}
        product = nn.functional.linear(first, self.shared)
        return dict(zip(self.layout.plain, product.chunk(len(self.layout.plain), -1), strict=True))

    def projected(self, states: Sequence[Tensor]) -> States:
        """States as the cell's update has them, the first through the projection where there is one."""
        first, *others = states
        if self.weights.projection is not None:
            first = nn.functional.linear(first, self.weights.projection)
        return (first, *others)

    def output(self, states: States, u: Values) -> Tensor:
        """The layer's output after a step, from its new states and the step's pre-activations."""
        shown: Tensor = self.cell.output(Values(**dict(zip(self.cell.states, states, strict=True))), u)
        return shown

    @property
    def gives_state(self) -> bool:
        """Whether the output is the first state."""
        return graph_of(self.cell).output_is_first_state


def _weights(layer: RecurrentLayer) -> Weights:
    """The layer's weights in float64, copied, so that nothing of the module can be written to or differentiated."""
    layout, gates = Layout.of(layer.cell), layer.gates
    stack = layout.stacks["weight_hh"]
    ending = "" if isinstance(layer.module, nn.RNNCellBase) else suffix(layer.layer, layer.direction)
    recurrent = [gates[gate].recurrent for gate in stack]
    weights = Weights(
        matrix=torch.cat([_rows(layer, gate) for gate in layout.driven]),
        bias=_biases(layer, layout.driven),
        recurrent=torch.cat([matrix for matrix in recurrent if matrix is not None]) if stack else None,
        offset=_biases(layer, layout.undriven),
        projection=layer.projection,
        units={name: getattr(layer.module, name + ending) for name in layer.cell.parameters},
    )
    return _cast(weights, torch.float64)


def _rows(layer: RecurrentLayer, gate: str) -> Tensor:
    """(N, D), or (N, 2 D) in a layer that reads x_(t-1) too: what the gate multiplies its inputs with."""
    tensors = layer.gates[gate]
    blank = torch.zeros_like(next(t.input for t in layer.gates.values() if t.input is not None))
    parts = [blank if tensors.input is None else tensors.input]
    if Layout.of(layer.cell).stacks["weight_ph"]:
        parts.append(blank if tensors.previous_input is None else tensors.previous_input)
    return torch.cat(parts, -1)


def _biases(layer: RecurrentLayer, gates: Sequence[str]) -> Tensor | None:
    if not any(layer.gates[gate].biases for gate in gates):
        return None
    some = next(bias for tensors in layer.gates.values() for bias in tensors.biases)
    blank = torch.zeros_like(some, dtype=torch.float64)
    return torch.cat([sum((bias.double() for bias in layer.gates[gate].biases), blank) for gate in gates])


def _cast(weights: Weights, dtype: torch.dtype) -> Weights:
    def cast(tensor: Tensor) -> Tensor:
        return tensor.detach().to(dtype, copy=True)

    own = {name: cast(value) for name, value in vars(weights).items() if isinstance(value, Tensor)}
    return replace(weights, **own, units={name: cast(value) for name, value in weights.units.items()})


@dataclass(frozen=True)
class Replay:
    """One layer and direction over its sequences, in its own time: a reverse direction's first step is the last.

    Args:
        step: what one step is.
        inputs: (T, B, D), as the model has them; steps behind a sequence's end are ignored.
        lengths: (B,), at least 1 each.
        states: at times 0 .. T, (T + 1, B, .) each, float64; 0 is before the first step.
        output: (T, B, .), float64.
    """

    step: LayerStep
    inputs: Tensor
    lengths: Tensor
    states: States
    output: Tensor

    @staticmethod
    @torch.no_grad()
    def of(step: LayerStep, inputs: Tensor, lengths: Tensor, initial: Sequence[Tensor]) -> Replay:
        """Run the layer from its ``initial`` states (B, .), a chunk of steps at a time: inputs stay as they are."""
        length, batch = inputs.shape[:2]
        states = tuple(inputs.new_empty(length + 1, batch, size, dtype=torch.float64) for size in step.sizes)
        separate = None if step.gives_state else states[0].new_empty(length, batch, step.hidden)
        for whole, first in zip(states, initial, strict=True):
            whole[0] = first
        for start, stop in spans(length, 1024):
            x = inputs[start:stop].double()
            now = tuple(whole[start] for whole in states)
            found = recurrence(step.cell, step.layout, x, step.pointwise(x), step.weights, now)
            for whole, values in zip(states, found, strict=False):
                whole[start + 1 : stop + 1] = values
            if separate is not None:
                separate[start:stop] = found[-1]
        return Replay(step, inputs, lengths, states, states[0][1:] if separate is None else separate)

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
        return torch.arange(self.steps, device=self.lengths.device).unsqueeze(1) < self.lengths

    def at(self, time: int) -> States:
        """The states at one time, 0 .. T."""
        return tuple(values[time] for values in self.states)

    def select(self, sequences: Sequence[int]) -> Replay:
        """Some of the sequences, up to the end of the longest of them."""
        chosen = torch.as_tensor(sequences, device=self.lengths.device)
        lengths = self.lengths[chosen]
        stop = int(lengths.max())
        states = tuple(values[: stop + 1].index_select(1, chosen) for values in self.states)
        output = self.output[:stop].index_select(1, chosen)
        return replace(
            self, inputs=self.inputs[:stop].index_select(1, chosen), lengths=lengths, states=states, output=output
        )

    def longest(self, count: int) -> Replay:
        """At most ``count`` sequences, the longest; the first of equals."""
        return self.select(sorted(range(self.batch), key=lambda b: -int(self.lengths[b]))[:count])


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
    sequences, done = captured.sequences, list[LayerReplay]()
    depth = 1 + max(layer.layer for layer in module.layers)
    for number in range(depth):
        outputs = []
        for layer in (layer for layer in module.layers if layer.layer == number):
            own = own_time(sequences, sequences.values, layer.direction)
            with torch.no_grad():
                x = gate_inputs(layer, own, captured.previous)
            step = LayerStep.of(layer)
            initial = tuple(x.new_zeros(x.shape[1], size) for size in step.sizes)
            if captured.initial is not None:
                initial = captured.initial[len(done)]
            replay = Replay.of(step, x, captured.lengths, initial)
            ends = {time: states[len(done)] for time, states in captured.ends.items()}
            returned = None
            if number == depth - 1:
                part = captured.output.chunk(module.directions, -1)[layer.direction]
                returned = own_time(sequences, part, layer.direction)
            check = _check(layer, replay, ends, returned, captured.output.dtype)
            done.append(LayerReplay(layer, replay, check, own))
            outputs.append(own_time(sequences, replay.output, layer.direction))
        sequences = sequences.with_values(sequences.ended(torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]))
    return done


def own_time(sequences: Sequences, values: Tensor, direction: int) -> Tensor:
    """``values`` (T, B, .) in the direction's own order of steps, or back."""
    return sequences.reversed(values) if direction else values


def gate_inputs(layer: RecurrentLayer, x: Tensor, previous: Tensor | None) -> Tensor:
    """What the layer's input matrices multiply: x itself, but for features and previous inputs of isornn's layers."""
    if isinstance(layer.module, RNN):
        return layer.module.gate_inputs(x, layer.layer, layer.direction, previous)
    return x


def _check(
    layer: RecurrentLayer, replay: Replay, ends: dict[int, States], returned: Tensor | None, dtype: torch.dtype
) -> ReplayCheck:
    tolerance = _TOLERANCE[dtype]
    gaps = _gaps(replay, ends, returned)
    rounding = torch.zeros_like(gaps)
    if not bool((gaps <= tolerance).all()):
        rounding = _rounding(replay, dtype)
    allowed = (_SLACK * rounding).clamp(min=tolerance)
    residual = float((gaps * tolerance / allowed).max())
    # `not <=`, so that NaN is an error too.
    if not residual <= tolerance:
        raise ReplayError(
            f"{layer.where}: recomputed step by step in float64 it differs from what the module returned by "
            f"{float(gaps.max()):.1e} of the largest value, by rounding in {str(dtype).removeprefix('torch.')} at most "
            f"{float(rounding[-1]):.1e}. Nothing is reported on a replay that is not the model"
        )
    return ReplayCheck(residual, tolerance, float(rounding[-1]))


def _gaps(replay: Replay, ends: dict[int, States], returned: Tensor | None) -> Tensor:
    """(T + 1,): at every time the largest difference from what the module returned, over the largest value."""
    gaps = replay.states[0].new_zeros(replay.steps + 1)
    rows = torch.arange(replay.batch, device=gaps.device)
    for time, states in ends.items():
        # With lengths, a call's last states are those at each sequence's own end.
        times = replay.lengths.clamp(max=time)
        for own, given in zip(replay.states, states, strict=True):
            distance = (own[times, rows] - given.double()).abs().amax(-1) / _largest(own)
            gaps.scatter_reduce_(0, times, distance, "amax")
    if returned is not None:
        distance = torch.where(replay.inside, (returned.double() - replay.output).abs().amax(-1), 0.0).amax(1)
        gaps[1:] = torch.maximum(gaps[1:], distance / _largest(replay.output))
    return gaps


@torch.no_grad()
def _rounding(replay: Replay, dtype: torch.dtype) -> Tensor:
    """(T + 1,): distance of a replay in the module's own dtype from this one, as `_gaps`.

    Chaos amplifies rounding errors, and behind gates that are almost closed or open nothing but rounding is left.
    """
    step, states = replay.step, [first.to(dtype) for first in replay.at(0)]
    weights = _cast(step.weights, dtype)
    gaps = replay.states[0].new_zeros(replay.steps + 1)
    for start, stop in spans(replay.steps, 1024):
        x = replay.inputs[start:stop].to(dtype)
        values = stepped(step.cell, step.layout, x, step.pointwise(x), weights, states)
        for own, copy in zip(replay.states, values, strict=False):
            distance = (own[start + 1 : stop + 1] - copy.double()).abs().amax((1, 2)) / _largest(own)
            gaps[start + 1 : stop + 1] = torch.maximum(gaps[start + 1 : stop + 1], distance)
        states = [copy[-1] for copy, _ in zip(values, states, strict=False)]
    return gaps.cummax(0).values


def _largest(values: Tensor) -> Tensor:
    return values.abs().max().clamp(min=1e-30)
