"""Sweeps of real training runs."""

from functools import partial
from pathlib import Path

import pytest

from isornn.training import Configuration, ConfigurationError
from isornn.training.sweep import LocalWorkers, SweepError, expand, named_by_hash, run_sweep, train_run

BASE = {
    "task": {"name": "adding", "length": 6, "held_out": 20},
    "model": {"name": "lstm", "hidden": 4},
    "optimiser": {"name": "sgd", "rate": 0.1},
    "updates": 4,
    "validate_every": 2,
    "batch_size": 5,
}


def test_training_runs_and_divergence(tmp_path: Path) -> None:
    plan = named_by_hash(expand({"base": BASE, "grid": {"optimiser.rate": [0.01, 1e30]}}))
    good, diverged = run_sweep(plan, tmp_path, partial(train_run, data=None), LocalWorkers(1))
    assert good.state == "finished" and good.record is not None
    assert good.record["test"]["loss"] > 0 and good.done == (4, 4)
    assert good.folder.name == good.record["hash"] == Configuration.from_mapping(good.configuration).hash
    assert diverged.state == "failed" and str(diverged.reason).startswith("diverged: ")
    assert diverged.record is not None and diverged.record["configuration"]["optimiser"]["rate"] == 1e30


def test_what_is_the_same_run_twice() -> None:
    with pytest.raises(SweepError, match="runs: '1 and 3' .* the same run"):
        named_by_hash([BASE, {**BASE, "seed": 1}, {**BASE, "seed": 0}])
    with pytest.raises(ConfigurationError, match="optimiser.rate: -1"):
        named_by_hash(expand({"base": BASE, "grid": {"optimiser.rate": [0.1, -1]}}))
