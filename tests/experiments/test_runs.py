"""Runs of a measurement: they go on from shorter ones, are looked at while they train, and are counted."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from isornn.experiments import runs
from isornn.experiments.reproductions._followed import DECAY
from isornn.experiments.reproductions._summed_loss import of_mean
from isornn.experiments.runs import Look, TrainingFailed, _rows, looks, train_all, training_accuracy
from isornn.experiments.target import SCALES, UNTESTED, Bench, target_ids, target_named
from isornn.training import State
from isornn.training.metrics import read_metrics
from isornn.training.sweep import SweptRun

RUN = {
    "task": {"name": "noise_padded", "length": 4, "held_out": 50},
    "model": {"name": "gru", "hidden": 6},
    "optimiser": {"name": "adam", "rate": 0.01},
    "batch_size": 8,
    "validate_every": 5,
    "seed": 3,
}


def _norm(state: State) -> Sequence[float]:
    return [state.gradient_norm]


def _bench(folder: Path, **more: Any) -> Bench:
    return Bench({}, folder, None, 0, lambda text, done, of: None, **more)


def test_a_run_that_goes_on_from_a_shorter_one_is_the_long_run(tmp_path: Path) -> None:
    look, one, two = Look(2, _norm), _bench(tmp_path / "a", jobs=1), _bench(tmp_path / "b", jobs=1)
    (whole,) = train_all(one, [{**RUN, "updates": 20}], look=look)
    shorter = train_all(two, [{**RUN, "updates": 10}], look=look)
    (longer,) = train_all(two, [{**RUN, "updates": 20}], look=look, after=shorter)
    assert (longer.best, longer.last, longer.test) == (whole.best, whole.last, whole.test)
    assert looks(one, whole) == looks(two, longer)
    assert len(looks(one, whole)) == 10
    metrics = [read_metrics(bench.folder / whole.configuration.hash) for bench in (one, two)]
    assert metrics[0] == metrics[1]
    assert looks(two, shorter[0]) == looks(one, whole)[:5]


def test_progress_says_how_many_updates_are_done_and_when_all_will_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, int, int]] = []
    clock = iter([1000.0, 1060.0])
    monkeypatch.setattr(time, "time", lambda: next(clock))
    watch = runs._Watch(Bench({}, tmp_path, None, 0, lambda *what: said.append(what)))

    def swept(*done: int | None) -> list[SweptRun]:
        states = ["waiting" if one is None else "finished" if one == 100 else "running" for one in done]
        pairs = [None if one is None else (one, 100) for one in done]
        return [
            SweptRun(tmp_path, {"updates": 100}, state, pair, 1)  # type: ignore[arg-type]
            for state, pair in zip(states, pairs, strict=True)
        ]

    watch(swept(100, 20, None))  # of an earlier call
    watch(swept(100, 80, None))
    ends = time.strftime("%d %b %H:%M", time.localtime(1060.0 + 120.0))
    assert said == [
        ("training, 1 of 3 runs", 120, 300),
        (f"training, 1 of 3 runs, ends about {ends}", 180, 300),
    ]


def _ending(flag: Path, error: type[BaseException], state: State) -> Sequence[float]:
    if state.update == 12 and not flag.exists():
        flag.touch()
        raise error
    return [state.gradient_norm]


@pytest.mark.parametrize(("error", "raised"), [(KeyboardInterrupt, KeyboardInterrupt), (MemoryError, TrainingFailed)])
def test_a_run_that_was_cut_short_ends_as_one_that_was_not(
    tmp_path: Path, error: type[BaseException], raised: type[BaseException]
) -> None:
    whole, cut = _bench(tmp_path / "a", jobs=1), _bench(tmp_path / "b", jobs=1)
    (expected,) = train_all(whole, [{**RUN, "updates": 20}], look=Look(1, _norm))
    look = Look(1, partial(_ending, tmp_path / "flag", error))
    with pytest.raises(raised):
        train_all(cut, [{**RUN, "updates": 20}], look=look)
    (found,) = train_all(cut, [{**RUN, "updates": 20}], look=look)
    assert (found.best, found.last, found.test) == (expected.best, expected.last, expected.test)
    assert looks(cut, found) == looks(whole, expected)


def test_looks_that_a_kill_cut_or_that_were_repeated_count_once(tmp_path: Path) -> None:
    file = tmp_path / "looks.jsonl"
    rows = [json.dumps({"update": k, "values": [k]}) for k in (2, 4, 6)]
    file.write_text("\n".join([*rows, '{"update": 8, "val', "", *rows[1:]]))
    assert _rows(file) == {2: [2], 4: [4], 6: [6]}


def test_processor_time_of_other_processes_is_told_and_ones_own_is_not(tmp_path: Path) -> None:
    spent: dict[int, list[float]] = {1: [], 2: []}
    for jobs, seconds in spent.items():
        train_all(_bench(tmp_path / str(jobs), jobs=jobs, spent=seconds.append), [{**RUN, "updates": 5}])
    assert sum(spent[1]) == 0
    assert sum(spent[2]) > 0


def test_training_accuracy_is_that_of_the_last_weights(tmp_path: Path) -> None:
    bench = _bench(tmp_path, jobs=1)
    (run,) = train_all(bench, [{**RUN, "updates": 5}])
    before = torch.get_rng_state()
    first = training_accuracy(bench, run, 500)
    assert torch.equal(torch.get_rng_state(), before)
    (longer,) = train_all(bench, [{**RUN, "updates": 300, "validate_every": 5}], after=[run])
    assert 0 <= first < training_accuracy(bench, longer, 500) <= 1


def test_a_rate_of_a_summed_loss_makes_the_update_of_the_mean() -> None:
    """Zaremba et al. add gradients over the steps, each a mean over the batch; clipped or not."""
    steps, generator = 20, torch.Generator().manual_seed(0)
    losses = torch.rand(steps, 5, generator=generator, dtype=torch.float64)
    for scale in (0.01, 100.0):
        ends = []
        for reduced, (rate, clip) in (("sum", (1.0, 5.0)), ("mean", of_mean(steps))):
            weight = torch.nn.Parameter(torch.ones(steps, 5, dtype=torch.float64))
            by_step = (scale * losses * weight).mean(1)
            (by_step.sum() if reduced == "sum" else by_step.mean()).backward()
            torch.nn.utils.clip_grad_norm_([weight], clip)
            torch.optim.SGD([weight], rate).step()
            ends.append(weight.detach())
        torch.testing.assert_close(ends[0], ends[1], rtol=1e-5, atol=0)  # torch adds 1e-6 to the norm


@pytest.mark.parametrize("name", [name for name in target_ids() if name.startswith("vorontsov")])
def test_trainings_of_vorontsov_et_al_have_their_weight_decay(name: str) -> None:
    target = target_named(name)
    if target.kind != "training" or name == "vorontsov-table3-4":  # which has it at every scale, in its configuration
        pytest.skip("no training, or elsewhere")
    assert all(target.settings[scale]["penalty"] == DECAY for scale in ("medium", "paper"))


@pytest.mark.parametrize("name", target_ids())
def test_small_trainings_decide_nothing_and_larger_ones_are_there_or_the_reason_why_not(name: str) -> None:
    target = target_named(name)
    if target.kind == "training":
        assert target.untested["small"]
        assert "medium" in target.settings or target.undecided
    else:
        assert not target.untested
    assert set(target.settings) <= set(SCALES)


def test_a_scale_that_cannot_decide_says_so_and_keeps_what_was_measured() -> None:
    target = target_named("gilboa-table2-mnist")
    rows = {
        name: {"test": [accuracy, accuracy + 0.001], "rate": 0.1, "length": 49}
        for name, accuracy in (("standard LSTM", 0.5), ("critical peephole LSTM", 0.9))
    }
    assert target.judge({"rows": rows}).answer == "holds"
    small, medium = (target.verdict(scale, {"rows": rows}) for scale in ("small", "medium"))
    assert (small.answer, medium.answer) == (UNTESTED, "holds")
    assert small.effects == medium.effects and target.untested["small"] in small.why
