"""Sweeps of real training runs."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from isornn.training import Configuration, ConfigurationError
from isornn.training.metrics import read_metrics
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


def test_a_diverged_run_that_is_tried_again_is_trained_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, calls = named_by_hash([BASE]), iter(range(1, 9))
    (whole,) = run_sweep(plan, tmp_path / "whole", train_run, LocalWorkers(1))
    broken = "isornn.training.validation.held_out_metrics"
    monkeypatch.setattr(broken, lambda *_: {"loss": math.inf if next(calls) == 2 else 1.0})
    (diverged,) = run_sweep(plan, tmp_path / "cut", train_run, LocalWorkers(1))
    monkeypatch.undo()
    assert diverged.reason == "diverged: update 4: the validation loss is inf"
    (again,) = run_sweep(plan, tmp_path / "cut", train_run, LocalWorkers(1))
    assert again == diverged
    (mended,) = run_sweep(plan, tmp_path / "cut", train_run, LocalWorkers(1), retry_failed=True)
    assert (mended.state, mended.takes, mended.done) == ("finished", 2, (4, 4))
    assert mended.record is not None and whole.record is not None
    assert mended.record["test"] == whole.record["test"]
    assert [row["update"] for row in read_metrics(mended.folder)] == [2, 4]


def test_a_run_that_diverges_again_keeps_how_far_it_came(tmp_path: Path) -> None:
    plan = named_by_hash([{**BASE, "optimiser": {"name": "adam", "rate": 1e30}}])
    (first,) = run_sweep(plan, tmp_path, train_run, LocalWorkers(1))
    (second,) = run_sweep(plan, tmp_path, train_run, LocalWorkers(1), retry_failed=True)
    assert first.done is not None
    assert second == replace(first, takes=2, record=second.record)
    assert second.record is not None and first.record is not None
    assert second.record["seconds"] != first.record["seconds"]  # it was trained


def test_what_is_the_same_run_twice() -> None:
    with pytest.raises(SweepError, match="runs: '1 and 3' .* the same run"):
        named_by_hash([BASE, {**BASE, "seed": 1}, {**BASE, "seed": 0}])
    with pytest.raises(ConfigurationError, match="optimiser.rate: -1"):
        named_by_hash(expand({"base": BASE, "grid": {"optimiser.rate": [0.1, -1]}}))
