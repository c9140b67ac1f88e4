"""Different weights at every step, the papers' assumption: the layer's own with rows, columns and signs permuted.

A shuffled matrix has the entries and the singular values that it had, so whatever law a layer was drawn by (Gaussian,
orthogonal, with a margin), each step's matrix has it too; the layer's parameters stay what is trained.
"""

from __future__ import annotations

import torch
from torch import Tensor


def shuffled_matrices(stack: Tensor, hidden: int, steps: int) -> Tensor:
    """(T, K N, C) from the matrices (K N, C) of K gates: for each gate and step ``S P W P' S'``.

    P, P' are random permutations, S, S' random signs: for any vector each step's matrix then acts like an independent
    draw, up to O(1/sqrt(N)).

    >>> w = torch.linalg.qr(torch.randn(6, 6))[0]
    >>> w_t = shuffled_matrices(w, 6, steps=4)
    >>> torch.allclose(w_t @ w_t.mT, torch.eye(6).expand(4, 6, 6), atol=1e-5)
    True
    """
    matrices = stack.unflatten(0, (-1, hidden))
    gates, columns = len(matrices), stack.shape[1]
    rows, across = _orders(stack, steps, gates, hidden), _orders(stack, steps, gates, columns)
    gate = torch.arange(gates, device=stack.device).reshape(-1, 1, 1)
    taken = matrices[gate, rows.unsqueeze(-1), across.unsqueeze(-2)]
    signs = _signs(stack, steps, gates, hidden).unsqueeze(-1) * _signs(stack, steps, gates, columns).unsqueeze(-2)
    return (taken * signs).flatten(1, 2)


class ShuffledUnits:
    """One order of units for each step: biases of all gates are permuted together, as they may be correlated."""

    def __init__(self, like: Tensor, hidden: int, steps: int) -> None:
        self.orders = _orders(like, steps, hidden)

    def __call__(self, stack: Tensor) -> Tensor:
        """(T, K N) from the biases (K N,) of K gates."""
        biases = stack.unflatten(0, (-1, self.orders.shape[1]))
        return biases[:, self.orders].movedim(0, 1).flatten(1)


def _orders(like: Tensor, *shape: int) -> Tensor:
    return torch.rand(shape, device=like.device).argsort(-1)


def _signs(like: Tensor, *shape: int) -> Tensor:
    return torch.randint(0, 2, shape, device=like.device).to(like.dtype) * 2 - 1
