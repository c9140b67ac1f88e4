"""Predictions from few features of single lags, found among all by significance: one sample of noise far back."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from scipy.special import chdtri
from torch import Tensor

from isornn.lookback.dense import Predictions
from isornn.lookback.rows import Rows, fold_rows

LEVEL = 0.01  # probability that a fit on noise has a feature at all
_OPERATIONS = 1.5e11  # of the search among pairs
_ENTRIES = 2e7  # of the matrices of one block of pairs
_PER_SCALE, _PAIRS = 6, 24  # features kept of each length of block, and pairs, between two lengths of the grid
_MOST = 24  # features of a fit
_REMAINDER = 1e-3  # of a feature's variance, below which the chosen ones replace it


def threshold(features: int, outputs: int) -> float:
    """What ``n r^2``, summed over uncorrelated outputs, exceeds for any of so many features with probability `LEVEL`.

    >>> round(threshold(1, 1), 2), round(threshold(2000, 1), 1)
    (6.63, 20.8)
    """
    return float(chdtri(max(1, outputs), LEVEL / max(1, features)))


@dataclass(frozen=True)
class _Features:
    """Features that one fold's training rows single out.

    Args:
        values: (n, M), of all rows.
        bars: (M,) what their statistic must exceed.
    """

    values: Tensor
    bars: Tensor

    @staticmethod
    def none(n: int) -> _Features:
        return _Features(torch.zeros(n, 0, dtype=torch.float32), torch.zeros(0, dtype=torch.float32))

    @staticmethod
    def of(values: Tensor, bar: float) -> _Features:
        return _Features(values, values.new_full((values.shape[1],), bar))

    def __add__(self, other: _Features) -> _Features:
        return _Features(torch.cat((self.values, other.values), 1), torch.cat((self.bars, other.bars)))


@dataclass(frozen=True)
class _Search:
    """What is searched for: uncorrelated targets, and the rows of which each fold may learn.

    Args:
        history: (n, T, D).
        targets: (n, k), of variance 1.
        training: (F, n), 1 where a row is of another fold.
        lengths: the lengths L; features belong to the first that contains them.
    """

    history: Tensor
    targets: Tensor
    training: Tensor
    lengths: Sequence[int]

    def statistic(self, place: int, products: Tensor, sums: Tensor, squares: Tensor) -> Tensor:
        """``n r^2`` of features with all targets, from sums over one fold's training rows: chi squared with k degrees
        of freedom for a feature that has nothing to do with them.

        Args:
            products: (k, ...), of feature and target.
            sums, squares: (...), of the feature and its square.
        """
        rows = self.training[place] > 0
        n, targets = int(rows.sum()), self.targets[rows]
        mean, variance = targets.mean(0), targets.var(0, correction=0).clamp(min=1e-12)
        average = sums / n
        spread = squares / n - average.square()
        shape = (-1,) + (1,) * sums.dim()
        covariance = products / n - average * mean.view(shape)
        found = n * (covariance.square() / variance.view(shape)).sum(0) / spread.clamp(min=1e-12)
        return found.where(spread > 1e-5 * squares / n, 0.0)

    def stretches(self) -> Iterator[tuple[int, int]]:
        """The lags that each length adds, from and up to but without."""
        yield from zip((0, *self.lengths[:-1]), self.lengths, strict=True)


def sparse(rows: Rows, targets: Tensor, lengths: Sequence[int]) -> Predictions:
    """Least squares on few features of the last L steps, chosen by the training rows one after the other.

    The features: each input at each lag and its square; their sums over 2, 4, 8, ... neighbouring lags; products of
    two inputs at any two lags, or at lags close to each other where all would take too long. Features are added while
    the correlation of one of them with what is left is significant among all of them.

    Args:
        targets: (n, k), those of the rows or what another fit leaves of them.
    """
    folds = fold_rows(rows.folds)
    whitened, back = _whitened(targets)
    if not whitened.shape[1]:
        return
    training = torch.stack([rows.folds != rows.folds[fold[0]] for fold in folds]).float()
    search = _Search(rows.history, whitened, training, lengths)
    by_length = [[_Features.none(len(targets)) for _ in folds] for _ in lengths]
    _add_single_lags(search, by_length)
    _add_pairs(search, by_length)
    known, predicted = by_length[0], torch.zeros_like(whitened)
    for place, length in enumerate(lengths):
        if place:
            known = [old + new for old, new in zip(known, by_length[place], strict=True)]
        for fold, rows_of_fold in enumerate(folds):
            if not place or len(by_length[place][fold].bars):
                predicted[rows_of_fold] = _fitted(known[fold], whitened, training[fold] > 0, rows_of_fold)
        yield length, (targets.mean(0) + (predicted @ back).double())[None]


def _whitened(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Uncorrelated combinations of the targets with variance 1, (n, k'), and the matrix that leads back."""
    centred = targets - targets.mean(0)
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(centred))
    kept = values > max(1e-12, 1e-6 * float(values.sum()))
    turn, size = vectors[:, kept], values[kept].sqrt()
    return (centred @ turn / size).float(), (turn * size).T.float()


# ---- which features ----


def _add_single_lags(search: _Search, by_length: list[list[_Features]]) -> None:
    """Inputs and their squares, and their sums over blocks of lags."""
    _, steps, width = search.history.shape
    several = _of_several_sizes(search.history)
    count = 3 * steps * (width + int(several.sum()))  # as many of each length of block as fit in, half over each other
    bar = threshold(count, search.targets.shape[1])
    for base in (search.history, search.history[:, :, several].square()):
        for scale, stride, blocks in _blocks(base):
            _add_blocks(search, by_length, blocks, scale, stride, bar)


def _of_several_sizes(history: Tensor) -> Tensor:
    """Which inputs have squares that are no affine function of them: those of more than two values."""
    present = history.flatten(0, 1)
    centred = present - present.mean(0)
    squares = present.square() - present.square().mean(0)
    explained = (centred * squares).mean(0).square() / centred.square().mean(0).clamp(min=1e-12)
    return explained < 0.99 * squares.square().mean(0)


def _blocks(values: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """Sums over 1, 2, 4, ... neighbouring lags, the lags from one to the next, and (n, blocks, D)."""
    scale, stride = 1, 1
    while values.shape[1] and values.shape[2]:
        yield scale, stride, values
        even = values if scale == 1 else values[:, ::2]
        values = even[:, :-1] + even[:, 1:]
        scale, stride = 2 * scale, scale


def _add_blocks(
    search: _Search, by_length: list[list[_Features]], blocks: Tensor, scale: int, stride: int, bar: float
) -> None:
    """The most significant of these features to each fold, for each length that is the first to contain them."""
    flat, width = blocks.flatten(1), blocks.shape[2]
    sums, squares = search.training @ flat, search.training @ flat.square()
    weighted = search.training[:, None] * search.targets.T
    products = weighted @ flat
    for fold in range(len(search.training)):
        found = search.statistic(fold, products[fold], sums[fold], squares[fold])
        for place, (low, high) in enumerate(search.stretches()):
            # Block j has the lags from j stride to j stride + scale - 1, the last of which decides.
            first, end = (max(0, math.ceil((lag - scale + 1) / stride)) * width for lag in (low, high))
            best = _largest(found[first:end], _PER_SCALE, bar)
            by_length[place][fold] += _Features.of(flat[:, first + best], bar)


def _largest(statistic: Tensor, most: int, bar: float) -> Tensor:
    """Where the largest are, of those that could pass the bar once other features have explained their part."""
    best = statistic.topk(min(most, len(statistic)))
    return best.indices[best.values > bar / 2]


def _add_pairs(search: _Search, by_length: list[list[_Features]]) -> None:
    """Products of two different inputs, of lags in one block; the blocks are half over each other."""
    n, steps, width = search.history.shape
    outputs = search.targets.shape[1]
    columns = steps * width
    affordable = min(math.sqrt(_ENTRIES / (2 + outputs)), _OPERATIONS / (8 * columns * n * (2 + outputs)))
    lags = steps if columns <= affordable else min(steps, 2 * max(1, int(affordable / width / 2)))
    starts = torch.tensor(sorted({*range(0, steps - lags, max(1, lags // 2)), steps - lags}))
    bar = threshold(len(starts) * (lags * width) ** 2 // 2, outputs)
    together = min(_ENTRIES / (2 + outputs) / (lags * width) ** 2, _ENTRIES / (n * lags * width))
    for some in starts.split(max(1, int(together))):
        _add_block_pairs(search, by_length, some.tolist(), lags, bar)


def _add_block_pairs(
    search: _Search, by_length: list[list[_Features]], starts: Sequence[int], lags: int, bar: float
) -> None:
    """Those of some blocks, all of ``lags`` lags, that fit the training rows of each fold best."""
    flat = torch.stack([search.history[:, start : start + lags].flatten(1) for start in starts])
    total = _pair_sums(flat, search.targets)
    upper = flat.new_ones(flat.shape[2], flat.shape[2]).triu(1)
    for fold, training in enumerate(search.training > 0):
        own = _pair_sums(flat[:, ~training], search.targets[~training])
        found = search.statistic(fold, *(both - one for both, one in zip(total, own, strict=True))) * upper
        for block in (found.amax((1, 2)) > bar / 2).nonzero()[:, 0].tolist():
            for place, new in _best_pairs(flat[block], found[block], starts[block], lags, bar, search):
                by_length[place][fold] += new


def _best_pairs(
    flat: Tensor, found: Tensor, start: int, lags: int, bar: float, search: _Search
) -> Iterator[tuple[int, _Features]]:
    """For each length that is the first to contain some of the pairs, the best of those."""
    width = search.history.shape[2]
    for place, (low, high) in enumerate(search.stretches()):
        # The second of the two inputs, in whose column the pair is, is the older.
        first, last = (min(max(lag - start, 0), lags) * width for lag in (low, high))
        if last > first:
            best = _largest(found[:, first:last].flatten(), _PAIRS, bar)
            one, other = best // (last - first), first + best % (last - first)
            yield place, _Features.of(flat[:, one] * flat[:, other], bar)


def _pair_sums(flat: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over the rows of (b, n, P) of ``x_a x_b`` times each target, of ``x_a x_b`` and of its square."""
    products = torch.stack([flat.mT @ (flat * target[:, None]) for target in targets.T])
    squares = flat.square()
    return products, flat.mT @ flat, squares.mT @ squares


# ---- the fit ----


def _fitted(features: _Features, targets: Tensor, training: Tensor, asked: Tensor) -> Tensor:
    """Predictions of the rows ``asked``: the most significant feature is chosen, what it explains is taken off, and so
    on while one is significant."""
    known = targets[training]
    mean, spread = known.mean(0), known.std(0, correction=0).clamp(min=1e-6)
    residual, predicted = (known - mean) / spread, targets.new_zeros(len(asked), targets.shape[1])
    average = features.values[training].mean(0)
    x, x_asked = features.values[training] - average, features.values[asked] - average
    first = x.square().sum(0).clamp(min=1e-12)
    for _ in range(min(_MOST, len(known) // 4, x.shape[1])):
        size = x.square().sum(0)
        left = residual.square().sum(0).clamp(min=1e-6 * len(known))
        statistic = len(known) * ((x.T @ residual).square() / left).sum(1) / size.clamp(min=1e-12)
        above = (statistic - features.bars).where(size > _REMAINDER * first, -1.0)
        best = int(above.argmax())
        if float(above[best]) <= 0:
            break
        direction = x[:, best] / size[best]
        slope, share = direction @ residual, direction @ x
        predicted += x_asked[:, best, None] * slope
        residual = residual - x[:, best, None] * slope
        x, x_asked = x - x[:, best, None] * share, x_asked - x_asked[:, best, None] * share
    return mean + predicted * spread
