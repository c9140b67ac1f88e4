"""The critical start in a host's own training: updates until the score that the host's default start gets to.

A host's ``measure_NAME.py`` describes its tasks and calls `measured`. Each task is trained with five seeds, with and
without the start, and gives a score every so many updates. For each seed

    default's score = best score of the run without the start, first reached after u updates,
    ratio = u' / u, where u' is the number of updates after which the run with the start first has that score.

A run with the start that never has it is "not reached", which counts as a ratio above all others; its run is as long as
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
    """One seed's two runs; times are numbers of updates, and ``None`` where the score was not reached."""

    seed: int
    without: list[float | None]
    with_start: list[float | None]
    seconds_without: float
    seconds_with_start: float
    default_score: float
    best_with_start: float | None
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
    known = _kept(file, versions)
    found: list[dict[str, Any]] = []
    for task in tasks:
        description = {name: value for name, value in vars(task).items() if name != "run"}
        pairs = known.get(json.dumps(description), [])
        for seed in SEEDS[len(pairs) :]:
            pairs.append(pair_of(task, seed))
            print(f"{task.name}, seed {seed}: {shown(pairs[-1])}", file=sys.stderr)
            at_work = {**description, **summary_of(pairs), "pairs": [asdict(pair) for pair in pairs]}
            _write(file, {"host": host, "versions": versions, "device": device, "tasks": [*found, at_work]})
        found.append({**description, **summary_of(pairs), "pairs": [asdict(pair) for pair in pairs]})
        show(task, pairs, summary_of(pairs))
    _write(file, {"host": host, "versions": versions, "device": device, "tasks": found})


def _kept(file: Path, versions: Mapping[str, str]) -> dict[str, list[Pair]]:
    """Pairs of runs in a record of the same versions, by the description of their task."""
    record = json.loads(file.read_text()) if file.exists() else {}
    if record.get("versions") != versions:
        return {}
    names = [field.name for field in fields(Task) if field.name != "run"]
    return {
        json.dumps({name: task[name] for name in names}): [Pair(**pair) for pair in task["pairs"]]
        for task in record["tasks"]
    }


def _write(file: Path, record: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as new:
        new.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")


def pair_of(task: Task, seed: int) -> Pair:
    """Both runs of a seed."""
    begin = time.perf_counter()
    without = list(task.run(seed, False))
    middle = time.perf_counter()
    with_start = list(task.run(seed, True))
    end = time.perf_counter()
    times = (round(middle - begin, 1), round(end - middle, 1))
    return compared(seed, without, with_start, task.updates, times, task.higher)


def compared(
    seed: int,
    without: list[float],
    with_start: list[float],
    updates: int,
    seconds: tuple[float, float],
    higher: bool = False,
) -> Pair:
    """When each run first has the default's best score.

    Raises:
        ValueError: two runs that differ in length, or no finite score without the start.
    """
    best = max if higher else min
    score = best(filter(math.isfinite, without), default=None)
    if len(without) != len(with_start) or score is None:
        raise ValueError(f"scores of seed {seed}: {without} and {with_start} are not as many, or the first has none")
    before = without.index(score) + 1
    # A NaN is neither above nor below.
    reached = (n for n, value in enumerate(with_start, 1) if (value >= score if higher else value <= score))
    after = next(reached, None)
    return Pair(
        seed=seed,
        without=[_finite(value) for value in without],
        with_start=[_finite(value) for value in with_start],
        seconds_without=seconds[0],
        seconds_with_start=seconds[1],
        default_score=score,
        best_with_start=best(filter(math.isfinite, with_start), default=None),
        updates_without=before * updates,
        updates_with_start=None if after is None else after * updates,
        ratio=None if after is None else after / before,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def summary_of(pairs: Sequence[Pair]) -> dict[str, float | None]:
    """Median and range of the ratios over seeds; ``None``: not reached."""
    ratios = sorted(math.inf if pair.ratio is None else pair.ratio for pair in pairs)
    numbers = {"ratio_median": statistics.median(ratios), "ratio_min": ratios[0], "ratio_max": ratios[-1]}
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def shown(pair: Pair) -> str:
    """A row in words."""
    return (
        f"default's score {pair.default_score:.4g} after {pair.updates_without} updates, with the start after "
        f"{_or_not(pair.updates_with_start)} (ratio {_or_not(pair.ratio)}); its best {_or_not(pair.best_with_start)}"
    )


def show(task: Task, pairs: Sequence[Pair], summary: Mapping[str, float | None]) -> None:
    """The task's table, as Markdown."""
    print(f"{task.name}, T = {task.length}; score: {task.score}\n")
    print("| seed | default's best | after updates | with the start after | ratio | its best |\n" + "|---" * 6 + "|")
    for pair in pairs:
        cells = (pair.seed, f"{pair.default_score:.4g}", pair.updates_without, _or_not(pair.updates_with_start))
        print(f"| {' | '.join(map(str, cells))} | {_or_not(pair.ratio)} | {_or_not(pair.best_with_start)} |")
    low, high = _or_not(summary["ratio_min"]), _or_not(summary["ratio_max"])
    print(f"\nratio: median {_or_not(summary['ratio_median'])}, from {low} to {high}\n")


def _or_not(number: float | None) -> str:
    return "not reached" if number is None else f"{number:.4g}" if isinstance(number, float) else str(number)
