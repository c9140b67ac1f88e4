"""Predictions from all of the last L steps at once: linear, by a Gaussian kernel, and by a frozen recurrent network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from isornn.lookback.ridge import predictions_of_features, predictions_of_gram
from isornn.lookback.rows import Rows, fold_rows

UNITS = 128
_KERNEL_NUMBERS = 256  # of a window, above which distances are all alike and a Gaussian kernel is nearly linear
_SLOWEST = 2.8  # times the longest length: the accumulators of `critical_`
_WRITE, _CANDIDATE = 1.0, 2.0  # standard deviations of the pre-activations, as in `critical_`
_CHUNK = 1 << 22

Predictions = Iterator[tuple[int, Tensor]]
"""Of each: the length L that is read, and predictions (., n, k) made without the own fold."""


def linear(rows: Rows, lengths: Sequence[int]) -> Predictions:
    """Ridge regression on the last L steps themselves."""
    n, _, width = rows.history.shape
    folds = fold_rows(rows.folds)
    gram, done = torch.zeros(n, n, dtype=torch.float32), 0
    for length in lengths:
        new = rows.history[:, done:length].flatten(1)
        gram, done = gram + new @ new.T, length
        if length * width < n:
            found = predictions_of_features(rows.history[:, :length].flatten(1), rows.targets, folds)
        else:
            found = predictions_of_gram(gram, rows.targets, folds)
        if found is not None:
            yield length, found


def gaussian(rows: Rows, lengths: Sequence[int]) -> Predictions:
    """Regression with the kernel ``exp(-|x - x'|^2 / median)`` on short windows: any function of them, products too."""
    folds, width = fold_rows(rows.folds), rows.history.shape[2]
    for length in lengths:
        if length > 1 and length * width > _KERNEL_NUMBERS:
            return
        window = rows.history[:, :length].flatten(1)
        squares = torch.cdist(window, window).square()
        typical = squares[squares > 0].median() if bool((squares > 0).any()) else None
        if typical is not None:
            found = predictions_of_gram(torch.exp(-squares / typical), rows.targets, folds)
            if found is not None:
                yield length, found


def reservoir(rows: Rows, lengths: Sequence[int], generator: torch.Generator) -> Predictions:
    """Ridge regression on the states of a frozen gated network that has read the last L steps."""
    folds = fold_rows(rows.folds)
    states = [torch.zeros(len(rows.history), UNITS, dtype=torch.float32)]
    for length, state in _states(rows.history, lengths, generator):
        # With the state after half the window, its older half is known too.
        states.append(_standardised(state))
        both = torch.cat((states[-1], states[max(0, len(states) - 3)]), 1)
        found = predictions_of_features(both, rows.targets, folds)
        if found is not None:
            yield length, found


def _states(history: Tensor, lengths: Sequence[int], generator: torch.Generator) -> Iterator[tuple[int, Tensor]]:
    """``c_t = a c_(t-1) + sigmoid(U_i p_t) tanh(U_g p_t)`` from 0, L steps before the end, for every L in one pass.

    It is the critical LSTM, whose recurrent weights and input to the forget gate are 0: c is then a sum over lags, and
    that over the last L grows with L. For half of the units p_t is the input, for the others the last two.
    """
    n, _, width = history.shape
    matrices = torch.randn(2, 2, width, UNITS, generator=generator, dtype=torch.float32) / math.sqrt(width)
    matrices *= torch.tensor([_WRITE, _CANDIDATE])[:, None, None, None]
    matrices[:, 1, :, UNITS // 2 :] = 0
    matrices[:, :, :, : UNITS // 2] /= math.sqrt(2)
    slowest = _SLOWEST * lengths[-1]
    scales = torch.full((UNITS,), slowest, dtype=torch.float32)
    drawn = torch.rand(len(scales[::3]), generator=generator, dtype=torch.float32)
    scales[::3] = torch.exp(drawn * math.log(slowest))
    fading = -1 / scales
    state, done, chunk = history.new_zeros(n, UNITS), 0, max(1, _CHUNK // (n * UNITS))
    for length in lengths:
        # The oldest step of the window is read together with the next only: the one before it is outside.
        for first in range(done, length - 1, chunk):
            lags = torch.arange(first, min(first + chunk, length - 1))
            now, before = history[:, first : first + len(lags)], history[:, first + 1 : first + 1 + len(lags)]
            write, candidate = (now @ matrix[0] + before @ matrix[1] for matrix in matrices)
            written = torch.sigmoid(write).mul_(torch.tanh_(candidate))
            state = state + torch.einsum("nlu,lu->nu", written, torch.exp(lags[:, None] * fading))
        done = length - 1
        oldest = history[:, length - 1]
        last = torch.sigmoid(oldest @ matrices[0, 0]) * torch.tanh(oldest @ matrices[1, 0])
        yield length, state + last * torch.exp((length - 1) * fading)


def _standardised(state: Tensor) -> Tensor:
    return (state - state.mean(0)) / state.std(0, correction=0).clamp(min=1e-12)
