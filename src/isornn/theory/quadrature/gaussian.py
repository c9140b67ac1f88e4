"""One- and two-dimensional Gaussian integrals of gate functions, however steep the gate is.

Gates change near u = 0 on a scale of 1 while the Gaussian may be a hundred times wider or narrower. A uniform grid
in t with u = sinh(t) resolves both: it is fine near u = 0 and grows with |u|. The integrand is analytic in a strip
around the real t axis, so the trapezoid rule converges exponentially; kinks split the range into Gauss-Legendre panels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

REACH = 9.0  # standard deviations covered; the Gaussian mass beyond is 2e-19
STEP = 0.14  # largest step in t; error below 1e-11 for the logistic function and tanh, tests/theory/test_gaussian.py
RESOLUTION = 0.4  # largest step in standard deviations where the Gaussian sits
NARROW = 1e-3  # standard deviations, relative to the mean, below which nodes need care
FEWEST_NODES, MOST_NODES = 33, 4096


def standard_nodes(mean: Tensor, std: Tensor, kinks: Sequence[float | Tensor] = ()) -> tuple[Tensor, Tensor]:
    """Nodes z and weights w with ``E[F(mean + std Z)] = sum_j w_j F(mean + std z_j)`` for standard normal Z.

    Args:
        mean, std: any equal shapes; neither is differentiated (u = mean + std z is, by the caller).
        kinks: values of u where F is not smooth, each one number or of the shape of ``mean``.

    Returns:
        z and w, each of the shape of ``mean`` with one axis of nodes added at the end.
    """
    mean, std = mean.detach(), std.detach()
    # The grid needs a positive width; where std is smaller than this, F is constant over it anyway.
    width = torch.maximum(std, 1e-9 * (1 + mean.abs()))
    centre = torch.asinh(mean)
    low, high = torch.asinh(mean - REACH * width) - centre, torch.asinh(mean + REACH * width) - centre
    spacing = torch.minimum(torch.full_like(width, STEP), RESOLUTION * width / (1 + mean**2).sqrt())
    needed = math.ceil(float(((high - low) / spacing).max())) + 1
    count = min(max(needed, FEWEST_NODES), MOST_NODES)
    if kinks:
        at = [torch.asinh(torch.as_tensor(k, dtype=low.dtype)) - centre for k in kinks]
        edges = torch.stack([low, high, *(torch.clamp(k, low, high) for k in at)]).sort(0).values
        t, dt = _panels(edges, 32 + count // 2)
    else:
        t = low[..., None] + (high - low)[..., None] * torch.linspace(0, 1, count, dtype=low.dtype)
        dt = ((high - low) / (count - 1))[..., None]
    growth = torch.exp(centre[..., None] + t)
    shrink = 1 / growth
    if bool((width > NARROW * (1 + mean.abs())).all()):
        z = ((growth - shrink) / 2 - mean[..., None]) / width[..., None]
    else:  # sinh(c + t) - sinh(c) without cancellation
        z = 2 * torch.cosh(centre[..., None] + t / 2) * torch.sinh(t / 2) / width[..., None]
    weight = torch.exp(-(z**2) / 2) * (growth + shrink) * dt
    return z, weight / weight.sum(-1, keepdim=True)


def _panels(edges: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights, ``count`` in each panel between neighbouring edges (first axis)."""
    x, w = _legendre(count)
    pairs = list(itertools.pairwise(edges))
    t = torch.cat([lo[..., None] + (hi - lo)[..., None] * x for lo, hi in pairs], -1)
    return t, torch.cat([(hi - lo)[..., None] * w for lo, hi in pairs], -1)


@cache
def _legendre(count: int) -> tuple[Tensor, Tensor]:
    x, w = np.polynomial.legendre.leggauss(count)
    return torch.from_numpy((x + 1) / 2), torch.from_numpy(w / 2)


@cache
def hermite_table(order: int) -> tuple[Tensor, Tensor]:
    """Nodes z and ``weight_j he_n(z_j)``, so that ``E[F he_n] = F(nodes) @ table``, he_n the normalised polynomials.

    A uniform grid fine enough for degree 63 and for functions that change on a scale of 0.3 standard deviations.

    Returns:
        z of shape (nodes,), table of shape (nodes, order).
    """
    z = torch.linspace(-10, 10, 201, dtype=torch.float64)
    before, now, columns = torch.zeros_like(z), torch.ones_like(z), []
    for n in range(order):
        columns.append(now)
        before, now = now, (z * now - math.sqrt(n) * before) / math.sqrt(n + 1)
    weight = torch.exp(-(z**2) / 2)
    return z, torch.stack(columns, -1) * (weight / weight.sum())[:, None]


def power_series(coefficients: Tensor, c: Tensor) -> Tensor:
    """``sum_n coefficients_n c^n`` by Horner's rule; c has the leading shape of the coefficients."""
    total = torch.zeros_like(c) + coefficients[..., -1]
    for n in range(coefficients.shape[-1] - 2, -1, -1):
        total = total * c + coefficients[..., n]
    return total
