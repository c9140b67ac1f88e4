"""Training runs of a second or less, and what tests ask of their folders."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from isornn.training import Configuration, RunRecord, State, run

SMALL: dict[str, Any] = {
    "task": {"name": "adding", "length": 8, "held_out": 20},
    "model": {"name": "torch.nn.LSTM", "hidden": 6, "layers": 2, "dropout": 0.3},
    "optimiser": {"name": "adam", "rate": 0.01},
    "schedule": {"name": "step", "every": 7, "factor": 0.8},
    "clip": 0.5,
    "updates": 16,
    "validate_every": 4,
    "batch_size": 8,
}


def configured(**changes: Any) -> Configuration:
    return Configuration.from_mapping({**SMALL, **changes})


def ran(configuration: Configuration, folder: Path, **options: Any) -> RunRecord:
    return run(configuration, folder, device="cpu", **options)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line, parse_constant=pytest.fail) for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


def same(first: Path, second: Path) -> bool:
    """Metrics and best weights, to the byte."""
    return all(
        (first / name).read_bytes() == (second / name).read_bytes() for name in ("metrics.jsonl", "weights.safetensors")
    )


def with_paths() -> dict[str, str]:
    """The environment of a process that finds what this one does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


class Stop(Exception):
    """Ends a run where it is."""


def stop_at(update: int) -> Any:
    def stop(state: State) -> None:
        if state.update == update:
            raise Stop

    return stop


OTHERS: dict[str, dict[str, Any]] = {
    "step": {},
    "plateau": {
        "schedule": {"name": "plateau", "factor": 0.5, "patience": 0},
        "optimiser": {"name": "sgd", "rate": 1, "momentum": 0.9},
    },
    "milestones": {
        "schedule": {"name": "milestones", "factor": 0.5, "at": [3, 11]},
        "optimiser": {"name": "rmsprop", "rate": 0.01},
    },
    "geodesic": {
        "model": {"name": "spectral", "hidden": 6, "margin": 0.1},
        "optimiser": {"name": "geodesic", "rate": 0.01, "geodesic_rate": 0.1, "momentum": 0.5, "rest": "adam"},
        "schedule": {"name": "exponential", "factor": 0.9},
        "penalty": {"name": "mean_one", "strength": 0.01},
    },
    "untied": {"model": {"name": "lstm", "hidden": 6, "untied": True}, "schedule": {"name": "cosine"}},
    "words": {
        "task": {"name": "words", "unroll": 3},
        "model": {"name": "lstm", "hidden": 6, "layers": 2, "dropout": 0.2, "embedding": 4},
    },
    "copy": {
        "task": {"name": "copy", "length": 2, "held_out": 5},
        "model": {"name": "gru", "hidden": 6, "embedding": 3},
    },
}
