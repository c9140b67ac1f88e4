"""A whole sequence through one layer and direction, cell step by cell step: differentiable any number of times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from isornn.cells import Cell, Values
from isornn.nn.layout import Layout
from isornn.nn.step import step


@dataclass(frozen=True)
class Weights:
    """What one layer and direction computes with; untied ones, the first four, have a leading axis of steps.

    Args:
        matrix: (K N, D), what the K driven gates multiply ``inputs`` with.
        bias: (K N,) of the driven gates; ``offset`` (J N,) of the others.
        recurrent: (M N, P) of the M gates that read the state.
        projection: (P, N), LSTM's ``weight_hr``.
        units: the cell's own parameters, (N,) each, by name.
    """

    matrix: Tensor
    bias: Tensor | None
    recurrent: Tensor | None
    offset: Tensor | None
    projection: Tensor | None
    units: Mapping[str, Tensor]

    @property
    def tied(self) -> bool:
        """Whether all steps use the same."""
        return self.matrix.dim() == 2

    def tensors(self) -> list[Tensor | None]:
        """All of them, ``None`` where the layer has none."""
        return [self.matrix, self.bias, self.recurrent, self.offset, self.projection, *self.units.values()]

    def named(self) -> dict[str, Tensor]:
        """What there is beside ``matrix``, by the parameters' names; biases are sums of two."""
        found = {"biases": self.bias, "weight_hh": self.recurrent, "bias_hh": self.offset, "weight_hr": self.projection}
        return {name: value for name, value in (found | dict(self.units)).items() if value is not None}

    def to(self, dtype: torch.dtype) -> Weights:
        """The same in another precision."""

        def cast(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(dtype)

        shared = cast(self.bias), cast(self.recurrent), cast(self.offset), cast(self.projection)
        return Weights(self.matrix.to(dtype), *shared, {name: value.to(dtype) for name, value in self.units.items()})

    def from_step(self, start: int) -> Weights:
        """What the steps from ``start`` on use."""
        if self.tied:
            return self

        def cut(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[start:]

        matrix, bias = self.matrix[start:], cut(self.bias)
        return replace(self, matrix=matrix, bias=bias, recurrent=cut(self.recurrent), offset=cut(self.offset))


def stepped(
    cell: Cell,
    layout: Layout,
    inputs: Tensor,
    pointwise: Tensor | None,
    weights: Weights,
    initial: Sequence[Tensor],
) -> list[Tensor]:
    """Reference recurrence: the cell's step applied T times in Python, differentiable any number of times."""
    length, hidden = len(inputs), weights.matrix.shape[-2] // len(layout.driven)
    drive = driven(inputs, weights.matrix, weights.bias).unflatten(-1, (-1, hidden)).unbind(-2)
    by_gate = {gate: value.unbind(0) for gate, value in zip(layout.driven, drive, strict=True)}
    by_gate |= constant_drive(layout, weights.offset, length, hidden, initial[0])
    # Unbound once: the gradient of an index is as large as the sequence.
    fed = None if pointwise is None else pointwise.unbind(0)
    matrices = recurrent_matrices(layout, weights.recurrent, length, hidden)
    states, record = Values(**dict(zip(cell.states, initial, strict=True))), []
    for t in range(length):
        now = {gate: value[t] for gate, value in by_gate.items()}
        x = None if fed is None else fed[t]
        states, results = _advanced(cell, layout, states, now, x, matrices[t], weights)
        record.append(results)
    return [torch.stack(values) for values in zip(*record, strict=True)]


def scanned(
    cell: Cell,
    layout: Layout,
    inputs: Tensor,
    pointwise: Tensor | None,
    weights: Weights,
    initial: Sequence[Tensor],
) -> list[Tensor]:
    """`stepped` with tied weights as torch's ``scan`` operator: a loop for exporters, of any length."""
    from torch._higher_order_ops.scan import scan_op

    hidden = weights.matrix.shape[-2] // len(layout.driven)
    (matrices,) = recurrent_matrices(layout, weights.recurrent, 1, hidden)
    constant = {gate: part for gate, (part,) in constant_drive(layout, weights.offset, 1, hidden, initial[0]).items()}
    projection = [] if weights.projection is None else [weights.projection]
    fed = [driven(inputs, weights.matrix, weights.bias), *([] if pointwise is None else [pointwise])]
    # The operator is called as itself, with all that a step reads: its public front compiles the step, for a minute.
    read = [*matrices.values(), *constant.values(), *weights.units.values(), *projection]

    def advance(*given: Tensor) -> list[Tensor]:
        rest = iter(given)
        states = Values(**{name: next(rest) for name in cell.states})
        drive = next(rest).unflatten(-1, (len(layout.driven), hidden)).unbind(-2)
        x = None if pointwise is None else next(rest)
        by_gate = {gate: next(rest) for gate in matrices}
        now = dict(zip(layout.driven, drive, strict=True)) | {gate: next(rest) for gate in constant}
        own = replace(weights, units={name: next(rest) for name in weights.units}, projection=next(rest, None))
        states, results = _advanced(cell, layout, states, now, x, by_gate, own)
        # No tensor may be given out as both state and result.
        return [*(getattr(states, name) for name in cell.states), *(value.clone() for value in results)]

    found: Sequence[Tensor] = scan_op(advance, list(initial), fed, tuple(read))
    return list(found[len(cell.states) :])


def _advanced(
    cell: Cell,
    layout: Layout,
    states: Values,
    now: Mapping[str, Tensor],
    x: Tensor | None,
    matrices: Mapping[str, Tensor],
    weights: Weights,
) -> tuple[Values, list[Tensor]]:
    """The states after a step and the step's results, given what ``now`` drives each gate with."""
    multiply = products(layout, matrices, getattr(states, cell.states[0]))
    states, u = step(cell, states, now, multiply, x, weights.units)
    if weights.projection is not None:
        first = nn.functional.linear(getattr(states, cell.states[0]), weights.projection)
        setattr(states, cell.states[0], first)
    return states, _results(cell, layout, states, u)


def _results(cell: Cell, layout: Layout, states: Values, u: Values) -> list[Tensor]:
    values = [getattr(states, name) for name in cell.states]
    return values if layout.results == len(values) else [*values, cell.output(states, u)]


def driven(inputs: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """(T, B, K N): all of the driven gates' pre-activations but the recurrent product, for all steps at once."""
    if matrix.dim() == 2:
        return nn.functional.linear(inputs, matrix, bias)
    product = inputs @ matrix[: len(inputs)].mT
    return product if bias is None else product + bias[: len(inputs), None]


def constant_drive(
    layout: Layout, offset: Tensor | None, length: int, hidden: int, like: Tensor
) -> dict[str, Sequence[Tensor]]:
    """For each gate that reads the state alone its bias at every step, or 0."""
    if not layout.undriven:
        return {}
    if offset is None:
        offset = like.new_zeros(len(layout.undriven) * hidden)
    parts = offset.unflatten(-1, (-1, hidden)).unbind(-2)
    return {
        gate: [part] * length if part.dim() == 1 else part.unbind(0)
        for gate, part in zip(layout.undriven, parts, strict=True)
    }


def recurrent_matrices(layout: Layout, recurrent: Tensor | None, length: int, hidden: int) -> list[dict[str, Tensor]]:
    """For each step, the recurrent matrix of each gated reading and, under ``""``, the rest in one."""
    if recurrent is None:
        return [{}] * length
    parts = dict(zip(layout.stacks["weight_hh"], recurrent.unflatten(-2, (-1, hidden)).unbind(-3), strict=True))
    matrices = {gate: part for gate, part in parts.items() if gate not in layout.plain}
    if layout.plain:
        matrices[""] = torch.cat([parts[gate] for gate in layout.plain], -2)
    if recurrent.dim() == 2:
        return [matrices] * length
    return [{gate: part[t] for gate, part in matrices.items()} for t in range(length)]


def products(layout: Layout, matrices: Mapping[str, Tensor], first: Tensor) -> Callable[[str, Tensor], Tensor]:
    """``W_k r`` by gate and r, as `step` takes it; the gates that read the first state itself share one product.

    Args:
        layout: the cell's.
        matrices: of one step, from `recurrent_matrices`.
        first: the first state.
    """
    shared: dict[str, Tensor] = {}
    if layout.plain:
        product = nn.functional.linear(first, matrices[""])
        shared = dict(zip(layout.plain, product.chunk(len(layout.plain), dim=-1), strict=True))

    def multiply(gate: str, r: Tensor) -> Tensor:
        return shared[gate] if gate in shared else nn.functional.linear(r, matrices[gate])

    return multiply
