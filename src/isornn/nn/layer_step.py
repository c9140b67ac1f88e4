"""One step of a layer and direction of a recurrent module, torch's or ours, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from isornn.cells import Cell, Values
from isornn.cells.trace import graph_of
from isornn.nn.gate_tensors import RecurrentLayer
from isornn.nn.layout import Layout
from isornn.nn.step import pre_activations, step
from isornn.nn.stepped import Weights, constant_drive, driven, products, recurrent_matrices, stepped

States = tuple[Tensor, ...]
Drive = Mapping[str, Tensor]


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
        (self.matrices,) = recurrent_matrices(self.layout, weights.recurrent, 1, self.hidden)

    @staticmethod
    def of(layer: RecurrentLayer) -> LayerStep:
        """The step of a module's layer, with a copy of its weights."""
        return LayerStep(layer.cell, cast(weights_of(layer), torch.float64))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Width of each state: N, or the projection's P for the first."""
        projection = self.weights.projection
        first = self.hidden if projection is None else projection.shape[0]
        return (first, *(self.hidden for _ in self.cell.states[1:]))

    def drive(self, inputs: Tensor) -> dict[str, Tensor]:
        """By gate (..., N): input part and bias of inputs (..., D)."""
        parts = driven(inputs, self.weights.matrix, self.weights.bias).unflatten(-1, (-1, self.hidden)).unbind(-2)
        constant = constant_drive(self.layout, self.weights.offset, 1, self.hidden, inputs)
        own = {gate: part.expand_as(parts[0]) for gate, (part,) in constant.items()}
        return dict(zip(self.layout.driven, parts, strict=True)) | own

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
        return products(self.layout, self.matrices, first)

    @property
    def shared(self) -> Tensor | None:
        """The matrices of the gates that read the first state itself, in one."""
        return self.matrices.get("")

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

    def run(self, inputs: Tensor) -> Tensor:
        """Outputs (T, B, .) over inputs (T, B, D), from states that are 0.

        Step by step: one run does not repay the seconds in which a kernel is compiled.
        """
        x = inputs.double()
        first = tuple(x.new_zeros(x.shape[1], size) for size in self.sizes)
        return self.shown(stepped(self.cell, self.layout, x, self.pointwise(x), self.weights, first))

    def shown(self, found: Sequence[Tensor]) -> Tensor:
        """Of all that steps give, the states and what is shown of them where that is no state: the outputs."""
        return found[0] if self.gives_state else found[-1]

    @property
    def gives_state(self) -> bool:
        """Whether the output is the first state."""
        return graph_of(self.cell).output_is_first_state


def weights_of(layer: RecurrentLayer) -> Weights:
    """What the layer computes with, differentiable with respect to its tensors."""
    layout, gates = Layout.of(layer.cell), layer.gates
    stack = layout.stacks["weight_hh"]
    recurrent = [gates[gate].recurrent for gate in stack]
    return Weights(
        matrix=torch.cat([_rows(layer, gate) for gate in layout.driven]),
        bias=_biases(layer, layout.driven),
        recurrent=torch.cat([matrix for matrix in recurrent if matrix is not None]) if stack else None,
        offset=_biases(layer, layout.undriven),
        projection=layer.projection,
        units=dict(layer.parameters),
    )


def _rows(layer: RecurrentLayer, gate: str) -> Tensor:
    """(N, D), or (N, 2 D) in a layer that reads x_(t-1) too: what the gate multiplies its inputs with."""
    tensors = layer.gates[gate]
    shaped = (t.previous_input if t.input is None else t.input for t in layer.gates.values())
    blank = torch.zeros_like(next(matrix for matrix in shaped if matrix is not None))
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


def cast(weights: Weights, dtype: torch.dtype) -> Weights:
    """A copy, so that nothing of a module can be written to or differentiated."""

    def cast(tensor: Tensor) -> Tensor:
        return tensor.detach().to(dtype, copy=True)

    own = {name: cast(value) for name, value in vars(weights).items() if isinstance(value, Tensor)}
    return replace(weights, **own, units={name: cast(value) for name, value in weights.units.items()})
