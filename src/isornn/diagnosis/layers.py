"""The recurrent layers of a model, by name, and what a step of each computes with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from isornn.cells import Cell, Values
from isornn.cells.trace import graph_of
from isornn.nn.gate_tensors import RecurrentLayer, recurrent_layers
from isornn.nn.layout import Layout
from isornn.nn.rnn import suffix
from isornn.nn.step import step
from isornn.nn.stepped import Weights

States = tuple[Tensor, ...]
Drive = Mapping[str, Tensor]


@dataclass(frozen=True)
class RecurrentModule:
    """A recurrent module of a model.

    Args:
        name: dotted, as ``model.named_modules`` has it; empty where the model itself is the module.
        module: the module.
        places: its layers and directions, in the order of its state's first axis.
    """

    name: str
    module: nn.Module
    places: tuple[RecurrentLayer, ...]

    @property
    def kind(self) -> str:
        """What the user called it: ``LSTM``, ``GRUCell``."""
        # `where` has a parametrised module's own class, not the one that torch made up.
        return self.places[0].where.rpartition("(")[2].split()[0].rstrip(")")

    @property
    def steps_by_hand(self) -> bool:
        """Whether the user's own loop calls it, step by step."""
        return isinstance(self.module, nn.RNNCellBase)

    @property
    def directions(self) -> int:
        """1, or 2 where it is bidirectional."""
        return 1 + max(place.direction for place in self.places)


def recurrent_modules(model: nn.Module) -> list[RecurrentModule]:
    """Every recurrent module of ``model``, itself included.

    Raises:
        ModuleError: there is none.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.LSTM(3, 4, bidirectional=True))
    >>> [(found.name, found.kind, len(found.places)) for found in recurrent_modules(model)]
    [('1', 'LSTM', 2)]
    """
    names = {module: name for name, module in model.named_modules()}
    grouped: dict[nn.Module, list[RecurrentLayer]] = {}
    for place in recurrent_layers(model):
        grouped.setdefault(place.module, []).append(place)
    return [RecurrentModule(names[module], module, tuple(places)) for module, places in grouped.items()]


class LayerStep:
    """One step of one layer and direction, in float64, as a function of what drives it and its states.

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
        self._shared = torch.cat(plain) if plain else None

    @staticmethod
    def of(place: RecurrentLayer) -> LayerStep:
        """The step of a module's layer, with a copy of its weights."""
        return LayerStep(place.cell, _weights(place))

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
        shared = self.shared_products(states[0])

        def multiply(gate: str, r: Tensor) -> Tensor:
            return shared[gate] if gate in shared else nn.functional.linear(r, self.matrices[gate])

        named = Values(**dict(zip(self.cell.states, states, strict=True)))
        new, u = step(self.cell, named, drive, multiply, x, self.weights.units)
        return self.projected([getattr(new, name) for name in self.cell.states]), u

    def shared_products(self, first: Tensor) -> dict[str, Tensor]:
        """``W_k s`` of the gates that read the first state itself, by one product."""
        if self._shared is None:
            return {}
        product = nn.functional.linear(first, self._shared)
        return dict(zip(self.layout.plain, product.chunk(len(self.layout.plain), -1), strict=True))

    def projected(self, states: Sequence[Tensor]) -> States:
        """States as the cell's update has them, the first through the projection where there is one."""
        first, *others = states
        if self.weights.projection is not None:
            first = nn.functional.linear(first, self.weights.projection)
        return (first, *others)

    def output(self, states: States, u: Values) -> Tensor:
        """What the layer gives out after a step, from its new states and the step's pre-activations."""
        shown: Tensor = self.cell.output(Values(**dict(zip(self.cell.states, states, strict=True))), u)
        return shown

    @property
    def gives_state(self) -> bool:
        """Whether the output is the first state."""
        return graph_of(self.cell).output_is_first_state


def _weights(place: RecurrentLayer) -> Weights:
    layout, gates = Layout.of(place.cell), place.gates
    stack = layout.stacks["weight_hh"]
    ending = "" if isinstance(place.module, nn.RNNCellBase) else suffix(place.layer, place.direction)
    found = Weights(
        matrix=torch.cat([_rows(place, gate) for gate in layout.driven]),
        bias=_biases(place, layout.driven),
        recurrent=torch.cat([_present(gates[gate].recurrent) for gate in stack]) if stack else None,
        offset=_biases(place, layout.undriven),
        projection=place.projection,
        units={name: getattr(place.module, name + ending) for name in place.cell.parameters},
    )
    return _in_double(found)


def _rows(place: RecurrentLayer, gate: str) -> Tensor:
    """(N, D), or (N, 2 D) in a layer that reads x_(t-1) too: what the gate multiplies its inputs with."""
    tensors, blank = place.gates[gate], None
    some = next(t.input for t in place.gates.values() if t.input is not None)
    blank = torch.zeros_like(some)
    parts = [blank if tensors.input is None else tensors.input]
    if Layout.of(place.cell).stacks["weight_ph"]:
        parts.append(blank if tensors.previous_input is None else tensors.previous_input)
    return torch.cat(parts, -1)


def _biases(place: RecurrentLayer, gates: Sequence[str]) -> Tensor | None:
    if not any(place.gates[gate].biases for gate in gates):
        return None
    some = next(bias for tensors in place.gates.values() for bias in tensors.biases)
    blank = torch.zeros_like(some, dtype=torch.float64)
    return torch.cat([sum((bias.double() for bias in place.gates[gate].biases), blank) for gate in gates])


def _present(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


def _in_double(weights: Weights) -> Weights:
    def cast(tensor: Tensor | None) -> Tensor | None:
        # A copy, so that nothing of the module can be written to or differentiated.
        return None if tensor is None else tensor.detach().to(torch.float64, copy=True)

    return replace(
        weights,
        matrix=_present(cast(weights.matrix)),
        bias=cast(weights.bias),
        recurrent=cast(weights.recurrent),
        offset=cast(weights.offset),
        projection=cast(weights.projection),
        units={name: _present(cast(value)) for name, value in weights.units.items()},
    )
