"""Training runs of a measurement, as a sweep in its folder, which can be interrupted and resumed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from shutil import copyfile
from typing import Any

import torch

from isornn.experiments.target import Bench
from isornn.records import read_record, write_record
from isornn.tasks import one_pass
from isornn.training import Configuration, RunRecord, State, evaluate, run
from isornn.training.building import build_model
from isornn.training.checkpoint import load_checkpoint
from isornn.training.metrics import CHECKPOINT, METRICS
from isornn.training.problems import problem_named
from isornn.training.run import WEIGHTS
from isornn.training.sweep import LocalWorkers, SweptRun, run_sweep

_LOOKS, _SPENT = "looks.jsonl", "processor.json"
_CHANCE, _ITEMS_AT_ONCE = 0.1, 250


class TrainingFailed(RuntimeError):
    """A run ended by an error; names its folder and the reason."""


@dataclass(frozen=True)
class Look:
    """What is measured of a model while it trains.

    Args:
        every: updates between two looks.
        at: numbers of the state after such an update; must be picklable.
    """

    every: int
    at: Callable[[State], Sequence[float]]


def train_all(
    bench: Bench,
    configurations: Sequence[Mapping[str, Any]],
    *,
    look: Look | None = None,
    after: Sequence[RunRecord] | None = None,
) -> list[RunRecord]:
    """Every run's record, in order, by processes of one thread each, so that results do not depend on their number.

    An interrupted run goes on from its last validation, and ends as it would have without the interrupt, to the bit.

    Args:
        bench: of the measurement.
        configurations: as `Configuration.from_mapping` reads them.
        look: what is measured during training; `looks` has it.
        after: shorter runs that these go on from, in the same order.

    Raises:
        ConfigurationError: names the field.
        TrainingFailed: a run ended by an error. A diverged one did not: its record says so.
    """
    planned = [Configuration.from_mapping(mapping) for mapping in configurations]
    if after is not None:
        for longer, shorter in zip(planned, after, strict=True):
            _go_on(bench.folder, shorter.configuration, longer)
    swept = run_sweep(
        {one.hash: one.to_mapping() for one in planned},
        bench.folder,
        partial(_run, bench.data, look, os.getpid()),
        LocalWorkers(bench.jobs),
        watch=_Watch(bench),
        retry_failed=True,  # a measurement asked for again is tried again
    )
    for one in swept:
        if one.state != "finished":
            raise TrainingFailed(f"{one.folder}: {one.reason or one.state}")
        bench.spent(_spent(one.folder))
    by_hash = {one.folder.name: RunRecord.load(one.folder / "record.json") for one in swept}
    return [by_hash[one.hash] for one in planned]


def train_by_quarters(
    bench: Bench, configurations: Sequence[Mapping[str, Any]], ended: Callable[[int, RunRecord], bool]
) -> list[RunRecord]:
    """`train_all`, but that a run stops at the first quarter of its updates at which it has ``ended``.

    Args:
        bench: of the measurement.
        configurations: as `train_all` has them; their schedules must not depend on the number of updates.
        ended: whether the run of that configuration, by its number, and with this record needs no more updates.

    Raises:
        ConfigurationError: names the field.
        TrainingFailed: as `train_all`.
    """
    runs: dict[int, RunRecord] = {}
    for quarter in range(1, 5):
        waiting = [
            number for number in range(len(configurations)) if number not in runs or not ended(number, runs[number])
        ]
        cut = [{**configurations[k], "updates": configurations[k]["updates"] * quarter // 4} for k in waiting]
        shorter = [runs[number] for number in waiting] if runs else None
        runs |= dict(zip(waiting, train_all(bench, cut, after=shorter), strict=True))
    return [runs[number] for number in range(len(configurations))]


def looks(bench: Bench, run: RunRecord) -> list[list[float]]:
    """What `Look.at` gave, in the order of updates; the rows end where training did."""
    return list(_rows(bench.folder / run.configuration.hash / _LOOKS).values())


def training_accuracy(bench: Bench, run: RunRecord, items: int) -> float:
    """Of the last validation's weights on the first items that a run trains on, with fresh noise where there is some;
    chance, 0.1, of a run that diverged."""
    if run.diverged is not None or run.last is None:
        return _CHANCE
    configuration = run.configuration
    problem = problem_named(configuration.task.name, configuration.task.options, configuration.batch_size, bench.data)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):  # its start, which is not kept, is drawn
        model = build_model(configuration, problem)
    model.load_state_dict(load_checkpoint(bench.folder / configuration.hash / CHECKPOINT)["model"])
    batches = islice(one_pass(problem.training, _ITEMS_AT_ONCE), -(-items // _ITEMS_AT_ONCE))
    return evaluate(model, batches)["accuracy"]


def _rows(file: Path) -> dict[int, list[float]]:
    """By update. After an interrupt updates since the last validation are repeated, with the same numbers."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    found: dict[int, list[float]] = {}
    for line in lines:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:  # a kill cut it
            continue
        found[row["update"]] = row["values"]
    return dict(sorted(found.items()))


def _run(
    data: Path | None, look: Look | None, caller: int, fields: Mapping[str, Any], folder: Path, progress: Any
) -> dict[str, Any]:
    with _processor_time_in(folder, apart=os.getpid() != caller), _looking(look, folder) as on_update:
        record = run(Configuration.from_mapping(fields), folder, data=data, progress=progress, on_update=on_update)
    return record.to_mapping()


@contextmanager
def _looking(look: Look | None, folder: Path) -> Iterator[list[Callable[[State], None]]]:
    if look is None:
        yield []
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOOKS).open("a", encoding="utf-8", buffering=1) as file:
        file.write("\n")  # of what a kill left, if anything

        def after_update(state: State) -> None:
            if state.update % look.every == 0:
                file.write(json.dumps({"update": state.update, "values": list(look.at(state))}) + "\n")

        yield [after_update]


@contextmanager
def _processor_time_in(folder: Path, *, apart: bool) -> Iterator[None]:
    """Add what the block takes to the run's file; not in the process that counts its own time."""
    begun = time.process_time()
    try:
        yield
    finally:
        if apart:
            write_record(folder / _SPENT, {"seconds": _spent(folder) + time.process_time() - begun})


def _spent(folder: Path) -> float:
    file = folder / _SPENT
    return float(read_record(file)["seconds"]) if file.exists() else 0.0


def _go_on(folder: Path, shorter: Configuration, longer: Configuration) -> None:
    """Put the shorter run's files where the longer one begins, unless it has begun."""
    assert shorter.course == longer.course
    begins, ended = folder / longer.hash, folder / shorter.hash
    if (begins / CHECKPOINT).exists() or not (ended / CHECKPOINT).exists():
        return
    begins.mkdir(parents=True, exist_ok=True)
    for name in (WEIGHTS, METRICS, _LOOKS, CHECKPOINT):  # the checkpoint last: it counts the others
        if (ended / name).exists():
            copyfile(ended / name, begins / name)


class _Watch:
    """Says how many updates are done, and about when all will be."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self._begun, self._before = bench, time.time(), -1

    def __call__(self, runs: Sequence[SweptRun]) -> None:
        asked = [int(one.configuration["updates"]) for one in runs]
        ended = [one.state in ("finished", "failed") for one in runs]
        counts = [of if over else (one.done or (0, of))[0] for one, of, over in zip(runs, asked, ended, strict=True)]
        done, of = sum(counts), sum(asked)
        if self._before < 0:
            self._before = done
        text = f"training, {sum(ended)} of {len(runs)} runs"
        if self._before < done < of:
            now = time.time()
            left = (of - done) * (now - self._begun) / (done - self._before)
            text += f", ends about {time.strftime('%d %b %H:%M', time.localtime(now + left))}"
        self._bench.progress(text, done, of)
