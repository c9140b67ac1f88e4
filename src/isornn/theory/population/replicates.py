"""Standard errors of numbers computed from independent replicates."""

from __future__ import annotations

import torch
from torch import Tensor


def pooled(values: Tensor) -> Tensor:
    """Means over replicates ``(G, R, ...)``: over all, then leaving each out, ``(R + 1, G, ...)``."""
    count = values.shape[1]
    mean = values.mean(1, keepdim=True)
    others = mean + (mean - values) / (count - 1)
    return torch.cat((mean, others), 1).movedim(1, 0)


def jackknife(estimates: Tensor) -> tuple[Tensor, Tensor]:
    """Value and standard error of what was computed from each row of ``pooled``.

    ``se^2 = (R-1)/R sum_r (theta_(-r) - mean)^2``. Source: Efron 1982.
    """
    value, others = estimates[0], estimates[1:]
    count = len(others)
    gap = others - others.mean(0)
    return value, (gap.square().sum(0) * (count - 1) / count).sqrt()
