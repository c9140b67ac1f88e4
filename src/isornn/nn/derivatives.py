"""Gradients through the cell's own steps, where what computed the values has no further derivative."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


def fresh_views(tensors: Iterable[Tensor | None]) -> list[Any]:
    """Views of the tensors to differentiate with respect to, ``None`` where there is none: of two tensors one may have
    been computed from the other, whose gradient would then hold that part too."""
    return [None if tensor is None else tensor.view_as(tensor).requires_grad_(True) for tensor in tensors]


def gradients(
    values: Sequence[Tensor | None], sources: Sequence[Tensor | None], arriving: Sequence[Tensor | None], further: bool
) -> list[Tensor | None]:
    """Vector-Jacobian products: the gradient of ``sum <value, arriving>`` with respect to each source.

    Args:
        values: what was computed; some may be constant, or detached, in every step of a cell.
        sources: what to differentiate with respect to; ``None`` gives ``None``.
        arriving: the gradients with respect to ``values``, of their shapes.
        further: whether the products are differentiable again.
    """
    pairs = [(value, grad) for value, grad in zip(values, arriving, strict=True) if grad is not None]
    pairs = [(value, grad) for value, grad in pairs if value is not None and value.requires_grad]
    if not pairs:
        return [None] * len(sources)
    moving, given = zip(*pairs, strict=True)
    present = [source for source in sources if source is not None]
    found = iter(torch.autograd.grad(moving, present, given, create_graph=further, allow_unused=True))
    return [None if source is None else next(found) for source in sources]
