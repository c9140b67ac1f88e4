"""A whole sequence through one layer and direction: by a kernel, or cell step by cell step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.jit._trace import is_tracing

from isornn.cells import Cell
from isornn.nn.layout import Layout
from isornn.nn.operation import forward_recurrence, kernel_for
from isornn.nn.stepped import Weights, scanned, stepped


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
    given = [inputs, pointwise, *initial, *weights.tensors()]
    plain = weights.tied and detached is None and not transformed(given)
    kernel = kernel_for(cell, weights.projection)
    # A program has the operation whatever the cell and the batch: steps would be those of the example alone.
    recorded = torch.compiler.is_exporting() or is_tracing()
    if not plain or not (recorded or (kernel is not None and inputs.shape[1] > 0)):
        return stepped(cell, layout, inputs, pointwise, weights, initial, detached)
    dtype = inputs.dtype
    # Half precision would round at every step of a long product of gates: computed in single, rounded once.
    working = torch.promote_types(dtype, torch.float32)
    inputs, weights, initial = inputs.to(working), weights.to(working), [value.to(working) for value in initial]
    pointwise = None if pointwise is None else pointwise.to(working)
    if torch.compiler.is_exporting() and torch.onnx.is_in_onnx_export():  # ONNX knows torch's own operations alone
        found: Sequence[Tensor] = scanned(cell, layout, inputs, pointwise, weights, initial)
    else:
        found = forward_recurrence(
            layout.key,
            inputs,
            weights.matrix,
            weights.bias,
            weights.recurrent,
            weights.offset,
            pointwise,
            weights.projection,
            list(weights.units.values()),
            initial,
            torch.is_grad_enabled() or is_tracing(),  # a trace runs in either mode
        )
    return [value.to(dtype) for value in found[: layout.results]]


def transformed(given: Iterable[Tensor | None]) -> bool:
    """Whether torch.func's transforms or forward derivatives are active; they do not support custom operations."""
    if torch.compiler.is_compiling():
        return False
    if torch._C._are_functorch_transforms_active():
        return True
    return any(value is not None and forward_ad.unpack_dual(value).tangent is not None for value in given)
