"""Long lags without following every step: what a unit carries goes on falling at the unit's own rate.

Some tens of steps after a displacement (or a birth) the path has settled, and a tangent falls in expectation by
E[A_a A_b | the unit's bias] each step. What units show is binned over that rate; a late curve is a sum of
exponentials. Each unit counts at the four bins next to it as cubic interpolation does: of what a unit with rate 1 - a
keeps at lag t it gets all but 6e-5 as long as a t is at most 6.
"""

from __future__ import annotations

import torch
from torch import Tensor

BURN = 64
WINDOW = 16
_COUNT = 384
_LEAST = 1e-9
_NODES = (-1, 0, 1, 2)
_STEP = -torch.tensor(_LEAST, dtype=torch.float64).log() / (_COUNT - 1)


def grid() -> Tensor:
    """Rates per step of the bins, evenly spread over the logarithm of what is lost, 1e-9 to all."""
    loss = (_LEAST * (_STEP * torch.arange(_COUNT, dtype=torch.float64)).exp()).clamp(max=1 - 1e-12)
    return 1 - loss


def binned(values: Tensor, loss: Tensor) -> Tensor:
    """Sums of ``values`` ``(..., G, R, n)`` over units, ``(..., G, R, bins)``, each shared by the four nearest bins.

    >>> loss = torch.full((1, 1, 1), 0.0301, dtype=torch.float64)
    >>> shares = binned(torch.ones_like(loss), loss)
    >>> round(float((shares * grid() ** 200).sum() / (1 - loss) ** 200), 4)
    1.0
    """
    place = ((loss.clamp(_LEAST, 1.0) / _LEAST).log() / _STEP).clamp(0, _COUNT - 1)
    left = place.floor().clamp(1, _COUNT - 3)
    total = torch.zeros(*values.shape[:-1], _COUNT, dtype=values.dtype)
    index = left.to(torch.int64).expand(values.shape)
    for node, share in zip(_NODES, _cubic(place - left), strict=True):
        total.scatter_add_(-1, index + node, values * share)
    return total


def _cubic(part: Tensor) -> list[Tensor]:
    """Lagrange's polynomials of the nodes -1, 0, 1 and 2 at ``part``."""
    shares = []
    for node in _NODES:
        share = torch.ones_like(part)
        for other in _NODES:
            if other != node:
                share = share * (part - other) / (node - other)
        shares.append(share)
    return shares


def falls(loss: Tensor) -> bool:
    """Whether every unit's rate is between 0 and 1, as the bins need."""
    return bool(((loss > -1e-12) & (loss <= 1 + 1e-9)).all())
