"""Cubics through the four nearest of equally spaced nodes."""

from __future__ import annotations

import torch
from torch import Tensor

NODES = (-1, 0, 1, 2)


def shares(part: Tensor) -> list[Tensor]:
    """Lagrange's polynomials of the nodes -1, 0, 1 and 2 at ``part``.

    >>> [float(share) for share in shares(torch.tensor(0.5))]
    [-0.0625, 0.5625, 0.5625, -0.0625]
    """
    found = []
    for node in NODES:
        share = torch.ones_like(part)
        for other in NODES:
            if other != node:
                share = share * (part - other) / (node - other)
        found.append(share)
    return found


def cubic(values: Tensor, place: Tensor) -> Tensor:
    """``values`` ``(G, K)`` at the nodes 0 .. K-1, between them at ``place`` ``(G, m)``: ``(G, m)``.

    Where the four nearest values have one sign their logarithms are interpolated, as values may differ by orders of
    magnitude from node to node; elsewhere it is linear, and never beyond the values beside it.

    >>> decades = torch.tensor([[1.0, 10.0, 100.0, 1000.0]], dtype=torch.float64)
    >>> [round(float(v), 9) for v in cubic(decades, torch.tensor([[0.0, 0.5, 3.0]], dtype=torch.float64))[0]]
    [1.0, 3.16227766, 1000.0]
    """
    count = values.shape[-1]
    left = place.floor().clamp(0, count - 2)
    low, high = (values.gather(-1, left.to(torch.int64) + k) for k in (0, 1))
    linear = low + (place - left) * (high - low)
    if count < len(NODES):
        return linear
    middle = left.clamp(1, count - 3)
    near = torch.stack([values.gather(-1, middle.to(torch.int64) + node) for node in NODES])
    one_sign = (near > 0).all(0) | (near < 0).all(0)
    logs = torch.where(one_sign, near.abs(), 1.0).log()
    size = sum(share * log for share, log in zip(shares(place - middle), logs, strict=True))
    return torch.where(one_sign, near[0].sign() * torch.as_tensor(size).exp(), linear)
