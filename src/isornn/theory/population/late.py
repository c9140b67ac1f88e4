"""Long lags without following every step: what a unit carries goes on falling at the unit's own rate.

Some tens of steps after a displacement (or a birth) the path has settled, and a tangent falls in expectation by
E[A_a A_b | the unit's bias] each step. What units show is binned over that rate; a late curve is a sum of
exponentials.
"""

from __future__ import annotations

import torch
from torch import Tensor

BURN = 64
WINDOW = 16
_COUNT = 384
_LEAST = 1e-9
_STEP = -torch.tensor(_LEAST, dtype=torch.float64).log() / (_COUNT - 1)


def grid() -> Tensor:
    """Rates per step of the bins, evenly spread over the logarithm of what is lost, 1e-9 to all."""
    loss = (_LEAST * (_STEP * torch.arange(_COUNT, dtype=torch.float64)).exp()).clamp(max=1 - 1e-12)
    return 1 - loss


def binned(values: Tensor, loss: Tensor) -> Tensor:
    """Sums of ``values`` ``(..., G, R, n)`` over units, ``(..., G, R, bins)``, each shared by the two nearest bins."""
    place = ((loss.clamp(_LEAST, 1.0) / _LEAST).log() / _STEP).clamp(0, _COUNT - 1.000001)
    left = place.floor()
    upper = place - left
    total = torch.zeros(*values.shape[:-1], _COUNT, dtype=values.dtype)
    index = left.to(torch.int64).expand(values.shape)
    total.scatter_add_(-1, index, values * (1 - upper))
    return total.scatter_add_(-1, index + 1, values * upper)


def falls(loss: Tensor) -> bool:
    """Whether every unit's rate is between 0 and 1, as the bins need."""
    return bool(((loss > -1e-12) & (loss <= 1 + 1e-9)).all())
