"""Test accuracies of several models, each at its best learning rate: both columns of table 2."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from isornn.experiments.runs import train_all
from isornn.experiments.target import Bench

Row = Mapping[str, Any]
"""A row's ``model`` and ``start``, as configurations have them."""


def rows_trained(bench: Bench, task: Mapping[str, Any], rows: Mapping[str, Row]) -> dict[str, Any]:
    """By row: the rate with the best mean accuracy on validation, and each seed's test accuracy at it."""
    settings = bench.settings
    grid = [(name, rate) for name in rows for rate in settings["rates"]]
    runs = iter(
        train_all(
            bench,
            [
                _configuration(settings, task, rows[name], rate, 1000 * bench.seed + seed)
                for name, rate in grid
                for seed in range(settings["seeds"])
            ],
        )
    )
    by_place = {place: [next(runs) for _ in range(settings["seeds"])] for place in grid}
    found = {}
    for name in rows:
        # A run without weights to test has diverged at once, and guesses.
        scores = {
            rate: [0.1 if run.best is None else run.best["accuracy"] for run in by_place[name, rate]]
            for rate in settings["rates"]
        }
        best = max(scores, key=lambda rate: statistics.fmean(scores[rate]))
        tests = [0.1 if run.test is None else run.test["accuracy"] for run in by_place[name, best]]
        found[name] = {
            "rate": best,
            "test": tests,
            "length": by_place[name, best][0].length,
            "diverged": sum(run.diverged is not None for run in by_place[name, best]),
        }
    return found


def _configuration(
    settings: Mapping[str, Any], task: Mapping[str, Any], row: Row, rate: float, seed: int
) -> dict[str, Any]:
    return {
        "task": dict(task),
        "model": {"hidden": settings["hidden"], **row["model"]},
        "start": dict(row["start"]),
        "optimiser": {"name": "adam", "rate": rate},
        "updates": settings["updates"],
        "batch_size": settings["batch"],
        "validate_every": settings["validate_every"],
        "clip": settings["clip"],
        "seed": seed,
    }


def summary(name: str, row: Mapping[str, Any]) -> str:
    """Per cent, with the standard error over seeds."""
    mean, error = mean_and_error(row["test"])
    return f"{name} {100 * mean:.1f} +- {100 * error:.1f} % (rate {row['rate']})"


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[float, float]:
    """Of the mean test accuracies, and its standard error."""
    (ours, our_error), (theirs, their_error) = mean_and_error(first["test"]), mean_and_error(second["test"])
    return ours - theirs, math.hypot(our_error, their_error)
