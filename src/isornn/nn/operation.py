"""The recurrence of a layer as one torch operation, ``isornn::recurrence``.

Compilers and exporters take the loop over time as a whole, whatever its length; second derivatives go through the
cell's own steps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula

from isornn.cells import Cell
from isornn.nn.autocast import without_autocast
from isornn.nn.derivatives import fresh_views, gradients
from isornn.nn.eager import eager
from isornn.nn.kernels import Kernel, RecurrenceArgs, kernel_of
from isornn.nn.kernels.steps import outer_products
from isornn.nn.layout import Layout, cell_of
from isornn.nn.stepped import Weights, driven, stepped

_TENSORS = 6  # inputs, matrix, bias, recurrent, offset, pointwise


def kernel_for(cell: Cell, projection: Tensor | None) -> Kernel | None:
    return kernel_of(cell) if projection is None else None


@functools.cache
def _cell(key: str) -> tuple[Cell, Layout]:
    cell = cell_of(key)
    return cell, Layout.of(cell)


def _forward(
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
    """Results, and if ``keep`` what the kernel's backward pass needs; a cell without kernel runs step by step."""
    kind, layout = _cell(cell)
    kernel = kernel_for(kind, projection)
    with without_autocast(inputs.device.type):  # weights are in the precision to compute in
        inputs, pointwise, initial = _as_weights(matrix, inputs, pointwise, initial)
        if kernel is None:
            named = dict(zip(kind.parameters, units, strict=True))
            weights = Weights(matrix, bias, recurrent, offset, projection, named)
            return stepped(kind, layout, inputs, pointwise, weights, initial)
        drive = driven(inputs, matrix, bias)
        given = RecurrenceArgs(_whole(recurrent), offset, _whole(pointwise), _each_whole(units), _each_whole(initial))
        results, kept = kernel.forward(drive, given, keep)
    return [*results, *kept]


operation = torch.library.custom_op("isornn::recurrence", _forward, mutates_args=())


@operation.register_fake
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
    hidden = matrix.shape[0] // len(layout.driven)
    sizes = [value.shape[-1] for value in initial] + [hidden] * (layout.results - len(initial))
    kernel = kernel_for(kind, projection)
    if keep and kernel is not None:
        sizes += [width * hidden for width in kernel.kept_widths]
    return [inputs.new_empty(*inputs.shape[:2], size) for size in sizes]


def _backward(
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

    ``grads`` are those of the results at the places ``given``. What is ``kept`` may be written over.
    """
    kernel = kernel_of(_cell(cell)[0])
    assert kernel is not None
    by_result: list[Tensor | None] = [None] * len(results)
    for place, grad in zip(given, grads, strict=True):
        by_result[place] = grad
    with without_autocast(inputs.device.type):
        inputs, pointwise, initial = _as_weights(matrix, inputs, pointwise, initial)
        fixed = RecurrenceArgs(_whole(recurrent), offset, _whole(pointwise), _each_whole(units), _each_whole(initial))
        found = kernel.backward(fixed, results, kept, by_result)
        first = (found.drive @ matrix) if wants_inputs else inputs.new_empty(0)
        own = _of_drive(found.drive, inputs, bias is not None)
    rest = [value for value in (found.weight, found.offset, found.x) if value is not None]
    return [first, *own, *rest, *found.units, *found.initial]


def _of_drive(du: Tensor, inputs: Tensor, has_bias: bool) -> list[Tensor]:
    """Gradients of the matrix, and of the bias, which multiplies an input that is always 1."""
    if not has_bias:
        return [outer_products(du, inputs)]
    found = outer_products(du, nn.functional.pad(inputs, (0, 1), value=1.0))
    return [found[:, :-1].contiguous(), found[:, -1].contiguous()]


def _backward_on_copies(*arguments: Any) -> list[Tensor]:
    """`_backward` of an operation, which may not write to what it takes."""
    kept = -4
    copied = [*arguments]
    copied[kept] = [value.clone() for value in copied[kept]]
    return _backward(*copied)


backward_operation = torch.library.custom_op(
    "isornn::recurrence_backward",
    _backward_on_copies,
    mutates_args=(),
    schema=torch.library.infer_schema(_backward, mutates_args=()),
)


@backward_operation.register_fake
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


def _as_weights(
    matrix: Tensor, inputs: Tensor, pointwise: Tensor | None, initial: list[Tensor]
) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """What a layer reads in the precision of its weights.

    It comes in another one where an exported program is run with autocast and was made without, or the reverse.
    """
    dtype = matrix.dtype
    if all(value is None or value.dtype == dtype for value in (inputs, pointwise, *initial)):
        return inputs, pointwise, initial
    return inputs.to(dtype), None if pointwise is None else pointwise.to(dtype), [value.to(dtype) for value in initial]


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
    if kernel_for(_cell(cell)[0], projection) is None:
        return
    ctx.set_materialize_grads(False)
    results = _cell(cell)[1].results
    ctx.cell, ctx.kept_any, ctx.wants_inputs = cell, keep, tensors[0].requires_grad
    ctx.counts = _TENSORS, len(units), len(initial), results, len(output) - results
    ctx.save_for_backward(*tensors, *units, *initial, *output)


def _differentiate(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    if not getattr(ctx, "kept_any", False):
        raise RuntimeError("isornn::recurrence: exported or run without gradients, which now are asked for")
    tensors, units, initial, results, kept = _parts(ctx.saved_tensors, ctx.counts)
    grads = grads[: len(results)]
    if any(grad is not None and torch._C._functorch.is_legacy_batchedtensor(grad) for grad in grads):
        return _differentiate_by_steps(ctx.cell, tensors, units, initial, grads)
    if getattr(ctx, "stale", False) or getattr(ctx, "used", False):
        with torch.no_grad():
            inputs, matrix, bias, recurrent, offset, pointwise = tensors
            args = inputs, matrix, bias, recurrent, offset, pointwise, None, units, initial
            output = _forward(ctx.cell, *args, True)
        results, kept = output[: len(results)], output[len(results) :]
    given = [place for place, grad in enumerate(grads) if grad is not None]
    present = [grad for grad in grads if grad is not None]
    wants = ctx.wants_inputs
    found = backward_recurrence(ctx.cell, *tensors, units, initial, results, kept, present, given, wants)
    ctx.used = True  # what was kept, written over: a graph that is retained computes it again
    first, *others = found
    ordered = iter(others)
    optional = [None if tensor is None else next(ordered) for tensor in tensors[1:]]
    of_units, of_initial = _parts(ordered, (len(units), len(initial)))
    return None, first if wants else None, *optional, None, of_units, of_initial, None


def _differentiate_by_steps(
    key: str, tensors: list[Any], units: list[Any], initial: list[Any], grads: Sequence[Tensor | None]
) -> tuple[Any, ...]:
    """`_differentiate` for many gradients at once (``is_grads_batched``), which a kernel cannot read."""
    counts = _TENSORS, len(units), len(initial)
    with torch.enable_grad():
        fresh = fresh_views([*tensors, *units, *initial])
        found = _results_by_steps(key, *_parts(fresh, counts))
    of_tensors, of_units, of_initial = _parts(gradients(found, fresh, grads, torch.is_grad_enabled()), counts)
    return None, *of_tensors, None, of_units, of_initial, None


def _results_by_steps(key: str, tensors: list[Any], units: list[Tensor], initial: list[Tensor]) -> list[Tensor]:
    cell, layout = _cell(key)
    inputs, matrix, bias, recurrent, offset, pointwise = tensors
    weights = Weights(matrix, bias, recurrent, offset, None, dict(zip(cell.parameters, units, strict=True)))
    return stepped(cell, layout, inputs, pointwise, weights, initial)


operation.register_autograd(_differentiate, setup_context=_remember)
forward_recurrence = eager(operation, _forward, _remember, _differentiate)


def _remember_backward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    cell, *tensors, units, initial, results, kept, grads, given, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.cell, ctx.given = cell, given
    ctx.saved, ctx.unused = (_TENSORS, len(units), len(initial), len(grads)), (len(results), len(kept))
    ctx.save_for_backward(*tensors, *units, *initial, *grads)


def _differentiate_twice(ctx: Any, seconds: list[Tensor | None]) -> tuple[Any, ...]:
    """Through the cell's own steps, differentiated twice; exact, and differentiable again."""
    further = torch.is_grad_enabled()
    with torch.enable_grad():
        fresh = fresh_views(ctx.saved_tensors)
        tensors, units, initial, given = _parts(fresh, ctx.saved)
        found = _results_by_steps(ctx.cell, tensors, units, initial)
        sources = [tensor for tensor in (*tensors, *units, *initial) if tensor is not None]
        first = gradients([found[place] for place in ctx.given], sources, given, True)
        of_all = gradients(first, fresh, seconds, further)
    of_tensors, of_units, of_initial, of_given = _parts(of_all, ctx.saved)
    results, kept = ([None] * count for count in ctx.unused)
    return None, *of_tensors, of_units, of_initial, results, kept, of_given, None, None


backward_operation.register_autograd(_differentiate_twice, setup_context=_remember_backward)
backward_recurrence = eager(backward_operation, _backward, _remember_backward, _differentiate_twice)


@register_flop_formula([torch.ops.isornn.recurrence])
def _operations(
    cell: str, inputs: Sequence[int], matrix: Any, bias: Any, recurrent: Any, *rest: Any, **shape: Any
) -> int:
    """Floating point operations of the forward pass's matrix products, as torch counts those of its own layers."""
    steps, batch, _ = inputs
    return 2 * steps * batch * sum(math.prod(weight) for weight in (matrix, recurrent) if weight is not None)


@register_flop_formula([torch.ops.isornn.recurrence_backward])
def _backward_operations(*shapes: Any, **shape: Any) -> int:
    """Each product again for the gradient of the weight, and for that of what it multiplies, where that is wanted."""
    _, (steps, batch, _), matrix, *_ = shapes
    wants_inputs = shapes[-1]
    return 2 * _operations(*shapes) - (0 if wants_inputs else 2 * steps * batch * math.prod(matrix))
