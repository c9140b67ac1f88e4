"""What is known of runs: a file with one line each, and a sweep for those that are not in it yet."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from protocol import GOALS, Fields, Place

from isornn.files import replacing
from isornn.training import Configuration, RunRecord, run
from isornn.training.metrics import read_metrics
from isornn.training.sweep import LocalWorkers, SweptRun, run_sweep

WORKERS = 2
Training = Callable[[Fields, Path, Any], Fields]


class Wanted(Protocol):
    """A run: what is recorded of it under its key, and what is needed to train it."""

    @property
    def key(self) -> str: ...

    @property
    def configuration(self) -> Configuration: ...

    @property
    def fields(self) -> Fields: ...


@dataclass(frozen=True)
class Asked:
    """One run of the protocol."""

    place: Place
    rate: float
    seed: int
    share: float = 1.0

    @property
    def configuration(self) -> Configuration:
        return Configuration.from_mapping(self.place.configuration(self.rate, self.seed, self.share))

    @property
    def key(self) -> str:
        place = self.place
        return f"{place.goal} {place.module} {place.start} rate={self.rate:g} seed={self.seed} of={self.share:g}"

    @property
    def fields(self) -> Fields:
        return self.configuration.to_mapping() | {"goal": self.place.goal}


@dataclass(frozen=True)
class Known:
    """How a run went.

    Args:
        hash: of its configuration.
        updates, values: the validations, by the goal's metric.
        diverged: why it could not go on; ``None`` if it did.
        seconds: on the machine in the file's heading; other work ran beside it.
        seconds_before: the first update: the start's own time, and a second or two to read the data; ``None`` if it was
            not measured.
    """

    hash: str
    updates: Sequence[int]
    values: Sequence[float]
    diverged: str | None
    seconds: float
    seconds_before: float | None = None


Kind = TypeVar("Kind", bound=Known)


class Kept(Generic[Kind]):
    """Runs by their keys. A run whose configuration has changed since is as unknown as one that never was.

    Args:
        file: of the records; made if needed, written whole after each sweep.
        folder: of the runs at work, from which an interrupted sweep goes on.
        train: a sweep's run by its `Wanted.fields`, in a folder of its own; gives what ``kind`` has of it.
        kind: of records.
        workers: processes, of one thread each.
    """

    def __init__(self, file: Path, folder: Path, train: Training, kind: type[Kind], workers: int = WORKERS) -> None:
        self.file, self.folder, self.train, self.kind, self.workers = file, folder, train, kind, workers
        rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        self._known = {key: kind(**row) for key, row in rows.items()}

    def get(self, asked: Wanted) -> Kind | None:
        known = self._known.get(asked.key)
        return known if known is not None and known.hash == asked.configuration.hash else None

    def run(self, wanted: Sequence[Wanted]) -> None:
        """Have all of them: train those that are not known."""
        missing = {asked.configuration.hash: asked for asked in wanted if self.get(asked) is None}
        if not missing:
            return
        plan = {name: asked.fields for name, asked in missing.items()}
        swept = run_sweep(plan, self.folder, self.train, LocalWorkers(self.workers), watch=_tell)
        for one in swept:
            if one.state != "finished" or one.record is None:
                raise RuntimeError(f"{one.folder}: {one.reason or one.state}")
            self._known[missing[one.folder.name].key] = self.kind(**one.record)
        self._save()

    def forget(self, runs: Sequence[Wanted]) -> None:
        """Have these trained again, as after a change of the library that no configuration shows."""
        for asked in runs:
            self._known.pop(asked.key, None)
            shutil.rmtree(self.folder / asked.configuration.hash, ignore_errors=True)
        self._save()

    def _save(self) -> None:
        lines = (f"{json.dumps(key)}: {json.dumps(asdict(known))}" for key, known in sorted(self._known.items()))
        with replacing(self.file) as new:
            new.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def of_goals(file: Path, folder: Path, mnist: Path | None) -> Kept[Known]:
    """The runs of the protocol of goals, with MNIST's files in the folder ``mnist``."""
    return Kept(file, folder, partial(_run, mnist), Known)


def _run(mnist: Path | None, fields: Fields, folder: Path, progress: Any) -> dict[str, Any]:
    """A sweep's run: trained in a folder of its own, told as `Known` has it."""
    fields = dict(fields)
    goal = GOALS[fields.pop("goal")]
    trained = folder / "run"
    configuration = Configuration.from_mapping(fields)
    began = time.perf_counter()
    record: RunRecord = run(configuration, trained, data=mnist if goal.mnist else None, progress=progress)
    taken = time.perf_counter() - began
    rows = read_metrics(trained)
    return {
        "hash": configuration.hash,
        "updates": [row["update"] for row in rows],
        "values": [round(row["validation"][goal.metric], 5) for row in rows],
        "diverged": record.diverged,
        "seconds": round(record.seconds, 1),
        "seconds_before": round(taken - record.seconds, 1),
    }


def _tell(runs: Sequence[SweptRun]) -> None:
    ended = sum(one.state in ("finished", "failed") for one in runs)
    print(f"\r{ended} of {len(runs)} runs", end="" if ended < len(runs) else "\n", flush=True)
