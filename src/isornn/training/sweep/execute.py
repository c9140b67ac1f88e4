"""A sweep from its configurations to its outcomes, past killed workers and beside other sweeps."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from isornn.interrupts import interrupts_kept
from isornn.records import RecordError
from isornn.training.sweep.ledger import OUTCOME, Run, SweptRun, ask, give_up, lost, read_run, take
from isornn.training.sweep.plan import Fields
from isornn.training.sweep.workers import WorkerLost, Workers
from isornn.warn import warn

Watch = Callable[[list[SweptRun]], None]

_SECONDS_BETWEEN_LOOKS = 1.0
# A run that was lost so often is taken up alone: if its worker dies again, it is the run's doing.
_LOSSES_BEFORE_ALONE = 2
_MOST_IDLE_LOSSES = 3  # in a row, of workers that had taken no run


def run_sweep(
    configurations: Mapping[str, Fields],
    folder: Path,
    run: Run,
    workers: Workers,
    *,
    watch: Watch | None = None,
    retry_failed: bool = False,
) -> list[SweptRun]:
    """Take every run to its outcome, each in a folder of its own in ``folder``.

    Runs that are finished or failed are not repeated. A run whose worker is killed goes on from its checkpoint with the
    next worker; one that kills its worker even when it is the only one at work is recorded as failed. What other sweeps
    on the same folder have taken is left to them, and waited for. An interrupt leaves everything to be taken up by the
    next call.

    Args:
        configurations: by the name of the run's folder, which a configuration's hash should be.
        folder: of the sweep; made if needed.
        run: what to do with a configuration; must be picklable, and an exception of it is the run's failure.
        workers: `LocalWorkers` or `RayWorkers`.
        watch: called about once a second, from a thread, with how the runs stand (waiting, where the sweep has not yet
            come to a run's folder), and once at the end; a warning says so where a record is damaged, or ``watch``
            fails.
        retry_failed: let failed runs wait again.

    Returns:
        The runs, in the order of ``configurations``.

    Raises:
        WorkerLost: workers die before they have taken a run.
        SweepError: see `RayWorkers`.
        OSError: the folder cannot be written to, or its file system has no locks.
        RecordError: a file of a run is damaged.

    >>> from tempfile import TemporaryDirectory
    >>> from isornn.training.sweep import LocalWorkers
    >>> def square(configuration, folder, progress):
    ...     return {"square": configuration["x"] ** 2}
    >>> with TemporaryDirectory() as folder:
    ...     runs = run_sweep({"a": {"x": 2}, "b": {"x": 3}}, Path(folder), square, LocalWorkers(1))
    >>> [(run.state, run.record) for run in runs]
    [('finished', {'square': 4}), ('finished', {'square': 9})]
    """
    plan = {folder.absolute() / name: configuration for name, configuration in configurations.items()}
    folders = list(plan)
    with interrupts_kept() as interrupts, workers.start():  # first, for nothing is written where they cannot start
        asked: list[Path] = []
        with _watched(plan, asked, watch):
            for place, configuration in plan.items():
                ask(place, configuration, retry_failed=retry_failed)
                asked.append(place)
            interrupts.check()
            _finish(folders, run, workers)
    return [read_run(place) for place in folders]


def _finish(folders: Sequence[Path], run: Run, workers: Workers) -> None:
    losses, idle_losses = _Losses(), 0
    while unfinished := [folder for folder in folders if not (folder / OUTCOME).exists()]:
        waiting = [folder for folder in unfinished if read_run(folder).state == "waiting"]
        if not waiting:  # the rest is with another sweep
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            continue
        batch, alone = losses.next(waiting)
        sweep = uuid.uuid4().hex
        try:
            workers.work(partial(_take_each, batch, run, sweep), runs=len(batch), alone=alone)
        except WorkerLost as error:
            taken = [folder for folder in batch if lost(folder, sweep)]
            idle_losses = 0 if taken else idle_losses + 1
            if idle_losses == _MOST_IDLE_LOSSES:
                raise
            losses.add(taken)
            if alone and taken:
                give_up(taken[0], f"it kills its worker, with no other at work too: {error}")


def _take_each(folders: Sequence[Path], run: Run, sweep: str) -> None:
    for folder in folders:
        take(folder, run, sweep)


class _Losses:
    """How often each run was lost with its worker, since it last got further than before.

    All runs at work are lost with one worker, so that which one it was has to be found out.
    """

    def __init__(self) -> None:
        self.counts: Counter[Path] = Counter()
        self.furthest: Counter[Path] = Counter()

    def add(self, folders: Iterable[Path]) -> None:
        for folder in folders:
            done, _ = read_run(folder).done or (0, 0)
            self.counts[folder] = 1 if done > self.furthest[folder] else self.counts[folder] + 1
            self.furthest[folder] = max(done, self.furthest[folder])

    def next(self, waiting: Sequence[Path]) -> tuple[Sequence[Path], bool]:
        """What to take up, the never lost first, and whether it is one run that has to go alone."""
        unsuspected = [folder for folder in waiting if self.counts[folder] < _LOSSES_BEFORE_ALONE]
        if unsuspected:
            return sorted(unsuspected, key=lambda folder: self.counts[folder]), False
        return waiting[:1], True


@contextmanager
def _watched(plan: Mapping[Path, Fields], asked: Sequence[Path], watch: Watch | None) -> Iterator[None]:
    """``watch`` is called from a thread until the block ends, and then once more if it ends well.

    A record that cannot be read is warned of and looked at again; an error of ``watch`` itself ends the calls of the
    thread, with a warning. Neither ends the runs.

    Args:
        asked: the folders that are ready to be read, to which the block adds; making many takes minutes.
    """
    if watch is None:
        yield
        return
    new = [SweptRun(folder, configuration, "waiting", None, 0) for folder, configuration in plan.items()]
    ended: dict[Path, SweptRun] = {}

    def look() -> None:
        runs = [ended.get(folder) or read_run(folder) for folder in tuple(asked)]
        runs += new[len(runs) :]
        ended.update({run.folder: run for run in runs if run.state in ("finished", "failed")})
        watch(runs)

    def keep_looking() -> None:
        said = set[str]()
        while not over.wait(_SECONDS_BETWEEN_LOOKS):
            try:
                look()
            except RecordError as error:
                if str(error) not in said:
                    said.add(str(error))
                    warn(f"how the runs stand cannot be read: {error}; they go on")
            except Exception as error:
                warn(f"watch: {type(error).__name__}: {error}; it is called again at the end, and the runs go on")
                return

    over, thread = threading.Event(), threading.Thread(target=keep_looking, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    look()
