"""A sweep on disk: one folder a run, which says by itself what state the run is in.

A run's folder holds, beside what the run itself writes,

- ``configuration.json`` from the moment that a sweep asks for the run;
- ``claim.json`` from the moment that a worker takes it: who, since when, how far;
- ``outcome.json`` from its end: what came out, or why nothing did;
- ``.lock``, held by the worker (`locked`): it falls with the process, so that nothing has to be waited out and nothing
  cleaned up.

So whoever sees the folder may take runs from it, at the same time as others.
"""

from __future__ import annotations

import math
import os
import platform
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from isornn.cells.errors import brief
from isornn.files import remove_begun
from isornn.records import RecordError, read_table, write_record
from isornn.training.lock import held, locked
from isornn.training.sweep.plan import Fields, SweepError

Progress = Callable[[int, int], None]
Run = Callable[[Fields, Path, Progress], dict[str, Any]]
"""What a sweep does with a configuration: (configuration, folder, progress) to a record that JSON can hold.

Where ``folder`` has a checkpoint from before, it goes on from there. It calls ``progress(done, of)`` as often as it
likes. Any exception is the run's failure; `RunFailed` is one that has a record too.
"""


class RunFailed(Exception):
    """A run came to its end, but not to what it was for: why, and what came out.

    >>> RunFailed("diverged: the loss is NaN", {"updates": 12}).record
    {'updates': 12}
    """

    def __init__(self, reason: str, record: dict[str, Any]) -> None:
        super().__init__(reason)
        self.record = record


State = Literal["waiting", "running", "finished", "failed"]
STATES: tuple[State, ...] = ("finished", "running", "failed", "waiting")

CONFIGURATION, CLAIM, OUTCOME = "configuration.json", "claim.json", "outcome.json"
_CLAIMED = ("sweep", "takes", "host", "pid", "begun", "done")
_SECONDS_BETWEEN_NOTES = 1.0
_TYPES = {"takes": int, "done": list, "state": str, "record": dict | None, "reason": str | None}


@dataclass(frozen=True)
class SweptRun:
    """A run as its folder records it.

    Attributes:
        folder: of the run; its name is the run's.
        configuration: as the sweep asked for it.
        state: waiting (for the first time or to be taken up again), running, finished or failed.
        done: updates done and asked for, by the last note of a worker; ``None`` without one.
        takes: how often a worker took it.
        record: what the run returned, once finished; what it has to tell of its failure, if anything.
        reason: why it failed.

    >>> from tempfile import TemporaryDirectory
    >>> from isornn.training.sweep import LocalWorkers, run_sweep
    >>> def square(configuration, folder, progress):
    ...     return {"square": configuration["x"] ** 2}
    >>> with TemporaryDirectory() as folder:
    ...     (one,) = run_sweep({"a": {"x": 2}}, Path(folder), square, LocalWorkers(1))
    >>> one.folder.name, one.state, one.takes, one.record
    ('a', 'finished', 1, {'square': 4})
    """

    folder: Path
    configuration: Fields
    state: State
    done: tuple[int, int] | None
    takes: int
    record: dict[str, Any] | None = None
    reason: str | None = None


def read_run(folder: Path) -> SweptRun:
    """How the run in ``folder`` stands.

    Raises:
        RecordError: a file of it is missing or damaged.
    """
    configuration = _configuration(folder)
    noted = _noted(folder)
    # In this order: the outcome is written before the lock falls. A run that no sweep has begun holds it too.
    running = not (folder / OUTCOME).exists() and held(folder)
    if (folder / OUTCOME).exists():
        noted = _notes(folder / OUTCOME)
    state = noted.get("state", "running" if running else "waiting")
    done = tuple(noted["done"]) if "done" in noted else None
    return SweptRun(folder, configuration, state, done, noted.get("takes", 0), noted.get("record"), noted.get("reason"))


def collect(folder: Path) -> list[SweptRun]:
    """All runs in a sweep's folder, in the order of their names: the table that figures are drawn from.

    Raises:
        SweepError: no run lies there.
        RecordError: a file of a run is damaged.

    >>> from tempfile import TemporaryDirectory
    >>> from isornn.training.sweep import LocalWorkers, run_sweep
    >>> def square(configuration, folder, progress):
    ...     return {"square": configuration["x"] ** 2}
    >>> with TemporaryDirectory() as folder:
    ...     _ = run_sweep({"a": {"x": 2}, "b": {"x": 3}}, Path(folder), square, LocalWorkers(1))
    ...     [(run.configuration["x"], run.record["square"]) for run in collect(Path(folder))]
    [(2, 4), (3, 9)]
    """
    runs = [read_run(file.parent) for file in sorted(folder.glob(f"*/{CONFIGURATION}"))]
    if not runs:
        raise SweepError("folder", str(folder), "it must be a folder that holds runs")
    return runs


def ask(folder: Path, configuration: Fields, *, retry_failed: bool = False) -> None:
    """Note that a run is wanted, and with ``retry_failed`` that it waits again where it failed."""
    if not (folder / CONFIGURATION).exists():
        write_record(folder / CONFIGURATION, configuration)
    if retry_failed:
        with locked(folder) as ours:
            if ours and read_run(folder).state == "failed":
                _wait_again(folder)


def _wait_again(folder: Path) -> None:
    """Leave of a failure how often the run was taken, and how far it came."""
    ended = _notes(folder / OUTCOME)
    write_record(folder / CLAIM, {name: ended[name] for name in _CLAIMED if name in ended})
    (folder / OUTCOME).unlink()


def take(folder: Path, run: Run, sweep: str) -> None:
    """Run what waits in ``folder``; nothing, where it has an outcome or another worker has it.

    Args:
        sweep: who asks; noted in the claim, so that a sweep knows which runs were lost with its workers.
    """
    with locked(folder) as ours:
        if ours and not (folder / OUTCOME).exists():
            _run(folder, run, sweep)


def lost(folder: Path, sweep: str) -> bool:
    """Whether a worker of ``sweep`` took the run and is no more, the run without an outcome."""
    if _noted(folder).get("sweep") != sweep:
        return False
    with locked(folder) as ours:
        return ours and not (folder / OUTCOME).exists()


def give_up(folder: Path, reason: str) -> None:
    """Note that a run failed, in the place of a worker that cannot."""
    with locked(folder) as ours:
        if ours and not (folder / OUTCOME).exists():
            write_record(folder / OUTCOME, {**_noted(folder), "state": "failed", "reason": reason})


def _noted(folder: Path) -> dict[str, Any]:
    return _notes(folder / CLAIM) if (folder / CLAIM).exists() else {}


def _notes(file: Path) -> dict[str, Any]:
    """A claim or an outcome."""
    notes = read_table(file, _TYPES)
    state, done = notes.get("state", "waiting"), notes.get("done", [0, 0])
    if state not in STATES:
        raise RecordError(f"{file}: state: {brief(state)} is not allowed; it must be one of {', '.join(STATES)}")
    if len(done) != 2 or not all(isinstance(updates, int) for updates in done):
        raise RecordError(f"{file}: done: {brief(done)} is not allowed; it must be two whole numbers")
    return notes


def _configuration(folder: Path) -> dict[str, Any]:
    return read_table(folder / CONFIGURATION, {})


def _run(folder: Path, run: Run, sweep: str) -> None:
    for name in (CLAIM, OUTCOME):
        remove_begun(folder / name)
    before = _noted(folder)
    notes = {
        **{name: before[name] for name in ("done",) if name in before},  # a run that fails at once came no less far
        "sweep": sweep,
        "takes": before.get("takes", 0) + 1,
        "host": platform.node(),
        "pid": os.getpid(),
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_record(folder / CLAIM, notes)
    begun, last = time.perf_counter(), -math.inf

    def progress(done: int, of: int) -> None:
        nonlocal last
        notes["done"] = [done, of]
        if time.perf_counter() - last > _SECONDS_BETWEEN_NOTES:
            last = time.perf_counter()
            write_record(folder / CLAIM, notes)

    def end(**outcome: Any) -> None:
        seconds = round(time.perf_counter() - begun, 3)
        write_record(folder / OUTCOME, {**notes, "seconds": seconds, **outcome})

    try:
        end(state="finished", record=run(_configuration(folder), folder, progress))
    except RunFailed as failure:
        end(state="failed", reason=str(failure), record=failure.record)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        end(state="failed", reason=reason, traceback=traceback.format_exc().splitlines())
