"""Ridge regression with an intercept, of which every prediction is made without the sequences of its own fold."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

PENALTIES = torch.logspace(-4, 2, 7, dtype=torch.float64)
"""Multiples of the mean variance of the features."""
_FLAT = 1e-10  # variance of features, below which there are none


def predictions_of_features(features: Tensor, targets: Tensor, folds: Sequence[Tensor]) -> Tensor | None:
    """Held-out predictions for each of `PENALTIES`, from the features (n, p); ``None`` where they are constant.

    Returns:
        (penalties, n, k).
    """
    centred = (features - features.mean(0)).double()
    if features.shape[1] >= len(features):
        return _of_centred_gram(centred @ centred.T, targets, folds)
    values, vectors = torch.linalg.eigh(centred.T @ centred)
    kept = values > max(_FLAT, float(values[-1]) * _FLAT)
    if not kept.any():
        return None
    basis = centred @ (vectors[:, kept] / values[kept].sqrt())
    return _held_out(basis, values[kept], targets, folds)


def predictions_of_gram(gram: Tensor, targets: Tensor, folds: Sequence[Tensor]) -> Tensor | None:
    """As `predictions_of_features`, from a kernel's Gram matrix (n, n)."""
    gram = gram.double()
    mean = gram.mean(0)
    return _of_centred_gram(gram - mean - mean[:, None] + mean.mean(), targets, folds)


def _of_centred_gram(gram: Tensor, targets: Tensor, folds: Sequence[Tensor]) -> Tensor | None:
    values, vectors = torch.linalg.eigh(gram)
    kept = values > max(_FLAT, float(values[-1]) * _FLAT)
    if not kept.any():
        return None
    return _held_out(vectors[:, kept], values[kept], targets, folds)


def _held_out(basis: Tensor, values: Tensor, targets: Tensor, folds: Sequence[Tensor]) -> Tensor:
    """With the smoother ``S = 1 1'/n + U diag(s / (s + penalty)) U'``, the prediction that a fit without the rows f
    makes of them is ``y_f - (1 - S_ff)^-1 (y - S y)_f``, exactly, because a row fitted by its own prediction changes
    nothing of a penalised least squares fit."""
    n = len(targets)
    mean = targets.mean(0)
    projected = basis.T @ targets
    found = torch.empty(len(PENALTIES), *targets.shape, dtype=torch.float64)
    for place, penalty in enumerate(PENALTIES * values.sum() / n):
        shrunk = values / (values + penalty)
        residual = targets - mean - basis @ (shrunk[:, None] * projected)
        for rows in folds:
            own = (basis[rows] * shrunk) @ basis[rows].T + 1 / n
            without = torch.linalg.solve(torch.eye(len(rows), dtype=torch.float64) - own, residual[rows])
            found[place, rows] = targets[rows] - without
    return found
