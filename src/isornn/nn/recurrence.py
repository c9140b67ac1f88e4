"""A whole sequence through one layer and direction: by a kernel, or cell step by cell step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.jit._trace import is_tracing

from isornn.cells import Cell
from isornn.nn.autocast import without_autocast
from isornn.nn.layout import Layout
from isornn.nn.operation import forward_recurrence, kernel_for
from isornn.nn.stepped import Weights, scanned, stepped
from isornn.nn.torch_cells import by_torch_cells, runs_torch_cells


def recurrence(
    cell: Cell,
    layout: Layout,
    inputs: Tensor,
    pointwise: Tensor | None,
    weights: Weights,
    initial: Sequence[Tensor],
) -> list[Tensor]:
    """Results over a sequence: the cell's states in their order, then its output where that is not the first state.

    Args:
        cell, layout: the cell and its layout.
        inputs: (T, B, D), what ``weights.matrix`` multiplies.
        pointwise: (T, B, N) where the input enters pointwise.
        weights: the layer's.
        initial: states before the first step, (B, N) each, (B, P) where the state is projected.

    Returns:
        Each (T, B, N), or (T, B, P).
    """
    # A program has the operation whatever the cell and the batch: steps would be those of the example alone.
    as_program = torch.compiler.is_exporting() or is_tracing()
    as_operation = as_program or (inputs.shape[1] > 0 and _has_kernel(cell, layout, inputs, weights, initial))
    plain = weights.tied and not transformed([inputs, pointwise, *initial, *weights.tensors()])
    if not (plain and as_operation):
        return stepped(cell, layout, inputs, pointwise, weights, initial)
    if layout.mode is not None and not as_program and runs_torch_cells(inputs, weights):
        with without_autocast(inputs.device.type):
            return by_torch_cells(layout.mode, inputs, weights, initial)
    run: Callable[..., Sequence[Tensor]] = _by_operation
    if torch.compiler.is_exporting() and torch.onnx.is_in_onnx_export():  # ONNX knows torch's own operations alone
        run = scanned
    elif weights.projection is not None and not as_program:
        run = _projected
    # Half precision would round at every step of a long product of gates: computed in single, rounded once.
    dtype, working = inputs.dtype, torch.promote_types(inputs.dtype, torch.float32)
    if working != dtype:
        inputs, weights, initial = inputs.to(working), weights.to(working), [value.to(working) for value in initial]
        pointwise = None if pointwise is None else pointwise.to(working)
    with without_autocast(inputs.device.type):  # what comes is in the precision to compute in
        found = run(cell, layout, inputs, pointwise, weights, initial)
    return [value.to(dtype) for value in found[: layout.results]]


def _has_kernel(cell: Cell, layout: Layout, inputs: Tensor, weights: Weights, initial: Sequence[Tensor]) -> bool:
    # An output of its own reads the projected state, which no kernel has.
    reads_projected = weights.projection is not None and layout.results > len(initial)
    return kernel_for(cell, None) is not None and not reads_projected and not inputs.dtype.is_complex


def _by_operation(
    cell: Cell,
    layout: Layout,
    inputs: Tensor,
    pointwise: Tensor | None,
    weights: Weights,
    initial: Sequence[Tensor],
) -> Sequence[Tensor]:
    """`recurrence` as one operation of torch: the results, and behind them what its backward pass needs."""
    return forward_recurrence(
        layout.key,
        inputs,
        weights.matrix,
        weights.bias,
        weights.recurrent,
        weights.offset,
        pointwise,
        weights.projection,
        list(weights.units.values()),
        list(initial),
        torch.is_grad_enabled() or is_tracing(),  # a trace runs in either mode
    )


def _projected(
    cell: Cell,
    layout: Layout,
    inputs: Tensor,
    pointwise: Tensor | None,
    weights: Weights,
    initial: Sequence[Tensor],
) -> list[Tensor]:
    """`recurrence` of projected states by a kernel, which knows none.

    Gates read ``W_hh W_hr h``: the states are those of one matrix without projection, and are projected all at once.
    The first step reads the state that is given, which is projected already.
    """
    assert weights.recurrent is not None
    assert weights.projection is not None
    whole = replace(weights, projection=None)
    first, rest = (None if pointwise is None else pointwise[steps] for steps in (slice(1), slice(1, None)))
    results = stepped(cell, layout, inputs[:1], first, whole, initial)
    if inputs.shape[0] > 1:
        whole = replace(whole, recurrent=weights.recurrent @ weights.projection)
        states = [value[0] for value in results[: len(initial)]]
        further = recurrence(cell, layout, inputs[1:], rest, whole, states)
        results = [torch.cat(values) for values in zip(results, further, strict=True)]
    return [nn.functional.linear(results[0], weights.projection), *results[1:]]


def transformed(given: Iterable[Tensor | None]) -> bool:
    """Whether torch.func's transforms or forward derivatives are active; they do not support custom operations."""
    if torch._C._are_functorch_transforms_active():
        return True
    # What follows torch's compiler does not know; and no forward derivatives are taken at a level below 0.
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return False
    return any(value is not None and forward_ad.unpack_dual(value).tangent is not None for value in given)
