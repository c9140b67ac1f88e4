"""A run's folder: what is changed in it is noticed, one process works in it, and a run in it can be extended."""

from __future__ import annotations

import json
import math
import resource
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import isornn.nn
from dropped_interrupts import dropped_interrupt
from isornn.records import write_record
from isornn.tasks import Adding
from isornn.training import ConfigurationError, State, building
from isornn.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from isornn.training.metrics import read_metrics
from isornn.training.run import RunError
from small_runs import OTHERS, SMALL, Stop, configured, ran, rows, same, stop_at

# -- the folder ------------------------------------------------------------------------------------------------------


def test_a_changed_byte_of_the_metrics_is_noticed(tmp_path: Path) -> None:
    """When the run goes on, and when its rows are read; behind the checkpoint nothing counts."""
    with pytest.raises(Stop):
        ran(configured(), tmp_path, on_update=[stop_at(10)])
    file = tmp_path / "metrics.jsonl"
    data = file.read_bytes()
    assert [row["update"] for row in read_metrics(tmp_path)] == [4, 8]
    for place in range(0, len(data), 29):
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(CheckpointError, match=r"metrics.jsonl: changed, its checksum"):
            read_metrics(tmp_path)
        if place == 58:
            with pytest.raises(CheckpointError, match=r"metrics.jsonl: changed, its checksum"):
                ran(configured(), tmp_path)
    file.write_bytes(data + b"begun")
    ran(configured(), tmp_path)
    assert [row["update"] for row in read_metrics(tmp_path)] == [4, 8, 12, 16]


def test_a_run_does_not_go_on_with_other_data(stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with another --data, whose images have the same size."""
    shutil.copytree(stopped, tmp_path / "run")
    before = (tmp_path / "run" / "checkpoint.pt").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(Adding, "source", "another", raising=False)
        with pytest.raises(CheckpointError, match=r"checkpoint.pt: .* begun on .*generated.*, not on .*another"):
            ran(configured(), tmp_path / "run")
    assert (tmp_path / "run" / "checkpoint.pt").read_bytes() == before
    assert ran(configured(), tmp_path / "run").diverged is None


def test_a_run_does_not_go_on_with_a_file_of_the_same_name_and_other_content(tmp_path: Path) -> None:
    letters = {"one": "abcdefgh" * 90, "same": "abcdefgh" * 90, "other": "hgfedcba" * 90}
    for folder, text in letters.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "book.txt").write_text(text)
    task = {"name": "characters", "book": "book.txt", "unroll": 5}
    begun, longer = (configured(task=task, updates=updates) for updates in (4, 8))
    ran(begun, tmp_path / "run", data=tmp_path / "one")
    with pytest.raises(CheckpointError, match=r"checkpoint.pt: .* begun on other items of 'characters; book'"):
        ran(longer, tmp_path / "run", data=tmp_path / "other")
    ran(longer, tmp_path / "run", data=tmp_path / "same")
    assert rows(tmp_path / "run")[-1]["update"] == 8


def test_rows_are_read_where_no_checkpoint_was_reached(tmp_path: Path) -> None:
    ran(configured(optimiser={"name": "sgd", "rate": 3e38}, clip=1e30), tmp_path)
    assert read_metrics(tmp_path) == []


def edited(file: Path, *path: Any, to: Any) -> None:
    """A checkpoint with another value and the checksum that belongs to it."""
    content = load_checkpoint(file)
    inner: Any = content
    for key in path[:-1]:
        inner = inner[key]
    if to is KeyError:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    save_checkpoint(file, content)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("journal",), {}),
        (("journal", "metrics_bytes"), -1),
        (("journal", "metrics_bytes"), "0"),
        (("journal", "seconds"), math.nan),
        (("journal", "best"), 3),
        (("journal", "best", "loss"), "low"),
        (("journal", "best_weights"), {}),
        (("journal", "more"), 1),
        (("update",), "8"),
        (("update",), -8),
        (("update",), KeyError),
        (("model",), {}),
        (("model", "readout.bias"), torch.zeros(7)),
        (("model", "readout.bias"), "zero"),
        (("optimizer",), None),
        (("optimizer", "param_groups", 0, "lr"), "fast"),
        (("optimizer", "param_groups", 0, "betas"), 0.9),
        (("optimizer", "state", 0, "exp_avg"), torch.zeros(3)),
        (("schedules",), []),
        (("schedules", 0), None),
        (("schedules", 0, "step_size"), []),
        (("generators",), []),
        (("generators", 0), torch.zeros(3)),
    ],
    ids=repr,
)
def test_a_checkpoint_that_somebody_edited_is_refused(
    stopped: Path, tmp_path: Path, path: tuple[Any, ...], value: Any
) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    edited(tmp_path / "run" / "checkpoint.pt", *path, to=value)
    with pytest.raises(CheckpointError, match=r"checkpoint.pt: holds something else than this run's state"):
        ran(configured(), tmp_path / "run")


@pytest.mark.parametrize("value", [torch.zeros(7), torch.zeros(3, dtype=torch.float16), "zero"], ids=repr)
def test_best_weights_of_other_shapes_or_types_are_refused(stopped: Path, tmp_path: Path, value: Any) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    file = tmp_path / "run" / "checkpoint.pt"
    kept = load_checkpoint(file)["journal"]["best_weights"]
    assert kept["readout.bias"].dtype is torch.float32
    edited(file, "journal", "best_weights", "readout.bias", to=value)
    with pytest.raises(CheckpointError, match=r"checkpoint.pt: holds something else than this run's state"):
        ran(configured(), tmp_path / "run")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has a checkpoint."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.raises(Stop):
        ran(configured(), folder, on_update=[stop_at(10)])
    return folder


def test_two_processes_in_one_folder_are_kept_apart(tmp_path: Path) -> None:
    """The second is refused while the first is at work, and the run is as if it had not been there."""
    refused: list[str] = []

    def second() -> None:
        with pytest.raises(RunError) as error:
            ran(configured(), tmp_path)
        refused.append(str(error.value))

    def meanwhile(state: State) -> None:
        if state.update == 5:  # a lock is a thread's, as it is a process's
            other = threading.Thread(target=second)
            other.start()
            other.join()

    ran(configured(), tmp_path, on_update=[meanwhile])
    assert [row["update"] for row in rows(tmp_path)] == [4, 8, 12, 16]
    assert refused == [f"{tmp_path}: another process is at work in it; let it end, or name another folder"]


@pytest.mark.parametrize("schedule", [SMALL["schedule"], OTHERS["plateau"]["schedule"]])
def test_a_finished_run_is_extended_to_the_same_bytes(schedule: dict[str, Any], tmp_path: Path) -> None:
    """As if it had been asked for all updates from the start; twice."""
    whole = ran(configured(schedule=schedule, updates=24), tmp_path / "whole")
    for updates in (8, 12, 24):
        longer = ran(configured(schedule=schedule, updates=updates), tmp_path / "extended")
    assert same(tmp_path / "whole", tmp_path / "extended")
    assert replace(longer, seconds=whole.seconds) == whole


REFUSED = [
    {"start": {"name": "gilboa-peephole-critical"}},
    {"model": {"name": "t_rnn", "hidden": 6}, "penalty": {"name": "decay", "strength": 1.0}},
    {"batch_size": 10**9},
]


@pytest.mark.parametrize("refused", REFUSED, ids=["start", "penalty", "sizes"])
def test_a_refused_configuration_does_not_keep_the_folder(refused: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        ran(configured(**refused), tmp_path)
    assert ran(configured(updates=1), tmp_path).configuration == configured(updates=1)
    with pytest.raises(RunError, match="holds a run with another"):
        ran(configured(updates=1, seed=1), tmp_path)


@pytest.mark.parametrize("model", ["'absent.module:Cell'", "'lstm_old'"])
def test_a_run_that_cannot_be_read_is_said_to_be_of_the_folder(model: str, tmp_path: Path) -> None:
    ran(configured(updates=1), tmp_path)
    file = tmp_path / "configuration.json"
    known = json.loads(file.read_text())
    known["model"]["name"] = model.strip("'")
    write_record(file, known)
    with pytest.raises(RunError, match=rf"configuration.json: it is of another run, .*{model}.*; name another folder"):
        ran(configured(updates=1), tmp_path)


def test_an_extension_that_is_stopped_goes_on(tmp_path: Path) -> None:
    ran(configured(updates=8), tmp_path / "extended")
    with pytest.raises(Stop):
        ran(configured(updates=16), tmp_path / "extended", on_update=[stop_at(13)])
    ran(configured(updates=16), tmp_path / "whole")
    ran(configured(updates=16), tmp_path / "extended")
    assert same(tmp_path / "whole", tmp_path / "extended")


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        ({"updates": 8}, {"updates": 4}, "updates: 4 is not allowed; .* extended, not cut"),
        ({"updates": 6}, {"updates": 8}, "ended with a validation that no longer run has"),
        ({"schedule": {"name": "cosine"}, "updates": 4}, {"updates": 8}, "schedule, cosine, depends on their number"),
        (
            {"updates": 4},
            {"updates": 8, "seed": 1},
            r"holds a run with another updates \(4, not 8\), seed \(0, not 1\)",
        ),
    ],
)
def test_extensions_that_are_refused(first: dict[str, Any], then: dict[str, Any], words: str, tmp_path: Path) -> None:
    record = ran(configured(**first), tmp_path)
    with pytest.raises(RunError, match=words):
        ran(configured(**{**first, **then}), tmp_path)
    assert ran(configured(**first), tmp_path) == record


def test_of_a_table_the_fields_that_differ_are_named(tmp_path: Path) -> None:
    ran(configured(updates=1), tmp_path)
    words = r"another optimiser.rate \(0.*, not 3.0\), penalty.name \(none, not 'decay'\), penalty.strength \(none, not"
    penalty = {"name": "decay", "strength": 1.0}
    with pytest.raises(RunError, match=words):
        ran(configured(updates=1, optimiser={"name": "adam", "rate": 3.0}, penalty=penalty), tmp_path)


def test_an_interrupt_that_python_drops_is_not_lost(tmp_path: Path) -> None:
    def interrupt(state: State) -> None:
        if state.update == 10:
            dropped_interrupt()
            reached.append(state.update)

    reached: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        ran(configured(), tmp_path, on_update=[interrupt])
    assert reached == [10]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ran(configured(), tmp_path)
    ran(configured(), tmp_path / "whole")
    assert same(tmp_path, tmp_path / "whole")


def test_a_disk_that_is_full_is_said_with_the_files_name(tmp_path: Path) -> None:
    """A limit on the size of files stands for it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(OSError, match="File too large: '.*weights.safetensors'"):
            ran(configured(), tmp_path, progress=limit)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    ran(configured(), tmp_path)
    ran(configured(), tmp_path / "whole")
    assert same(tmp_path, tmp_path / "whole")


def limit(update: int, _: int) -> None:
    """After the first update files have at most 2,000 bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


# -- what the machine cannot do --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"name": "lstm", "hidden": 1_000_000}}, "model.hidden: 1000000 is not allowed; .* GiB of"),
        ({"model": {"name": "spectral", "hidden": 1_000_000}}, "model.hidden: 1000000 is not allowed"),
        ({"model": {"name": "torch.nn.GRU", "hidden": 10, "layers": 1000}, "batch_size": 10**9}, "batch_size: 1000"),
        ({"task": {"name": "adding", "length": 1_000_000}, "batch_size": 10**9}, "batch_size: 1000000000 is not"),
        ({"model": {"name": "lstm", "hidden": 6, "own_steps": 7}}, "own_steps: 7 is not allowed; the task has 8 steps"),
        ({"model": {"name": "lstm", "hidden": 6, "own_steps": 9}}, "own_steps: 9 is not allowed; the task has 8 steps"),
        ({"model": {"name": "lstm", "hidden": 6, "features": "tanh"}}, "model.features: the input of lstm"),
        (
            {"model": {"name": "lstm", "hidden": 6, "embedding": 4}},
            r"embedding: 4 is not allowed; the inputs of adding\(8",
        ),
        (
            {"task": {"name": "concatenated_digits", "digits": 61}},
            "task.digits: 61 is not allowed; it must be from 1 to 60",
        ),
        (
            {"task": {"name": "concatenated_digits", "digits": 40}},
            "task.name: 'concatenated_digits' is not allowed; with a readout of 1,099,511,627,776 outputs the weights",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_they_are_taken(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    begun = time.perf_counter()
    with pytest.raises((ConfigurationError, RunError), match=words):
        ran(configured(**changes), tmp_path)
    assert time.perf_counter() - begun < 10


@pytest.mark.parametrize(("precision", "size"), [("32-true", 4), ("64-true", 8)])
def test_weights_and_gradients_are_counted_in_the_precision_of_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, precision: str, size: int
) -> None:
    needed, readout = (2 * size * _count(module) for module in (isornn.nn.LSTM(2, 6), torch.nn.Linear(6, 1)))
    changes = {"model": {"name": "lstm", "hidden": 6}, "precision": precision, "batch_size": 1}
    monkeypatch.setattr(building, "_memory", lambda device: needed - 1)
    with pytest.raises(ConfigurationError, match="model.hidden: 6 is not allowed; its weights"):
        ran(configured(**changes), tmp_path)
    monkeypatch.setattr(building, "_memory", lambda device: needed + readout - 1)
    with pytest.raises(ConfigurationError, match="task.name: 'adding' is not allowed; with a readout of 1 output "):
        ran(configured(**changes), tmp_path)
    monkeypatch.setattr(building, "_memory", lambda device: needed + readout)
    ran(configured(**changes), tmp_path)


def _count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_a_rate_that_the_schedule_makes_too_large_is_a_divergence(tmp_path: Path) -> None:
    record = ran(configured(optimiser={"name": "adam", "rate": 3e38}), tmp_path)
    assert record.diverged is not None and record.diverged.startswith("update 1: the learning rate is 3e+38")
