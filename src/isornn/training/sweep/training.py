"""Sweeps of training runs: `isornn.training.run` of each configuration, in a folder named by its hash."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isornn.records import RecordError, read_table
from isornn.training.checkpoint import CheckpointError
from isornn.training.configuration import Configuration
from isornn.training.metrics import CHECKPOINT, read_metrics
from isornn.training.run import CONFIGURATION, RECORD, run
from isornn.training.sweep.ledger import Progress, RunFailed, SweptRun, collect, read_run
from isornn.training.sweep.plan import Fields, SweepError

_TYPES = {"diverged": str | None}


def named_by_hash(configurations: Iterable[Fields], *, allow: Sequence[str] = ()) -> dict[str, Fields]:
    """All fields of each configuration, defaults included, by its hash.

    Args:
        configurations: as `Configuration.from_mapping` reads them.
        allow: packages that a model's name may have imported.

    Raises:
        ConfigurationError: a field that is not allowed.
        SweepError: two are the same.

    >>> base = {"model": {"name": "lstm", "hidden": 4}, "task": {"name": "adding", "length": 9}, "updates": 1}
    >>> runs = named_by_hash([{**base, "optimiser": {"name": "adam", "rate": rate}} for rate in (0.1, 0.01)])
    >>> [(len(name), run["optimiser"]["rate"], run["seed"]) for name, run in runs.items()]
    [(16, 0.1, 0), (16, 0.01, 0)]
    """
    named: dict[str, Fields] = {}
    for place, fields in enumerate(configurations, start=1):
        configuration = Configuration.from_mapping(fields, allow=allow)
        if configuration.hash in named:
            first = list(named).index(configuration.hash) + 1
            raise SweepError("runs", f"{first} and {place}", "they are the same run, with the defaults filled in")
        named[configuration.hash] = configuration.to_mapping()
    return named


def train_run(
    configuration: Fields,
    folder: Path,
    progress: Progress,
    *,
    data: Path | None = None,
    allow: Sequence[str] = (),
) -> dict[str, Any]:
    """`isornn.training.run` as a sweep calls it; a worker imports a cell's module where ``allow`` has its package.

    A run that has diverged before is trained again, from its last checkpoint: a sweep calls this only for runs that are
    new, interrupted, or to be tried again.

    Raises:
        RunFailed: training diverged.

    >>> from tempfile import TemporaryDirectory
    >>> given = {"model": {"name": "lstm", "hidden": 4}, "task": {"name": "adding", "length": 9}, "updates": 1}
    >>> given["optimiser"] = {"name": "adam", "rate": 0.1}
    >>> with TemporaryDirectory() as folder:
    ...     train_run(given, Path(folder), lambda done, of: None)["length"]
    9
    """
    known = Configuration.from_mapping(configuration, allow=allow)
    _forget_divergence(folder)
    record = run(known, folder, data=data, progress=progress)
    if record.diverged is not None:
        raise RunFailed(_diverged(record.diverged), record.to_mapping())
    return record.to_mapping()


def _forget_divergence(folder: Path) -> None:
    """Remove the record of a run that diverged, with which `run` takes it as ended; its checkpoint is from before."""
    file = folder / RECORD
    if file.exists() and _why_diverged(file) is not None:
        file.unlink()


def trainings_in(folder: Path) -> list[SweptRun]:
    """`collect`, or the one run whose own folder it is.

    A run that `isornn.training.run` has made without a sweep is as its record says, or waits at its last checkpoint;
    one with a damaged file has failed, with that reason.

    Raises:
        SweepError, RecordError: as `collect`.

    >>> from tempfile import TemporaryDirectory
    >>> configuration = {"task": {"name": "adding", "length": 3, "held_out": 4}, "updates": 1, "seed": 0}
    >>> configuration |= {"model": {"name": "gru", "hidden": 2}, "optimiser": {"name": "sgd", "rate": 0.1}}
    >>> with TemporaryDirectory() as folder:
    ...     _ = run(Configuration.from_mapping(configuration), Path(folder, "one"))
    ...     [each.state for each in trainings_in(Path(folder))]
    ['finished']
    """
    runs = [read_run(folder.absolute())] if (folder / CONFIGURATION).exists() else collect(folder)
    return [_as_recorded(run) for run in runs]


def _as_recorded(run: SweptRun) -> SweptRun:
    file = run.folder / RECORD
    if run.state != "waiting":
        return run
    try:
        updates = int(read_table(run.folder / CONFIGURATION, {"updates": int}).get("updates", 0))
        if not file.exists():
            reached = read_metrics(run.folder)[-1:] if (run.folder / CHECKPOINT).exists() else []
            return replace(run, done=(int(reached[0]["update"]), updates)) if reached else run
        record, why = read_table(file, _TYPES), _why_diverged(file)
    except (RecordError, CheckpointError) as error:
        return replace(run, state="failed", reason=str(error))
    if why is not None:
        return replace(run, state="failed", record=record, reason=_diverged(why))
    return replace(run, state="finished", record=record, done=(updates, updates) if updates else None)


def _why_diverged(record: Path) -> str | None:
    why: str | None = read_table(record, _TYPES).get("diverged")
    return why


def _diverged(why: str) -> str:
    return f"diverged: {why}"
