"""Test accuracies of several models, each at its best learning rate: both columns of table 2."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from isornn.experiments.reproductions import _by_seeds as by_seeds
from isornn.experiments.runs import train_all
from isornn.experiments.target import Bench, Effect
from isornn.training import RunRecord

_CHANCE = 0.1
Row = Mapping[str, Any]
"""A row's ``model`` and ``start``, as configurations have them."""
Place = tuple[str, float, int]
"""Row, rate and seed of a run."""


def rows_trained(bench: Bench, task: Mapping[str, Any], rows: Mapping[str, Row]) -> dict[str, Any]:
    """By row: the rate with the best mean accuracy on validation, and each seed's accuracies at it.

    With the settings' ``rungs``, numbers of updates, the worse half of each row's rates ends at each of them. With
    their ``scan_seeds`` rates are compared by so many of the first seeds, and the others run at the best rate alone.
    """
    settings = bench.settings
    seeds, kept = range(settings["seeds"]), {name: list(settings["rates"]) for name in rows}
    scan_seeds = settings.get("scan_seeds", len(seeds))
    scanned, others = seeds[:scan_seeds], seeds[scan_seeds:]
    runs: dict[Place, RunRecord] = {}

    def train(places: Sequence[Place], updates: int, after: Sequence[RunRecord] | None) -> None:
        configurations = [
            _configuration({**settings, "updates": updates}, task, rows[name], rate, 1000 * bench.seed + seed)
            for name, rate, seed in places
        ]
        runs.update(zip(places, train_all(bench, configurations, after=after), strict=True))

    for rung in settings.get("rungs", [settings["updates"]]):
        places = [(name, rate, seed) for name in rows for rate in kept[name] for seed in scanned]
        train(places, rung, [runs[place] for place in places] if runs else None)
        for name, rates in kept.items():
            scores = {rate: statistics.fmean(_valid(runs[name, rate, seed]) for seed in scanned) for rate in rates}
            kept[name] = sorted(rates, key=lambda rate: scores[rate], reverse=True)[: -(-len(rates) // 2)]
    if others:
        train([(name, kept[name][0], seed) for name in rows for seed in others], settings["updates"], None)
    found = {}
    for name in rows:
        best = [runs[name, kept[name][0], seed] for seed in seeds]
        found[name] = {
            "rate": kept[name][0],
            "valid": [_valid(run) for run in best],
            "test": [_CHANCE if run.test is None else run.test["accuracy"] for run in best],
            "length": best[0].length,
            "diverged": sum(run.diverged is not None for run in best),
        }
    return found


def _valid(run: RunRecord) -> float:
    """A run without weights to test has diverged at once, and guesses."""
    return _CHANCE if run.best is None else run.best["accuracy"]


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
    """Per cent, mean and range over seeds."""
    return f"{name} {by_seeds.mean_range([100 * value for value in row['test']], '.1f')} % (rate {row['rate']})"


def effects(rows: Mapping[str, Any], published: Mapping[str, float]) -> list[Effect]:
    """Of each row the test accuracy in per cent, with a 95 % interval."""
    return [
        by_seeds.effect(
            f"test accuracy %, {name}",
            [100 * value for value in row["test"]],
            f"{100 * published[name]:.1f}" if name in published else "",
        )
        for name, row in rows.items()
    ]
