"""Steps on the group of orthogonal matrices: along the Cayley transform, and back onto it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# The linear solve, which needs no small X, costs 3 to 8 products at 1000 to 128 units, and its polish 2.
_HIGHEST_ORDER = 4


def rotated(basis: Tensor, gradient: Tensor, rate: float) -> Tensor:
    """The step of steepest descent that stays on the manifold: ``M_new = (I + rate/2 A)^-1 (I - rate/2 A) M``.

    With ``A = G M^T - M G^T``, G the gradient of the loss with respect to M. For a square M the same step is

    ``M_new = M (I + X)^-1 (I - X)``, ``X = rate/2 (M^T G - G^T M)``,

    where X is skew, one product gives it, and small steps are a short series,
    ``M_new = M (I - 2 X + 2 X^2 - ...)``. It ends after the power k where what it leaves out, ``2 ||X||_F^(k+1)``, is
    at most half of the precision's epsilon times ``||M||_F = sqrt(N)``, as M's own rounding is, and what that adds to
    ``M^T M``, ``4 ||X||^(k+1)``, for even k ``4 ||X||^(k+2)``, at most epsilon. A larger X is solved for.

    Args:
        basis: M, (..., N, N), orthogonal.
        gradient: G, of the same shape.
        rate: the learning rate.

    Returns:
        M_new. ``M_new^T M_new`` differs from ``M^T M`` by epsilon, in the Frobenius norm, and by rounding.

    Raises:
        ValueError: the gradient is not finite.

    Source: Vorontsov et al. 2017, eq. 9, which is printed with ``M +`` before the product; that sum is not orthogonal.

    >>> quarter = rotated(torch.eye(2), torch.tensor([[0.0, 1.0], [-1.0, 0.0]]), rate=1.0)
    >>> quarter  # X = [[0, 1], [-1, 0]]
    tensor([[ 0., -1.],
            [ 1.,  0.]])
    """
    return turned(basis, rate / 2 * turn(basis, gradient))


def turn(basis: Tensor, gradient: Tensor) -> Tensor:
    """``M^T G - G^T M``, (..., N, N): the skew B with ``A M = M B``, the gradient as the basis sees it."""
    product = gradient.mT @ basis
    return product.mT - product


def turned(basis: Tensor, x: Tensor) -> Tensor:
    """``M (I + X)^-1 (I - X)`` for a skew X, as exactly as `rotated` says.

    Raises:
        ValueError: X is not finite.
    """
    size = torch.linalg.matrix_norm(x).max().item()
    if not math.isfinite(size):
        raise ValueError("gradient: NaN or infinity is not allowed")
    order = _order(size, basis.shape[-1], basis.dtype)
    return _solved(basis, x) if order > _HIGHEST_ORDER else _summed(basis, x, order)


def polished(basis: Tensor) -> Tensor:
    """``M (3 I - M^T M) / 2``: a Newton-Schulz step back to the nearest orthogonal matrix.

    An error e of ``M^T M`` becomes ``3/4 e^2``, so rounding errors are gone after one step.

    >>> polished(torch.tensor([[1.01]]))
    tensor([[0.9998]])
    """
    return 1.5 * basis - 0.5 * (basis @ (basis.mT @ basis))


def _order(size: float, units: int, dtype: torch.dtype) -> int:
    """The power of X after which the series may end, `_HIGHEST_ORDER` + 1 if that is too far."""
    if size == 0.0:
        return 0
    epsilon = torch.finfo(dtype).eps
    for order in range(1, _HIGHEST_ORDER + 1):
        remainder = 2 * size ** (order + 1)
        # Odd powers of X are skew and cancel in M^T M.
        drift = 2 * remainder * (size if order % 2 == 0 else 1.0)
        if remainder <= epsilon / 2 * math.sqrt(units) and drift <= epsilon:
            return order
    return _HIGHEST_ORDER + 1


def _summed(basis: Tensor, x: Tensor, order: int) -> Tensor:
    """``M + 2 sum_k M (-X)^k`` up to the power ``order``."""
    total, power = basis, basis
    for k in range(1, order + 1):
        power = power @ x
        total = total.add(power, alpha=-2.0 if k % 2 else 2.0)
    return total


def _solved(basis: Tensor, x: Tensor) -> Tensor:
    """``M (I + X)^-1 (I - X) = 2 M (I + X)^-1 - M``; ``I + X`` is regular because X is skew."""
    unit = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    # Rounding grows with X, beyond what `rotated` promises.
    return polished(2 * torch.linalg.solve(unit + x, basis, left=False) - basis)
