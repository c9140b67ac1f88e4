"""How far values are from a law: Kolmogorov and Smirnov's distance, and how often draws are as far."""

from __future__ import annotations

import math

import torch
from scipy.special import kolmogorov
from torch import Tensor


def ks_distance(shares: Tensor) -> float:
    """Largest gap between the distribution function of values and their law's, whose values at these are ``shares``.

    >>> round(ks_distance(torch.tensor([0.1, 0.5, 0.6])), 6)
    0.4
    """
    shares = shares.double().flatten().sort().values
    ranks = torch.linspace(0, 1, len(shares) + 1, dtype=torch.float64)
    return float(torch.maximum(ranks[1:] - shares, shares - ranks[:-1]).max())


def kolmogorov_smirnov(distance: float, count: int) -> float:
    """Probability that ``count`` draws have a distribution function at least this far from their law's.

    The limit for large counts with its argument corrected for the count: within 3e-4 of the exact value from 64 draws
    on. (``scipy.stats`` has the exact one, and takes a second to import.)

    Source: Vrbik 2018, "Small-sample corrections to Kolmogorov-Smirnov test statistic".

    >>> round(kolmogorov_smirnov(0.05, 1000), 4)
    0.013
    """
    root = math.sqrt(count)
    limit = root * distance
    return float(kolmogorov(limit + 1 / (6 * root) + (limit - 1) / (4 * count)))
