"""Random matrices that are not Gaussian: what their singular values change in the theory.

``W = U diag(s) V^T`` with Haar bases U, V is free from everything that acts on single units, and R-diagonal: of its
free cumulants only the alternating ones k_2n(W, W*, W, W*, ...) are not 0. With ``N E[W_ij^2]`` brought to 1 all of
them follow from the law of s^2, and a Gaussian matrix is the case k_2 = 1, k_4 = k_6 = ... = 0. What the state's
moments and the mean of the Jacobian's squared singular values know of W is k_2; their second moment knows k_4.

A margin m stands for s uniform in [1-m, 1+m], as `isornn.nn.draws` draws it; m = 0 is an orthogonal matrix. A layer
with a margin, `isornn.nn.SpectralRNN`, starts at s = 1: orthogonal, whatever its margin.

Source: Nica & Speicher, Lectures on the Combinatorics of Free Probability, lecture 15 (R-diagonal elements).
"""

from __future__ import annotations

from math import comb

import torch
from torch import Tensor

from isornn.cells.laws import Ensemble
from isornn.theory.reasons import IDENTITY, TheoryMissing

_FAR = 1e4  # where 1/zeta is small enough for three terms
_TERMS = 4


def margin_of(ensemble: Ensemble) -> float | None:
    """m; ``None`` for Gaussian matrices.

    Raises:
        TheoryMissing: identity matrices, which are not free from anything.
    """
    if not isinstance(ensemble, str):
        return ensemble
    if ensemble == "identity":
        raise TheoryMissing(IDENTITY)
    return 0.0 if ensemble == "orthogonal" else None


def fourth_cumulant(ensemble: Ensemble) -> float:
    """k_4 = E s^4 / (E s^2)^2 - 2: 0 for Gaussian matrices, -1 for orthogonal ones, between for margins up to 1.

    >>> fourth_cumulant("orthogonal"), round(fourth_cumulant(1.0), 3)
    (-1.0, -0.2)
    """
    margin = margin_of(ensemble)
    if margin is None:
        return 0.0
    _, first, second = _moments(margin, 3)
    return second / first**2 - 2


def tilted_mean(margin: float, zeta: Tensor) -> tuple[Tensor, Tensor]:
    """``q = E[y/(y - zeta)] / E[1/(y - zeta)]`` and its derivative, y = s^2 / E s^2 of mean 1.

    Real zeta within the support has neither: NaN.

    >>> q, slope = tilted_mean(0.0, torch.tensor([-1.0]))  # y is 1
    >>> float(q), float(slope)
    (1.0, 0.0)
    >>> q, _ = tilted_mean(0.5, torch.tensor([-1e-9, -1e9], dtype=torch.float64))  # from 1 / E[1/y] up to E[y]
    >>> [round(float(part), 4) for part in q]
    [0.6923, 1.0]
    """
    if margin == 0:
        return torch.ones_like(zeta), torch.zeros_like(zeta)
    scale = 1 + margin**2 / 3
    near, near_slope = _near(margin, scale * zeta)
    far, far_slope = _far(margin, scale * zeta)
    is_far = zeta.abs() > _FAR * (1 + margin) ** 2 / scale
    q, slope = torch.where(is_far, far, near) / scale, torch.where(is_far, far_slope, near_slope)
    if zeta.is_complex():
        return q, slope
    inside = (scale * zeta >= max(1 - margin, 0.0) ** 2) & (scale * zeta <= (1 + margin) ** 2)
    return torch.where(inside, torch.nan, q), torch.where(inside, torch.nan, slope)


def _near(margin: float, zeta: Tensor) -> tuple[Tensor, Tensor]:
    """zeta + 1/m and 1 - m'/m^2, with m = E[1/(s^2 - zeta)]."""
    at = zeta.to(torch.complex128)
    root = at.sqrt()
    root = torch.where(root.imag < 0, -root, root)
    if margin <= 1:
        whole = -2 * (2 * margin * root / (at - (1 - margin**2))).atanh()
    else:
        whole = sum((((root - end) / (root + end)).log() for end in (margin + 1, margin - 1)), torch.zeros_like(at))
    m = whole / (4 * margin * root)
    ends = (1 - margin**2 + at) / ((at - (1 + margin) ** 2) * (at - (1 - margin) ** 2))
    slope = (ends - m) / (2 * at)
    q, q_slope = at + 1 / m, 1 - slope / m.square()
    return (q, q_slope) if zeta.is_complex() else (q.real, q_slope.real)


def _far(margin: float, zeta: Tensor) -> tuple[Tensor, Tensor]:
    """The same as a quotient of series in 1/zeta."""
    moments = _moments(margin, _TERMS + 1)
    above = sum((moments[n + 1] / zeta**n for n in range(_TERMS)), torch.zeros_like(zeta))
    below = sum((moments[n] / zeta**n for n in range(_TERMS)), torch.zeros_like(zeta))
    return above / below, (moments[1] ** 2 - moments[2]) / zeta.square()


def _moments(margin: float, count: int) -> list[float]:
    """E s^(2n), n = 0, 1, ...: the even part of ((1 + m)^(2n+1) - (1 - m)^(2n+1)) / (2m (2n + 1))."""
    return [sum(comb(2 * n, k) * margin**k / (k + 1) for k in range(0, 2 * n + 1, 2)) for n in range(count)]
