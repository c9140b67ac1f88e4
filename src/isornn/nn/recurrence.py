"""A whole sequence through one layer and direction: by a kernel, or cell step by cell step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isornn.cells import Cell
from isornn.nn.layout import Layout
from isornn.nn.operation import forward_recurrence, kernel_for
from isornn.nn.stepped import Weights, stepped


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
    kernel = kernel_for(cell, weights.projection)
    if not plain or (kernel is None and not torch.compiler.is_exporting()):
        return stepped(cell, layout, inputs, pointwise, weights, initial, detached)
    dtype = inputs.dtype
    # Half precision would round at every step of a long product of gates: computed in single, rounded once.
    working = torch.promote_types(dtype, torch.float32)

    def cast(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.to(working)

    found = forward_recurrence(
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
    return [value.to(dtype) for value in found[: layout.results]]


def _transformed() -> bool:
    """Whether torch.func's transforms are at work, which cannot see into an operation."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
