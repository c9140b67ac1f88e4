"""A whole sequence through one layer and direction: by a hand-written kernel, or cell step by cell step.

The kernels are one torch operation, ``isornn::recurrence``, so that compilers and exporters take the loop over time
as a whole, whatever its length; its second derivatives go through the cell's own steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from isornn.cells import Cell, Values
from isornn.nn.kernels import Given, Kernel, kernel_of
from isornn.nn.layout import Layout, cell_of
from isornn.nn.step import step

_TENSORS = 6  # inputs, matrix, bias, recurrent, offset, pointwise


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

    def from_step(self, start: int) -> Weights:
        """What the steps from ``start`` on use."""
        if self.tied:
            return self

        def cut(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[start:]

        matrix, bias = self.matrix[start:], cut(self.bias)
        return replace(self, matrix=matrix, bias=bias, recurrent=cut(self.recurrent), offset=cut(self.offset))


def recurrence(
    cell: Cell,
    layout: Layout,
    inputs: Tensor,
    pointwise: Tensor | None,
    weights: Weights,
    initial: Sequence[Tensor],
    detached: Tensor | None = None,
) -> list[Tensor]:
    """Results over a sequence: the cell's states in their order, then its output where that is not the first state.

    Args:
        cell, layout: the cell and its layout.
        inputs: (T, B, D), what ``weights.matrix`` multiplies.
        pointwise: (T, B, N) where the input enters pointwise.
        weights: the layer's.
        initial: states before the first step, (B, N) each, (B, P) where the state is projected.
        detached: (T,) booleans: at which steps no gradient goes from the gates into the state before.

    Returns:
        Each (T, B, N), or (T, B, P).
    """
    plain = weights.tied and detached is None and inputs.shape[1] > 0 and not _transformed()
    kernel = _kernel(cell, weights.projection)
    if not plain or (kernel is None and not torch.compiler.is_exporting()):
        return stepped(cell, layout, inputs, pointwise, weights, initial, detached)
    dtype = inputs.dtype
    # Half precision would round at every step of a long product of gates: computed in single, rounded once.
    working = torch.promote_types(dtype, torch.float32)

    def cast(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.to(working)

    found = _recurrence(
        layout.key,
        inputs.to(working),
        weights.matrix.to(working),
        cast(weights.bias),
        cast(weights.recurrent),
        cast(weights.offset),
        cast(pointwise),
        cast(weights.projection),
        [value.to(working) for value in weights.units.values()],
        [value.to(working) for value in initial],
        torch.is_grad_enabled(),
    )
    return [value.to(dtype) for value in found[: _count_results(cell)]]


def _transformed() -> bool:
    """Whether torch.func's transforms are at work, which cannot see into an operation."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def _kernel(cell: Cell, projection: Tensor | None) -> Kernel | None:
    return kernel_of(cell) if projection is None else None


def stepped(
    cell: Cell,
    layout: Layout,
    inputs: Tensor,
    pointwise: Tensor | None,
    weights: Weights,
    initial: Sequence[Tensor],
    detached: Tensor | None = None,
) -> list[Tensor]:
    """The same by the cell's own steps, differentiable any number of times."""
    length, hidden = len(inputs), weights.matrix.shape[-2] // max(len(layout.driven), 1)
    drive = _drive(inputs, weights.matrix, weights.bias).unflatten(-1, (-1, hidden)).unbind(-2)
    by_gate = {gate: value.unbind(0) for gate, value in zip(layout.driven, drive, strict=True)}
    by_gate |= _constant(layout, weights.offset, length, hidden, initial[0])
    # Unbound once: the gradient of an index is as large as the sequence.
    fed = None if pointwise is None else pointwise.unbind(0)
    matrices = _matrices(layout, weights.recurrent, length, hidden)
    states, record = Values(**dict(zip(cell.states, initial, strict=True))), []
    for t in range(length):
        if detached is not None:
            first = getattr(states, cell.states[0])
            setattr(states, cell.states[0], torch.where(detached[t], first.detach(), first))
        products = _Products(matrices[t], getattr(states, cell.states[0]), layout.plain)
        now = {gate: value[t] for gate, value in by_gate.items()}
        x = None if fed is None else fed[t]
        states, u = step(cell, states, now, products, x, weights.units)
        if weights.projection is not None:
            first = nn.functional.linear(getattr(states, cell.states[0]), weights.projection)
            setattr(states, cell.states[0], first)
        record.append(_results(cell, states, u))
    return [torch.stack(values) for values in zip(*record, strict=True)]


def _results(cell: Cell, states: Values, u: Values) -> list[Tensor]:
    values = [getattr(states, name) for name in cell.states]
    return values if _output_is_first_state(cell) else [*values, cell.output(states, u)]


def _output_is_first_state(cell: Cell) -> bool:
    return type(cell).output is Cell.output


def _count_results(cell: Cell) -> int:
    return len(cell.states) + (not _output_is_first_state(cell))


def _drive(inputs: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """(T, B, K N): all of the driven gates' pre-activations but the recurrent product, for all steps at once."""
    if matrix.dim() == 2:
        return nn.functional.linear(inputs, matrix, bias)
    product = inputs @ matrix[: len(inputs)].mT
    return product if bias is None else product + bias[: len(inputs), None]


def _constant(
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


def _matrices(layout: Layout, recurrent: Tensor | None, length: int, hidden: int) -> list[dict[str, Tensor]]:
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


class _Products:
    """``W_k r`` for the gates of one step; those that read the first state itself share one product."""

    def __init__(self, matrices: Mapping[str, Tensor], first: Tensor, plain: tuple[str, ...]) -> None:
        self.matrices = matrices
        self.shared: dict[str, Tensor] = {}
        if plain:
            product = nn.functional.linear(first, matrices[""])
            self.shared = dict(zip(plain, product.chunk(len(plain), dim=-1), strict=True))

    def __call__(self, gate: str, r: Tensor) -> Tensor:
        return self.shared[gate] if gate in self.shared else nn.functional.linear(r, self.matrices[gate])


def _cell(key: str) -> tuple[Cell, Layout]:
    cell = cell_of(key)
    return cell, Layout.of(cell)


@torch.library.custom_op("isornn::recurrence", mutates_args=())
def _recurrence(
    cell: str,
    inputs: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    recurrent: Tensor | None,
    offset: Tensor | None,
    pointwise: Tensor | None,
    projection: Tensor | None,
    units: list[Tensor],
    initial: list[Tensor],
    keep: bool,
) -> list[Tensor]:
    """Results, and if ``keep`` what the kernel's backward pass wants; a cell without kernel is stepped."""
    kind, layout = _cell(cell)
    kernel = _kernel(kind, projection)
    if kernel is None:
        named = dict(zip(kind.parameters, units, strict=True))
        weights = Weights(matrix, bias, recurrent, offset, projection, named)
        return stepped(kind, layout, inputs, pointwise, weights, initial)
    with torch.autocast(inputs.device.type, enabled=False):  # what comes is in the precision to compute in
        drive = _drive(inputs, matrix, bias)
        given = Given(_whole(recurrent), offset, _whole(pointwise), _each_whole(units), _each_whole(initial))
        results, kept = kernel.forward(drive, given, keep)
    return [*results, *kept]


@_recurrence.register_fake
def _(
    cell: str,
    inputs: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    recurrent: Tensor | None,
    offset: Tensor | None,
    pointwise: Tensor | None,
    projection: Tensor | None,
    units: list[Tensor],
    initial: list[Tensor],
    keep: bool,
) -> list[Tensor]:
    kind, layout = _cell(cell)
    hidden = matrix.shape[0] // max(len(layout.driven), 1)
    sizes = [value.shape[-1] for value in initial] + [hidden] * (not _output_is_first_state(kind))
    kernel = _kernel(kind, projection)
    if keep and kernel is not None:
        sizes += [width * hidden for width in kernel.kept_widths]
    return [inputs.new_empty(*inputs.shape[:2], size) for size in sizes]


@torch.library.custom_op("isornn::recurrence_backward", mutates_args=())
def _recurrence_backward(
    cell: str,
    inputs: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    recurrent: Tensor | None,
    offset: Tensor | None,
    pointwise: Tensor | None,
    units: list[Tensor],
    initial: list[Tensor],
    results: list[Tensor],
    kept: list[Tensor],
    grads: list[Tensor],
    given: list[int],
    wants_inputs: bool,
) -> list[Tensor]:
    """Gradients of inputs (empty unless wanted) and of each tensor from matrix to initial, where there are.

    ``grads`` are those of the results at the places ``given``.
    """
    kernel = kernel_of(_cell(cell)[0])
    assert kernel is not None
    by_result: list[Tensor | None] = [None] * len(results)
    for place, grad in zip(given, grads, strict=True):
        by_result[place] = grad
    with torch.autocast(inputs.device.type, enabled=False):
        fixed = Given(_whole(recurrent), offset, _whole(pointwise), _each_whole(units), _each_whole(initial))
        found = kernel.backward(fixed, results, kept, by_result)
        first = (found.drive @ matrix) if wants_inputs else inputs.new_empty(0)
        flat = found.drive.flatten(0, 1)
        own = [flat.mT @ inputs.flatten(0, 1), *([] if bias is None else [flat.sum(0)])]
    rest = [value for value in (found.weight, found.offset, found.x) if value is not None]
    return [first, *own, *rest, *found.units, *found.initial]


@_recurrence_backward.register_fake
def _(
    cell: str,
    inputs: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    recurrent: Tensor | None,
    offset: Tensor | None,
    pointwise: Tensor | None,
    units: list[Tensor],
    initial: list[Tensor],
    results: list[Tensor],
    kept: list[Tensor],
    grads: list[Tensor],
    given: list[int],
    wants_inputs: bool,
) -> list[Tensor]:
    first = torch.empty_like(inputs) if wants_inputs else inputs.new_empty(0)
    rest = [tensor for tensor in (bias, recurrent, offset, pointwise) if tensor is not None]
    return [first, *(torch.empty_like(tensor) for tensor in (matrix, *rest, *units, *initial))]


def _whole(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _each_whole(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.contiguous() for tensor in tensors]


def _parts(values: Iterable[Any], counts: Sequence[int]) -> list[list[Any]]:
    """The values in runs of these lengths."""
    ordered = iter(values)
    return [list(islice(ordered, count)) for count in counts]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    cell, *tensors, projection, units, initial, keep = inputs
    if _kernel(_cell(cell)[0], projection) is None:
        return
    ctx.set_materialize_grads(False)
    results = _count_results(_cell(cell)[0])
    ctx.cell, ctx.kept_any = cell, keep
    ctx.counts = _TENSORS, len(units), len(initial), results, len(output) - results
    ctx.save_for_backward(*tensors, *units, *initial, *output)


def _differentiate(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    if not getattr(ctx, "kept_any", False):
        raise RuntimeError("isornn::recurrence: exported or run without gradients, which now are asked for")
    tensors, units, initial, results, kept = _parts(ctx.saved_tensors, ctx.counts)
    grads = grads[: len(results)]
    given = [place for place, grad in enumerate(grads) if grad is not None]
    present = [grad for grad in grads if grad is not None]
    wants = ctx.needs_input_grad[1]
    found = _recurrence_backward(ctx.cell, *tensors, units, initial, results, kept, present, given, wants)
    first, *others = found
    ordered = iter(others)
    optional = [None if tensor is None else next(ordered) for tensor in tensors[1:]]
    of_units, of_initial = _parts(ordered, (len(units), len(initial)))
    return None, first if wants else None, *optional, None, of_units, of_initial, None


_recurrence.register_autograd(_differentiate, setup_context=_remember)


def _remember_backward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    cell, *tensors, units, initial, results, kept, grads, given, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.cell, ctx.given = cell, given
    ctx.saved, ctx.unused = (_TENSORS, len(units), len(initial), len(grads)), (len(results), len(kept))
    ctx.save_for_backward(*tensors, *units, *initial, *grads)


def _differentiate_twice(ctx: Any, seconds: list[Tensor | None]) -> tuple[Any, ...]:
    """Through the cell's own steps, differentiated twice; exact, and differentiable again."""
    cell, layout = _cell(ctx.cell)
    further = torch.is_grad_enabled()
    with torch.enable_grad():
        # Fresh names for the same values: what is differentiated for must not be behind another in the graph.
        fresh = [None if t is None else t.view_as(t).requires_grad_(True) for t in ctx.saved_tensors]
        (inputs, matrix, bias, recurrent, offset, pointwise), units, initial, given = _parts(fresh, ctx.saved)
        named = dict(zip(cell.parameters, units, strict=True))
        weights = Weights(matrix, bias, recurrent, offset, None, named)
        found = stepped(cell, layout, inputs, pointwise, weights, initial)
        chosen = [found[place] for place in ctx.given]
        present = [tensor for tensor in fresh if tensor is not None]
        sources = present[: len(present) - len(given)]
        first = torch.autograd.grad(chosen, sources, given, create_graph=True, allow_unused=True)
        pairs = [(value, grad) for value, grad in zip(first, seconds, strict=True) if grad is not None]
        pairs = [(value, grad) for value, grad in pairs if value is not None and value.requires_grad]
        second = torch.autograd.grad(
            [value for value, _ in pairs],
            present,
            [grad for _, grad in pairs],
            create_graph=further,
            allow_unused=True,
        )
    ordered = iter(second)
    gradients = [None if tensor is None else next(ordered) for tensor in fresh]
    of_tensors, of_units, of_initial, of_given = _parts(gradients, ctx.saved)
    results, kept = ([None] * count for count in ctx.unused)
    return None, *of_tensors, of_units, of_initial, results, kept, of_given, None, None


_recurrence_backward.register_autograd(_differentiate_twice, setup_context=_remember_backward)
