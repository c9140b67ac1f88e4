"""Gradients through the cell's own steps, where what computed the values has no further derivative."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


def renamed(tensors: Iterable[Tensor | None]) -> list[Any]:
    """Fresh names for the same values: what is differentiated for must not be behind another in the graph."""
    return [None if tensor is None else tensor.view_as(tensor).requires_grad_(True) for tensor in tensors]


def gradients(
    values: Sequence[Tensor | None], sources: Sequence[Tensor | None], arriving: Sequence[Tensor | None], further: bool
) -> list[Tensor | None]:
    """Of ``sum <value, arriving>`` by source; a value may be constant, or detached, in every step of a cell.

    Args:
        further: whether they are differentiable again.
    """
    pairs = [(value, grad) for value, grad in zip(values, arriving, strict=True) if grad is not None]
    pairs = [(value, grad) for value, grad in pairs if value is not None and value.requires_grad]
    if not pairs:
        return [None] * len(sources)
    moving, given = zip(*pairs, strict=True)
    present = [source for source in sources if source is not None]
    found = iter(torch.autograd.grad(moving, present, given, create_graph=further, allow_unused=True))
    return [None if source is None else next(found) for source in sources]
