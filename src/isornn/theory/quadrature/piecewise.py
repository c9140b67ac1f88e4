"""Gaussian expectations, in closed form, of functions that are polynomials between their kinks: those of hard gates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from numpy.polynomial import polynomial
from torch import Tensor
from torch.special import ndtr

from isornn.cells.polynomial import Factors

DEGREE = 4  # of two factors, each at most quadratic
_FITTED = 4.0  # of a piece without end, the length that its polynomial is fitted on
_ROUNDING = 1e-12
# Where a polynomial has to hold too, from 0 and from each end of its piece: dense there, and far out.
_TRIED = np.sinh(np.arange(-14.5, 14.51, 0.02))


@dataclass(frozen=True)
class Piece:
    """``sum_k coefficients_k (u - origin)^k`` for u between ``low`` and ``high``, one of which may be infinite."""

    low: float
    high: float
    origin: float
    coefficients: tuple[float, ...]

    def expectation(self, mean: Tensor, std: Tensor) -> Tensor:
        """``E[F(u); low < u < high]`` for ``u ~ N(mean, std^2)``, of the shape of both, std > 0; differentiable.

        By Stein's identity, with x = u - origin and c = mean - origin,
        ``E[x^k] = c E[x^(k-1)] + (k - 1) std^2 E[x^(k-2)] + std (x_low^(k-1) phi_low - x_high^(k-1) phi_high)``.
        """
        centre, moments = mean - self.origin, [self._mass(mean, std)]
        finite = [(end, sign) for end, sign in ((self.low, 1), (self.high, -1)) if math.isfinite(end)]
        ends = [(end - self.origin, sign * std * _density((end - mean) / std)) for end, sign in finite]
        for k in range(1, len(self.coefficients)):
            moment = centre * moments[-1] + sum(x ** (k - 1) * density for x, density in ends)
            moments.append(moment if k == 1 else moment + (k - 1) * std**2 * moments[-2])
        return sum((c * m for c, m in zip(self.coefficients, moments, strict=True)), torch.zeros_like(mean))

    def _mass(self, mean: Tensor, std: Tensor) -> Tensor:
        """The probability of the piece, from the nearer tail: what is far out is small, not rounding."""
        low, high = (self.low - mean) / std, (self.high - mean) / std
        if math.isinf(self.low):
            return ndtr(high)
        if math.isinf(self.high):
            return ndtr(-low)
        return torch.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))


@lru_cache(maxsize=256)
def pieces_of(factors: Factors, kinks: Sequence[float]) -> tuple[Piece, ...] | None:
    """The product of the factors from kink to kink; ``None`` where it is no polynomial of degree `DEGREE` there.

    It is fitted, and tried at some thousands of points: what differs from it between these alone is not seen.

    Args:
        factors: functions of one pre-activation.
        kinks: where any of them is not smooth, at least one, rising.

    >>> from isornn.cells.polynomial import GateFunction
    >>> hard = GateFunction("f", lambda u: (0.2 * u + 0.5).clamp(0, 1), (-2.5, 2.5))
    >>> [[round(c, 12) for c in piece.coefficients] for piece in pieces_of((hard,), hard.kinks)]
    [[0.0], [0.5, 0.2], [1.0]]
    """
    found = []
    for low, high in pairwise((-math.inf, *kinks, math.inf)):
        piece = _fitted(factors, low, high)
        if piece is None:
            return None
        found.append(piece)
    return tuple(found)


def _fitted(factors: Factors, low: float, high: float) -> Piece | None:
    start = low if math.isfinite(low) else high - _FITTED
    stop = high if math.isfinite(high) else low + _FITTED
    half, count = (stop - start) / 2, 2 * DEGREE
    points = start + half * (1 + np.cos(math.pi * (np.arange(count) + 0.5) / count))
    tried = np.concatenate([_TRIED, start + _TRIED, stop + _TRIED])
    u = torch.from_numpy(np.concatenate([points, tried[(tried > low) & (tried < high)]]))
    values = math.prod((f.call(u).detach() for f in factors), start=torch.ones_like(u)).numpy()
    x, near = (u.numpy() - start - half) / half, values[:count]
    coefficients = polynomial.polyfit(x[:count], near, DEGREE)
    coefficients[np.abs(coefficients) < _ROUNDING * np.abs(near).max()] = 0.0
    error = np.abs(polynomial.polyval(x, coefficients) - values)
    if not bool((error <= _ROUNDING * (1 + np.abs(values))).all()):
        return None
    scaled = coefficients / half ** np.arange(DEGREE + 1)
    return Piece(low, high, start + half, tuple(np.trim_zeros(scaled, "b").tolist()) or (0.0,))


def _density(z: Tensor) -> Tensor:
    return torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
