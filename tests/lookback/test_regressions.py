"""Every kind of regression reads the last L steps only, and predicts sequences that it was not fitted to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from isornn.lookback.dense import gaussian, linear, reservoir
from isornn.lookback.ridge import PENALTIES, predictions_of_features, predictions_of_gram
from isornn.lookback.rows import FOLDS, Rows, fold_rows
from isornn.lookback.scoring import Candidates
from isornn.lookback.sparse import LEVEL, _blocks, _pair_sums, sparse

LENGTHS = (1, 2, 4, 8, 16)
KINDS: dict[str, Callable[[Rows], list[tuple[int, Tensor]]]] = {
    "linear": lambda rows: list(linear(rows, LENGTHS)),
    "gaussian": lambda rows: list(gaussian(rows, LENGTHS)),
    "reservoir": lambda rows: list(reservoir(rows, LENGTHS, torch.Generator().manual_seed(0))),
    "sparse": lambda rows: list(sparse(rows, rows.targets, LENGTHS)),
}


def made(seed: int = 0, sequences: int = 60) -> Rows:
    draw = torch.Generator().manual_seed(seed)
    history = torch.randn(sequences, 16, 2, generator=draw)
    targets = history[:, 5, :1].double() + 0.6 * history[:, 11, 1:].double() * history[:, 10, 1:].double()
    groups = torch.arange(sequences)
    return Rows(history, targets, groups, groups % FOLDS, "R^2", True)


@pytest.mark.parametrize("kind", KINDS)
def test_reads_the_last_steps_only(kind: str) -> None:
    rows = made()
    changed = rows.history.clone()
    changed[:, 8:] += torch.randn(60, 8, 2, generator=torch.Generator().manual_seed(9))
    before, after = KINDS[kind](rows), KINDS[kind](replace(rows, history=changed))
    for (length, one), (_, other) in zip(before, after, strict=True):
        if length <= 8:
            torch.testing.assert_close(one, other)
    assert not torch.allclose(before[-1][1], after[-1][1])


@pytest.mark.parametrize("kind", KINDS)
def test_own_targets_have_no_part_in_a_prediction(kind: str) -> None:
    rows = made()
    own = rows.folds == 0
    changed = rows.targets.clone()
    changed[own] += torch.linspace(-2, 2, int(own.sum()))[:, None].double()
    before, after = KINDS[kind](rows), KINDS[kind](replace(rows, targets=changed))
    for (_, one), (_, other) in zip(before, after, strict=True):
        torch.testing.assert_close(one[:, own], other[:, own], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(before[-1][1][:, ~own], after[-1][1][:, ~own], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size", [5, 100])
def test_held_out_predictions_are_those_of_refits(size: int) -> None:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, size, generator=draw).double(), torch.randn(40, 2, generator=draw).double()
    folds = fold_rows(torch.arange(40) % FOLDS)
    found = predictions_of_features(x, y, folds)
    torch.testing.assert_close(found, predictions_of_gram(x @ x.T, y, folds))
    assert found is not None
    centred = x - x.mean(0)
    for place, penalty in enumerate(PENALTIES * centred.square().sum() / 40):
        for fold in folds:
            rest = torch.ones(40, dtype=torch.bool)
            rest[fold] = False
            # The intercept is fitted without penalty: a column of ones.
            design = torch.cat((centred, torch.ones(40, 1).double()), 1)
            bar = penalty * torch.eye(size + 1).double()
            bar[-1, -1] = 0
            weights = torch.linalg.solve(design[rest].T @ design[rest] + bar, design[rest].T @ y[rest])
            torch.testing.assert_close(found[place, fold], design[fold] @ weights)


def test_the_kernel_regression_learns_what_is_even_in_its_inputs() -> None:
    rows = made(sequences=400)
    rows = replace(rows, targets=(2 * rows.history[:, 0, :1]).cos().double())
    spread = (rows.targets - rows.targets.mean()).square().mean()

    def left(predicted: Tensor) -> Tensor:
        """Of the best penalty, the part of the variance that is not predicted."""
        return ((predicted - rows.targets).square().mean((1, 2)) / spread).min()

    assert left(dict(gaussian(rows, (1,)))[1]) < 0.1 and left(dict(linear(rows, (1,)))[1]) > 0.9


def test_a_linear_fit_of_more_numbers_than_sequences_is_that_of_its_window() -> None:
    rows = made(sequences=20)
    found = dict(linear(rows, LENGTHS))
    assert 2 * LENGTHS[-2] < 20 < 2 * LENGTHS[-1] and tuple(found) == LENGTHS
    for length, predicted in found.items():
        window = rows.history[:, :length].flatten(1)
        expected = predictions_of_features(window, rows.targets, fold_rows(rows.folds))
        torch.testing.assert_close(predicted, expected, rtol=1e-4, atol=1e-4)


def test_the_reservoir_is_a_network_that_starts_at_zero_before_the_window() -> None:
    from isornn.lookback.dense import _CANDIDATE, _SLOWEST, _WRITE, UNITS, _states

    rows = made()
    draw = torch.Generator().manual_seed(1)
    found = dict(_states(rows.history, LENGTHS, torch.Generator().manual_seed(1)))
    weights = torch.randn(2, 2, 2, UNITS, generator=draw) / math.sqrt(2)
    weights *= torch.tensor([_WRITE, _CANDIDATE])[:, None, None, None]
    weights[:, 1, :, UNITS // 2 :] = 0
    weights[:, :, :, : UNITS // 2] /= math.sqrt(2)
    scales = torch.full((UNITS,), _SLOWEST * LENGTHS[-1])
    scales[::3] = torch.exp(torch.rand(len(scales[::3]), generator=draw) * math.log(_SLOWEST * LENGTHS[-1]))
    for length in LENGTHS:
        state, before = torch.zeros(60, UNITS), torch.zeros(60, 2)
        for now in rows.history[:, :length].flip(1).unbind(1):  # from the oldest step on
            write, candidate = (now @ one[0] + before @ one[1] for one in weights)
            state = state * torch.exp(-1 / scales) + torch.sigmoid(write) * torch.tanh(candidate)
            before = now
        torch.testing.assert_close(found[length], state, rtol=1e-4, atol=1e-4)


def test_the_search_finds_a_lag_and_a_product() -> None:
    scores = {}
    for length, predicted in sparse(rows := made(sequences=300), rows.targets, LENGTHS):
        left = (rows.targets - predicted[0]).square().mean() / rows.targets.var()
        scores[length] = round(float(1 - left), 2)
    assert scores[4] < 0.05 and 0.6 < scores[8] < 0.85 and scores[16] > 0.99


def test_pairs_too_many_to_be_tried_are_those_of_lags_close_to_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over products of all pairs may take a third of the operations that they need; lags 10 and 11 are found."""
    rows = made(sequences=300)
    every = 4 * 300 * 32**2 * 3  # of all rows and of each fold's own: with the target, alone, and squared
    spent = 0

    def counted(flat: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        nonlocal spent
        spent += 2 * flat.shape[0] * flat.shape[1] * flat.shape[2] ** 2 * (targets.shape[1] + 2)
        return _pair_sums(flat, targets)

    monkeypatch.setattr("isornn.lookback.sparse._pair_sums", counted)
    list(sparse(rows, rows.targets, LENGTHS))
    assert spent == every
    spent = 0
    monkeypatch.setattr("isornn.lookback.sparse._OPERATIONS", every / 3)
    *_, (_, predicted) = sparse(rows, rows.targets, LENGTHS)
    assert 0 < spent <= every / 3
    assert float((rows.targets - predicted[0]).square().mean() / rows.targets.var()) < 0.01


def test_the_search_rarely_finds_anything_in_noise() -> None:
    """A fold has any feature at all with a probability of at most `LEVEL` for single lags and for pairs."""
    found, tries = 0, 30
    for seed in range(tries):
        rows = made(seed)
        noise = torch.randn(60, 1, generator=torch.Generator().manual_seed(100 + seed)).double()
        *_, (_, predicted) = sparse(rows, noise, LENGTHS)
        found += sum(float(predicted[0, fold].std()) > 1e-6 for fold in fold_rows(rows.folds))
    mean = 2 * LEVEL * tries * FOLDS
    assert found <= mean + 3 * math.sqrt(mean * FOLDS)  # folds share rows: as if all five went together


def test_the_choice_of_a_fold_does_not_see_its_errors() -> None:
    rows = made()
    perfect_in_fold_0 = torch.where((rows.folds == 0)[:, None], rows.targets, rows.targets + 3)
    candidates = Candidates(rows)
    candidates.add(4, perfect_in_fold_0[None])
    best = candidates.best(16)
    torch.testing.assert_close(best.predicted, candidates.base, rtol=1e-6, atol=1e-6)
    assert candidates.best(2).reads == 0


def test_errors_are_those_of_repeated_data() -> None:
    """The standard error of R^2 of a fixed prediction is its spread over data sets, within 15 %."""
    scores, errors = [], []
    for seed in range(300):
        draw = torch.Generator().manual_seed(seed)
        signal = torch.randn(100, 1, generator=draw).double()
        rows = made(sequences=100)
        rows = replace(rows, targets=signal + torch.randn(100, 1, generator=draw).double())
        candidates = Candidates(rows)
        candidates.add(1, signal[None])
        best = candidates.best(1)
        scores.append(best.score)
        errors.append(best.error)
    spread = torch.tensor(scores).std()
    assert 0.85 < float(torch.tensor(errors).mean() / spread) < 1.15


def test_blocks_are_sums_over_neighbouring_lags() -> None:
    values = torch.randn(3, 37, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scales = []
    for scale, stride, blocks in _blocks(values):
        scales.append(scale)
        for number in range(blocks.shape[1]):
            lags = values[:, number * stride : number * stride + scale]
            assert lags.shape[1] == scale
            torch.testing.assert_close(blocks[:, number], lags.sum(1))
    assert scales == [1, 2, 4, 8, 16, 32]
