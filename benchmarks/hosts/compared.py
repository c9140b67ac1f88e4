"""The critical start in a host's own training: updates until the score that the host's default start gets to.

A host's ``measure_NAME.py`` describes its tasks and calls `measured`. Each task is trained with five seeds, with and
without the start, and gives a score every so many updates. For each seed and two scores of the run without the start,
its best one and its last one,

    ratio = u' / u,

where u and u' are the numbers of updates after which the runs without and with the start first have that score. The
ratio to the best score is what a host counts with; the last score depends less on the noise of single validations. A
run with the start that never has the score is "not reached", which counts as a ratio above all others; it is as long as
the one without. A score that is not finite is none, and ``null`` in the record.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from isornn.files import replacing
from isornn.modes import processor

RESULTS = Path(__file__).resolve().parent.parent / "results" / "hosts"
SEEDS = range(5)

Run = Callable[[int, bool], Sequence[float]]


@dataclass(frozen=True)
class Task:
    """What is trained, with the host's own model and trainer.

    Args:
        name: of the model and the data, in a few words.
        score: which one, on which data; lower is better unless ``higher`` is set.
        length: steps of the sequences that the recurrent layers read.
        updates: from one score to the next.
        settings: all that one needs to train it again, and which of them are not the host's defaults.
        run: (seed, whether with the start) to the scores, in order.
        higher: a higher score is better.
    """

    name: str
    score: str
    length: int
    updates: int
    settings: Mapping[str, object]
    run: Run
    higher: bool = False


@dataclass(frozen=True)
class Pair:
    """The scores of one seed's two runs.

    Raises:
        ValueError: two runs that differ in length, or no finite score without the start.
    """

    seed: int
    without: Sequence[float | None]
    with_start: Sequence[float | None]
    seconds_without: float
    seconds_with_start: float

    def __post_init__(self) -> None:
        if len(self.without) != len(self.with_start) or set(self.without) <= {None}:
            scores = f"{self.without} and {self.with_start}"
            raise ValueError(f"scores of seed {self.seed}: {scores} are not as many, or the first has none")


@dataclass(frozen=True)
class Reached:
    """When the two runs of a pair first have a score, in updates; ``None``: not reached."""

    score: float
    updates_without: int
    updates_with_start: int | None
    ratio: float | None


def measured(host: str, packages: Sequence[str], tasks: Sequence[Task]) -> None:
    """Train all tasks, print their tables, and write ``results/hosts/HOST.json`` after each pair of runs.

    Pairs that the record has, of the same versions and the same description of the task, are not trained again.

    Args:
        host: name of the record.
        packages: distributions whose versions belong to the record.
        tasks: in order; the first is the one that the host counts with.
    """
    versions = {name: version(name) for name in (*packages, "torch")}
    device = f"{processor()} ({os.cpu_count()} cores), {torch.get_num_threads()} threads"
    file = RESULTS / f"{host}.json"
    kept = _kept(file, versions)
    pairs = [kept.get(json.dumps(_described(task)), []) for task in tasks]

    def write() -> None:
        found = [_recorded(task, known) for task, known in zip(tasks, pairs, strict=True) if known]
        _write(file, {"host": host, "versions": versions, "device": device, "tasks": found})

    for task, known in zip(tasks, pairs, strict=True):
        for seed in SEEDS[len(known) :]:
            known.append(pair_of(task, seed))
            print(f"{task.name}, seed {seed}: {_row(task, known[-1])}", file=sys.stderr)
            write()
        show(task, known)
    write()


def _described(task: Task) -> dict[str, Any]:
    return {name: value for name, value in vars(task).items() if name != "run"}


def _recorded(task: Task, pairs: Sequence[Pair]) -> dict[str, Any]:
    """The task with what follows from its pairs, and the pairs."""
    to_best, to_last = _races(task, pairs)
    return {
        **_described(task),
        "to_best": summary_of(to_best),
        "to_last": summary_of(to_last),
        "pairs": [
            {**asdict(pair), "to_best": asdict(best), "to_last": asdict(last)}
            for pair, best, last in zip(pairs, to_best, to_last, strict=True)
        ],
    }


def _kept(file: Path, versions: Mapping[str, str]) -> dict[str, list[Pair]]:
    """Pairs of runs in a record of the same versions, by the description of their task."""
    record = json.loads(file.read_text()) if file.exists() else {}
    if record.get("versions") != versions:
        return {}
    of_task = [field.name for field in fields(Task) if field.name != "run"]
    of_pair = [field.name for field in fields(Pair)]
    return {
        json.dumps({name: task[name] for name in of_task}): [
            Pair(**{name: pair[name] for name in of_pair}) for pair in task["pairs"]
        ]
        for task in record["tasks"]
    }


def _write(file: Path, record: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as new:
        new.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")


def pair_of(task: Task, seed: int) -> Pair:
    """Train both."""
    begin = time.perf_counter()
    without = [_finite(score) for score in task.run(seed, False)]
    middle = time.perf_counter()
    with_start = [_finite(score) for score in task.run(seed, True)]
    end = time.perf_counter()
    return Pair(seed, without, with_start, round(middle - begin, 1), round(end - middle, 1))


def _finite(score: float) -> float | None:
    return score if math.isfinite(score) else None


def best_of(scores: Sequence[float | None], higher: bool) -> float | None:
    """Of those that are finite."""
    return (max if higher else min)((score for score in scores if score is not None), default=None)


def last_of(scores: Sequence[float | None]) -> float:
    """The last one that is finite."""
    return next(score for score in reversed(scores) if score is not None)


def reached(pair: Pair, score: float, updates: int, higher: bool) -> Reached:
    """When each run first has a score that the one without the start has."""

    def first(scores: Sequence[float | None]) -> int | None:
        good = (value is not None and (value >= score if higher else value <= score) for value in scores)
        return next((n * updates for n, is_good in enumerate(good, 1) if is_good), None)

    before, after = first(pair.without), first(pair.with_start)
    assert before is not None
    return Reached(score, before, after, None if after is None else after / before)


def _races(task: Task, pairs: Sequence[Pair]) -> tuple[list[Reached], list[Reached]]:
    """To the best and to the last score of each run without the start."""
    best, last = [], []
    for pair in pairs:
        score = best_of(pair.without, task.higher)
        assert score is not None
        best.append(reached(pair, score, task.updates, task.higher))
        last.append(reached(pair, last_of(pair.without), task.updates, task.higher))
    return best, last


def summary_of(races: Sequence[Reached]) -> dict[str, float | None]:
    """Median and range of the ratios over seeds; ``None``: not reached."""
    ratios = sorted(math.inf if race.ratio is None else race.ratio for race in races)
    numbers = {"ratio_median": statistics.median(ratios), "ratio_min": ratios[0], "ratio_max": ratios[-1]}
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def show(task: Task, pairs: Sequence[Pair]) -> None:
    """The task's table, as Markdown."""
    print(f"{task.name}, T = {task.length}; score: {task.score}\n")
    columns = ["seed", "default's best", "after", "with the start after", "ratio"]
    columns += ["default's last", "after", "with the start after", "ratio", "best with the start"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    races = _races(task, pairs)
    for pair, best, last in zip(pairs, *races, strict=True):
        cells = [pair.seed, *asdict(best).values(), *asdict(last).values(), best_of(pair.with_start, task.higher)]
        print(f"| {' | '.join(map(_or_not, cells))} |")
    for name, race in zip(("best", "last"), races, strict=True):
        median, low, high = map(_or_not, summary_of(race).values())
        print(f"\nratio to the default's {name} score: median {median}, from {low} to {high}")
    print()


def _row(task: Task, pair: Pair) -> str:
    (best,), _ = _races(task, [pair])
    after = _or_not(best.updates_with_start)
    return (
        f"default's best {best.score:.4g} after {best.updates_without} updates, with the start after {after} "
        f"(ratio {_or_not(best.ratio)}); best with the start {_or_not(best_of(pair.with_start, task.higher))}"
    )


def _or_not(number: float | None) -> str:
    return "not reached" if number is None else f"{number:.4g}" if isinstance(number, float) else str(number)
