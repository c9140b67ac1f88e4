"""Gaussian processes over time that grow step by step, and the second moments that they are drawn by.

Layouts: values of units are ``(copies, G, R, n)``, as in the population engine. Covariances and Cholesky factors are
``(G, R, rows, columns)``; a step has one row for each copy, and steps follow one another.
"""

from __future__ import annotations

import torch
from torch import Tensor

# A direction whose variance, given all before, is below this share of its own is rounding, and is dropped.
_ZERO = 1e-11


class Reads:
    """What a recurrent matrix has read so far, and its second moments over units."""

    def __init__(self) -> None:
        self._values: Tensor | None = None

    def met(self, value: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """Second moments of a new ``value`` with all before ``(G, R, S, d)`` and with itself ``(G, R, S, S)``.

        Args:
            value: ``(S, G, R, n)``.
            weights: of units, ``(G, R, n)`` with mean 1, or ``None`` where all are equal.
        """
        new = value.movedim(0, 2)
        weighted = (new if weights is None else new * weights[:, :, None]) / new.shape[-1]
        all_values = new if self._values is None else torch.cat((self._values, new), 2)
        self._values = all_values
        moments = weighted @ all_values.mT
        before = all_values.shape[2] - new.shape[2]
        return moments[..., :before], moments[..., before:]

    def take(self, order: Tensor) -> None:
        """Keep the units ``order`` ``(G, R, n)``."""
        if self._values is not None:
            self._values = _taken(self._values, order)


class GaussianProcess:
    """A process over time of which every unit has a path: a common Cholesky factor, each unit's own normals."""

    def __init__(self) -> None:
        self._factor: Tensor | None = None
        self._normals: Tensor | None = None

    def drawn(self, past: Tensor, now: Tensor, fresh: Tensor) -> Tensor:
        """The next step's values ``(S, G, R, n)``.

        Args:
            past: covariances with the values of all steps before, ``(G, R, S, d)``.
            now: covariances within the step, ``(G, R, S, S)``.
            fresh: standard normals, ``(S, G, R, n)``.
        """
        fresh = fresh.movedim(0, 2)
        if self._factor is None or self._normals is None:
            self._factor, self._normals = root(now, now), fresh
            return (self._factor @ fresh).movedim(2, 0)
        pivots = self._factor.diagonal(dim1=-2, dim2=-1)
        dropped = pivots == 0
        solvable = self._factor + torch.diag_embed(dropped.to(pivots.dtype))
        known = torch.linalg.solve_triangular(solvable, past.mT.expand(*dropped.shape, past.shape[2]), upper=False)
        known = torch.where(dropped[..., None], 0.0, known).mT
        corner = root(now - known @ known.mT, now)
        value = known @ self._normals + corner @ fresh
        above = known.new_zeros(*known.shape[:2], known.shape[-1], corner.shape[-1])
        self._factor = torch.cat((torch.cat((self._factor, above), -1), torch.cat((known, corner), -1)), -2)
        self._normals = torch.cat((self._normals, fresh), 2)
        return value.movedim(2, 0)

    def take(self, order: Tensor) -> None:
        """Keep the units ``order`` ``(G, R, n)``."""
        if self._normals is not None:
            self._normals = _taken(self._normals, order)


def root(covariance: Tensor, whole: Tensor) -> Tensor:
    """Cholesky factor of a semi-definite matrix; columns of directions that are zero within rounding are zero.

    Differentiable; a direction that is dropped is taken to stay zero.

    Args:
        covariance: ``(..., S, S)``, given what is known already.
        whole: the same before anything was known: what rounding is measured by.

    >>> root(torch.ones(2, 2), torch.ones(2, 2))
    tensor([[1., 0.],
            [1., 0.]])
    """
    floor = _ZERO * whole.detach().diagonal(dim1=-2, dim2=-1)
    factor, failed = torch.linalg.cholesky_ex(covariance)
    pivots = factor.detach().diagonal(dim1=-2, dim2=-1).square()
    if not bool(failed.any()) and bool((pivots > floor).all()):
        return factor
    kept = _independent(covariance.detach(), floor)
    solid = torch.where(kept[..., :, None] & kept[..., None, :], covariance, torch.eye(kept.shape[-1]).to(covariance))
    columns = torch.where(kept[..., None, :], covariance, 0.0)
    rows = torch.linalg.solve_triangular(torch.linalg.cholesky(solid), columns.mT, upper=False).mT
    return torch.where(kept[..., None, :], rows, 0.0).tril()


def _independent(covariance: Tensor, floor: Tensor) -> Tensor:
    """Which directions have a variance above ``floor`` given those before them, ``(..., S)``."""
    factor, kept = torch.zeros_like(covariance), []
    for j in range(covariance.shape[-1]):
        column = covariance[..., j] - (factor[..., :j] @ factor[..., j, :j, None])[..., 0]
        pivot = column[..., j]
        kept.append(pivot > floor[..., j])
        scale = torch.where(kept[-1], pivot, 1.0).sqrt()
        factor[..., j] = torch.where(kept[-1][..., None], column / scale[..., None], 0.0)
    return torch.stack(kept, -1)


def _taken(values: Tensor, order: Tensor) -> Tensor:
    return values.gather(-1, order[:, :, None].expand(values.shape))
