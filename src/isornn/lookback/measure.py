"""Over how many steps a target depends on the inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri, stdtrit

from isornn.cells.arguments import seeded
from isornn.lookback.dense import Predictions, gaussian, linear, reservoir
from isornn.lookback.record import GROWING, NOTHING, NOTHING_READ, TOO_FEW, Memory
from isornn.lookback.rows import FOLDS, DataError, Rows, grid, rows_of
from isornn.lookback.scoring import Candidates, Scored, shortest
from isornn.lookback.sparse import LEVEL, sparse, threshold
from isornn.modes import usual_modes

_POSSIBLE = 1.5  # standard errors above 0 of a score that may not be chance
_TOO_LITTLE = 0.5  # share of the target: with so few sequences that a sample far back needs more to pass the bar of the
# search, a score is not trusted either, as its standard error is one of few
_SURE = 0.95  # probability that what is called detectable is found

Progress = Callable[[float], None]


@usual_modes()
def memory(
    batch: Any,
    target: Any,
    *,
    lengths: Any = None,
    longest: int | None = None,
    per_step: bool | None = None,
    generator: torch.Generator | None = None,
    progress: Progress = lambda share: None,
) -> Memory:
    """How well the last L steps of the inputs predict the target, against L, and the L from which on it is no better.

    No network is trained. For L from 1 to the length of the sequences, each about sqrt(2) times the one before, the
    score is that of the best of these regressions, all of which read the last L steps only and predict sequences that
    they were not fitted to:

    - ridge regression on the last L steps;
    - regression with a Gaussian kernel, on short windows;
    - ridge regression on the states of a frozen network: `critical_`'s LSTM of 128 units, without recurrent weights;
    - least squares on a few single lags, sums over neighbouring lags and products of two inputs, which are found among
      all of them by their significance, corrected for their number; of the target, and of what the best of the others
      leaves of it.

    The best one is chosen for each fifth of the sequences by its errors on the other four, so that a choice among many
    does not raise the score.

    Args:
        batch: (sequences, steps, features) real, or (sequences, steps) of integers: symbols.
        target: one per sequence, asked for at its last step: (sequences,) classes, (sequences,) or (sequences, k)
            real; or one per step, (sequences, steps[, k]). Integers are classes. NaN among real targets, and -100
            among classes, leave one out.
        lengths: (sequences,) where they differ; what is behind them is not read.
        longest: the longest L; that of the sequences unless given.
        per_step: whether the second axis of the target is that of steps; by default it is where it is as long.
            ``False`` for a forecast of as many values as the sequence has steps.
        generator: draws the frozen network, the folds, and 800 of the targets if there are more (of classes at each
            step, so that each is as frequent as its number allows); seeded with 0 unless given.
        progress: is called with the share that is done, now and then.

    Returns:
        Scores with their standard errors over sequences. Values: R^2 after standardising each. Classes: the Brier
        skill, which is R^2 of the classes' indicators. With too few sequences for a sample far back to be found,
        nothing is tried and they are empty. Up to 20 seconds of a core for 2000 steps of a few features; a minute for
        50 steps of 1000 features.

    Raises:
        DataError: a ValueError: shapes that do not go together, numbers that are not finite, a constant target.

    >>> draw = torch.Generator().manual_seed(0)
    >>> noise = torch.randn(400, 60, 1, generator=draw)
    >>> found = memory(noise, noise[:, -31, 0])  # the sample 30 steps before the last
    >>> found.needed, found.score
    (32, 'R^2')
    """
    if longest is not None and (isinstance(longest, bool) or not isinstance(longest, int | np.integer) or longest < 1):
        raise DataError(f"longest: {longest!r} is not allowed; it must be a whole number of steps, at least 1")
    draw = seeded(generator)
    with torch.no_grad():
        rows = rows_of(batch, target, lengths, longest, per_step, draw)
        steps, enough = grid(rows.history.shape[1]), _bar(rows) / rows.sequences <= _TOO_LITTLE
        scored = _scored(rows, steps, draw, progress) if enough else []
    needed, reason = _finding(steps, scored, rows)
    return Memory(
        lengths=steps if scored else (),
        scores=tuple(one.score for one in scored),
        errors=tuple(one.error for one in scored),
        needed=needed,
        reason=reason,
        score=rows.score,
        sequences=rows.sequences,
        rows=len(rows.targets),
        detectable=_detectable(steps, rows),
        whole=rows.whole,
        per_step=rows.per_step,
        directions=rows.directions,
    )


def _scored(rows: Rows, steps: Sequence[int], draw: torch.Generator, progress: Progress) -> list[Scored]:
    """The best at each length."""
    candidates, done = Candidates(rows), 0.0

    def add(predictions: Predictions, part: float) -> None:
        nonlocal done
        for place, (length, predicted) in enumerate(predictions):
            candidates.add(length, predicted)
            progress(done + part * (place + 1) / len(steps))
        done += part
        progress(done)

    add(linear(rows, steps), 0.2)
    add(gaussian(rows, steps), 0.2)
    add(reservoir(rows, steps, draw), 0.2)
    add(sparse(rows, rows.targets, steps), 0.2)
    base = _shortest(steps, [candidates.best(length) for length in steps])
    if base.reads:
        longer = (
            (max(length, base.reads), base.predicted + more)
            for length, more in sparse(rows, rows.targets - base.predicted, steps)
        )
        add(longer, 0.2)
    progress(1.0)
    return [candidates.best(length) for length in steps]


def _shortest(steps: Sequence[int], scored: Sequence[Scored]) -> Scored:
    return scored[shortest(steps, [one.score for one in scored], [one.error for one in scored])]


def _bar(rows: Rows) -> float:
    """What ``n r^2`` of a single input at a single lag has to exceed to be chosen among all."""
    _, steps, width = rows.history.shape
    return threshold(3 * steps * width, 1)


def _detectable(steps: Sequence[int], rows: Rows) -> float:
    """The share s of the target that a single input at a single lag explains if it is found with probability `_SURE`,
    as if each sequence had one target: several of one sequence are not independent. 1 where no share suffices.

    It has to exceed the bar of the search in the training sequences of each fold, whose correlation r has ``atanh r``
    of variance ``1 / (n - 3)`` (Fisher); and the score has to be significant, whose standard error is
    ``2 (1 - s) sqrt(s / n)``, that of ``1 - sum e^2 / sum y^2`` for a Gaussian target y and rest e. Both hold for many
    sequences: with 60, 10 of 12 samples were found.
    """
    beyond = float(ndtri(1 - (1 - _SURE) / (FOLDS + 1)))  # no fold fails, nor the score
    training = rows.sequences * (1 - 1 / FOLDS)
    chosen = math.sqrt(_bar(rows) / training)
    if chosen >= 1 or training <= 3:
        return 1.0
    searched = math.tanh(math.atanh(chosen) + beyond / math.sqrt(training - 3))
    error = 2 * (_certain(steps, rows) + beyond) / math.sqrt(rows.sequences)
    significant = (math.sqrt(1 + 4 * error**2) - 1) / (2 * error)  # r of r^2 = error r (1 - r^2)
    return max(searched, significant) ** 2


def _certain(steps: Sequence[int], rows: Rows) -> float:
    """How many standard errors a score has to be above 0, of as many as there are lengths."""
    return -float(stdtrit(rows.sequences - 1, LEVEL / len(steps)))


def _finding(steps: Sequence[int], scored: Sequence[Scored], rows: Rows) -> tuple[int | None, str]:
    """The length, or why there is none."""
    if not scored:
        return None, TOO_FEW
    best = max(scored, key=lambda one: one.score)
    if best.score <= _certain(steps, rows) * best.error:
        if best.score > _POSSIBLE * best.error > 0:
            return None, TOO_FEW
        return None, NOTHING if rows.whole else NOTHING_READ
    place = shortest(steps, [one.score for one in scored], [one.error for one in scored])
    if place == len(steps) - 1 and not rows.whole:
        return None, GROWING
    return steps[place], ""
