"""Measurements of a factorised network during training: figures 2 and 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isornn.experiments.runs import Look, looks, train_all
from isornn.experiments.target import Bench

DECAY = {"name": "decay", "strength": 1e-4}
"""On the composite matrix, as published for all experiments."""
PUBLISHED = {"name": "geodesic", "rate": 1e-4, "geodesic_rate": 1e-6, "spectrum": "rest", "rest": "rmsprop"}
"""Bases by geodesic descent at 1e-6, all else by RMSprop at 1e-4; the spectrum's over 2m, as eq. 11 has it."""

Rows = dict[str, list[list[list[float]]]]
"""By row, of each seed, what was looked at every so many updates, until a number was not finite."""


def followed(bench: Bench, task: Mapping[str, Any], models: Mapping[str, Mapping[str, Any]], look: Look) -> Rows:
    """What ``look`` finds in each of the factorised ``models`` during training, with every seed."""
    settings = bench.settings
    seeds = range(1000 * bench.seed, 1000 * bench.seed + settings["seeds"])
    penalty = {"penalty": settings["penalty"]} if "penalty" in settings else {}
    plan = [
        {
            "task": dict(task),
            "model": {"name": "spectral", "hidden": settings["hidden"], **model},
            "optimiser": settings["optimiser"],
            **penalty,
            "updates": settings["updates"],
            "batch_size": 50,
            "validate_every": settings["validate_every"],
            "clip": settings["clip"],
            "seed": seed,
        }
        for model in models.values()
        for seed in seeds
    ]
    found = iter([looks(bench, run) for run in train_all(bench, plan, look=look)])
    return {name: [next(found) for _ in seeds] for name in models}
