"""Whether a matrix can have been drawn: by a law of equal, independent entries, or as an orthogonal matrix."""

from __future__ import annotations

import torch
from scipy.special import ndtr
from torch import Tensor

from isornn.diagnosis.kolmogorov_smirnov import kolmogorov_smirnov, ks_distance

ENOUGH = 64  # entries, of fewer nothing is said: all may stay within torch's bounds through some training
_RARE = 1e-4  # one draw in so many has entries farther from its own law
# What float32 leaves of an orthogonal matrix is closer than this, and already a little training is not.
EXACT = 1e-4
_ERRORS = 6  # of the trace below, by which independent entries may be off


@torch.no_grad()
def can_be_drawn(matrix: Tensor) -> bool:
    """Whether entries are 0 throughout, those of a matrix with equal singular values, or independent with a uniform or
    normal law about 0; true of fewer than 64 entries, of which nothing can be said.

    Independent entries of n x p have ``tr (W W^T)^2 / (tr W W^T)^2 = 1/n + 1/p`` but for some 1/(n p): directions that
    training adds show in it before they show in the law of single entries, and so does an orthogonal start.

    >>> generator = torch.Generator().manual_seed(0)
    >>> drawn = torch.randn(64, 64, generator=generator) / 8
    >>> can_be_drawn(drawn), can_be_drawn(drawn + 0.05 * torch.randn(64, 1, generator=generator))
    (True, False)
    """
    entries = matrix.numel()
    if entries < ENOUGH or not matrix.any():
        return True
    w = matrix.double().cpu()
    if w.shape[0] < w.shape[1]:
        w = w.T
    gram = w.T @ w
    size, fourth = float(gram.trace()), float(gram.square().sum())
    if float((gram - torch.eye(len(gram)).to(gram) * size / len(gram)).abs().max()) <= EXACT * size / len(gram):
        return True
    return _has_law(w.flatten()) and abs(fourth / size**2 - _independent(w)) <= _ERRORS * 2 / entries


def _independent(w: Tensor) -> float:
    """Of independent entries with the fourth moment that these have."""
    kurtosis = float(w.square().square().mean() / w.square().mean().square())
    return 1 / w.shape[0] + 1 / w.shape[1] + (kurtosis - 2) / w.numel()


def _has_law(values: Tensor) -> bool:
    bound, deviation = float(values.abs().max()), float(values.square().mean().sqrt())
    uniform = (values + bound) / (2 * bound)
    normal = torch.from_numpy(ndtr((values / deviation).numpy()))
    return any(kolmogorov_smirnov(ks_distance(law), len(values)) > _RARE for law in (uniform, normal))
