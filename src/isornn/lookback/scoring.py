"""Scores of predictions and their standard errors, with a choice among many that does not flatter them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.lookback.rows import Rows, fold_rows


@dataclass(frozen=True)
class Scored:
    """Predictions and how good they are.

    Args:
        predicted: (n, k).
        score: 1 - sum of squared errors / that of the training rows' mean.
        error: its standard error over sequences.
        reads: the most steps that any of the predictions is made from.
    """

    predicted: Tensor
    score: float
    error: float
    reads: int


class Candidates:
    """Predictions of many kinds, each for all rows and made without the rows' own fold.

    The best kind is chosen for each fold by its errors on the other folds, so that what it happens to predict well of
    this fold has no part in the choice. Without any candidate the prediction is the mean of the other folds.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows, self.folds = rows, fold_rows(rows.folds)
        self.base = torch.empty_like(rows.targets)
        for fold in self.folds:
            self.base[fold] = rows.targets[rows.folds != rows.folds[fold[0]]].mean(0)
        self._lengths, self._predicted, self._losses = [0], [self.base], [self._loss(self.base)]

    def _loss(self, predicted: Tensor) -> Tensor:
        return (self.rows.targets - predicted).square().sum(-1)

    def add(self, length: int, predicted: Tensor) -> None:
        """Predictions (., n, k) made from the last ``length`` steps."""
        for one in predicted:
            self._lengths.append(length)
            self._predicted.append(one.float())
            self._losses.append(self._loss(one))

    def best(self, length: int) -> Scored:
        """With those that read at most ``length`` steps."""
        allowed = [place for place, own in enumerate(self._lengths) if own <= length]
        losses = torch.stack([self._losses[place] for place in allowed])
        predicted, reads = self.base.clone(), 0
        for fold in self.folds:
            outside = self.rows.folds != self.rows.folds[fold[0]]
            best = allowed[int(losses[:, outside].sum(1).argmin())]
            predicted[fold] = self._predicted[best][fold].double()
            reads = max(reads, self._lengths[best])
        return Scored(predicted, *_score(self._loss(predicted), self._losses[0], self.rows.groups), reads)


def _score(losses: Tensor, base: Tensor, groups: Tensor) -> tuple[float, float]:
    """1 - sum of losses / sum of base, and its standard error by the delta method over groups."""
    total = base.sum().clamp(min=1e-300)
    score = 1 - losses.sum() / total
    _, place = groups.unique(return_inverse=True)
    each = torch.zeros(int(place.max()) + 1, dtype=torch.float64).index_add_(0, place, losses - (1 - score) * base)
    count = len(each)
    return float(score), float(each.square().sum().sqrt() * (count / max(1, count - 1)) ** 0.5 / total)


def negligible(best: float) -> float:
    """A gain of the score that no steps are worth: .001, or, of a target that is predicted better than that, as one of
    slow trends or of series at unlike levels, half of what is left; below 1e-6 it is rounding.

    >>> negligible(0.9), negligible(0.9998), negligible(1.0)
    (0.001, 0.0001, 1e-06)
    """
    return max(1e-6, min(1e-3, round((1 - best) / 2, 12)))


def shortest(lengths: Sequence[int], scores: Sequence[float], errors: Sequence[float]) -> int:
    """The place of the smallest length whose score is within one standard error of the best, or `negligible`.

    >>> shortest([1, 2, 4, 8], [0.0, 0.2, 0.88, 0.9], [0.0, 0.1, 0.03, 0.03])
    2
    """
    best = max(range(len(lengths)), key=lambda place: scores[place])
    least = scores[best] - max(errors[best], negligible(scores[best]))
    return next(place for place, score in enumerate(scores) if score >= least)
