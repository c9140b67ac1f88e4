"""Grids that integrate functions of a Gaussian pre-activation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

REACH = 9.0  # standard deviations covered; the Gaussian mass beyond is 2e-19
FAR = 32.0  # of functions that grow exponentially: the integrand of E[exp(k u)] peaks k std^2 from the mean
STEP = 0.14  # largest step in t; error below 1e-11 for the logistic function and tanh
RESOLUTION = 0.4  # largest step in standard deviations where the Gaussian sits
RELATIVELY_NARROW = 1e-3  # standard deviations, relative to the mean, below which nodes need care
FEWEST_NODES, MOST_IN_A_PANEL = 33, 1024


@dataclass(frozen=True)
class Smoothness:
    """The properties of functions that decide the grid on which they are integrated.

    Args:
        kinks: values of u where they are not smooth.
        scale: on which they change elsewhere, in units of that of tanh and the logistic function.
        reach: standard deviations that the grid covers.
    """

    kinks: tuple[float, ...] = ()
    scale: float = 1.0
    reach: float = REACH


SMOOTH = Smoothness()


def standard_nodes(
    mean: Tensor,
    std: Tensor,
    smoothness: Smoothness = SMOOTH,
    *,
    kinks: Sequence[float | Tensor] | None = None,
    inner_half: bool = False,
) -> tuple[Tensor, Tensor]:
    """Nodes z and weights w with ``E[F(mean + std Z)] = sum_j w_j F(mean + std z_j)`` for standard normal Z.

    Args:
        mean, std: any equal shapes; neither is differentiated (u = mean + std z is, by the caller).
        smoothness: of F.
        kinks: in place of those of ``smoothness``, each one number or of the shape of ``mean``.
        inner_half: only the half of the range on the side of 0, for the mean over it.

    Returns:
        z and w, each of the shape of ``mean`` with one axis of nodes added at the end.
    """
    mean, std = mean.detach(), std.detach()
    # The grid needs a positive width; where std is smaller than this, F is constant over it anyway.
    width = torch.maximum(std, 1e-9 * (1 + mean.abs()))
    centre = torch.asinh(mean)
    ends = smoothness.reach * width
    low, high = torch.asinh(mean - ends) - centre, torch.asinh(mean + ends) - centre
    if inner_half:
        low, high = torch.where(mean > 0, low, 0.0), torch.where(mean > 0, 0.0, high)
    step = torch.full_like(width, STEP * smoothness.scale)
    spacing = torch.minimum(step, RESOLUTION * width / (1 + mean**2).sqrt())
    count = max(math.ceil(float(((high - low) / spacing).max())) + 1, FEWEST_NODES)
    kinks = smoothness.kinks if kinks is None else kinks
    if kinks:
        at = [torch.asinh(torch.as_tensor(k, dtype=low.dtype)) - centre for k in kinks]
        edges = torch.stack([low, high, *(torch.clamp(k, low, high) for k in at)]).sort(0).values
        t, dt = _panels(edges, spacing)
    else:
        t = low[..., None] + (high - low)[..., None] * torch.linspace(0, 1, count, dtype=low.dtype)
        dt = ((high - low) / (count - 1))[..., None]
    growth = torch.exp(centre[..., None] + t)
    shrink = 1 / growth
    if bool((width > RELATIVELY_NARROW * (1 + mean.abs())).all()):
        z = ((growth - shrink) / 2 - mean[..., None]) / width[..., None]
    else:  # sinh(c + t) - sinh(c) without cancellation
        z = 2 * torch.cosh(centre[..., None] + t / 2) * torch.sinh(t / 2) / width[..., None]
    weight = torch.exp(-(z**2) / 2) * (growth + shrink) * dt
    return z, weight / weight.sum(-1, keepdim=True)


def _panels(edges: Tensor, spacing: Tensor) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights in each panel between neighbouring edges (first axis), which may be empty."""
    nodes, weights = [], []
    for low, high in itertools.pairwise(edges):
        length = high - low
        if not bool((length > 0).any()):
            continue
        needed = float((length / spacing).max())
        parts = math.ceil(needed / MOST_IN_A_PANEL)
        # half of an even grid's nodes, and some; in few sizes
        x, w = _legendre(32 + 16 * math.ceil(needed / parts / 32))
        for part in range(parts):
            nodes.append(low[..., None] + length[..., None] * (x + part) / parts)
            weights.append(length[..., None] * w / parts)
    return torch.cat(nodes, -1), torch.cat(weights, -1)


@cache
def _legendre(count: int) -> tuple[Tensor, Tensor]:
    x, w = np.polynomial.legendre.leggauss(count)
    return torch.from_numpy((x + 1) / 2), torch.from_numpy(w / 2)


@cache
def hermite_table(order: int, end: float = 10.0, nodes: int = 201) -> tuple[Tensor, Tensor]:
    """Nodes z and ``weight_j he_n(z_j)``, so that ``E[F he_n] = F(nodes) @ table``, he_n the normalised polynomials.

    A uniform grid; by default fine enough for degree 63 and for functions that change on a scale of 0.3 standard
    deviations.

    Args:
        order: how many polynomials, from degree 0.
        end: the grid is from ``-end`` to ``end``.
        nodes: points of the grid.

    Returns:
        z of shape (nodes,), table of shape (nodes, order).
    """
    z = torch.linspace(-end, end, nodes, dtype=torch.float64)
    before, now, columns = torch.zeros_like(z), torch.ones_like(z), []
    for n in range(order):
        columns.append(now)
        before, now = now, (z * now - math.sqrt(n) * before) / math.sqrt(n + 1)
    weight = torch.exp(-(z**2) / 2)
    return z, torch.stack(columns, -1) * (weight / weight.sum())[:, None]
