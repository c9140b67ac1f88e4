"""Who does the work of a sweep: processes of this machine, or of a Ray cluster; joblib starts both."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from isornn.extras import named
from isornn.processes import end_with_parent
from isornn.training.sweep.plan import SweepError

try:
    import joblib
except ModuleNotFoundError as error:
    raise named(error) from None


class WorkerLost(ChildProcessError):
    """A worker process ended before its work did.

    >>> print(WorkerLost("a worker ended with signal 9"))
    a worker ended with signal 9
    """


class Workers(Protocol):
    """Processes that do the same work at the same time."""

    def start(self) -> AbstractContextManager[None]:
        """A context within which `work` may be called."""

    def work(self, work: Callable[[], None], *, runs: int, alone: bool = False) -> None:
        """Let every worker do ``work``, or only one of them.

        Args:
            work: takes up runs until there is none left.
            runs: how many there are: more workers than that are not started.
            alone: whether one is to do it.

        Raises:
            WorkerLost: a worker was killed. The others have been stopped, as joblib's backends do then.
        """


@dataclass(frozen=True)
class LocalWorkers:
    """Processes of this machine, by joblib's loky.

    Args:
        jobs: how many at most; no more than there are runs, or two. 1 is the calling process itself, which then is
            the one that a kill ends; more end within a second of the calling process.
        threads: of torch, each.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from isornn.training.sweep import run_sweep
    >>> def square(configuration, folder, progress):
    ...     return {"square": configuration["x"] ** 2}
    >>> with TemporaryDirectory() as folder:
    ...     runs = run_sweep({"a": {"x": 2}}, Path(folder), square, LocalWorkers(jobs=1))
    >>> runs[0].record
    {'square': 4}
    """

    jobs: int
    threads: int = 1

    def __post_init__(self) -> None:
        _check(self.jobs, self.threads, least=1)

    @contextmanager
    def start(self) -> Iterator[None]:
        # Before the worker imports what its work needs, which takes it seconds.
        watch = {"initializer": end_with_parent, "initargs": (os.getpid(),)}
        with joblib.parallel_config(backend="loky", inner_max_num_threads=self.threads, **watch):
            yield

    def work(self, work: Callable[[], None], *, runs: int, alone: bool = False) -> None:
        try:
            _spread(work, _enough(self.jobs, runs), self.threads, alone)
        except BrokenProcessPool as error:
            raise WorkerLost(str(error)) from error


@dataclass(frozen=True)
class RayWorkers:
    """Actors on all nodes of a Ray cluster, one for every ``threads`` CPUs, by joblib's Ray backend.

    Every node must see the sweep's folder, on a file system that has locks.

    Args:
        jobs: at most so many actors; ``None`` for as many as there are CPUs for.
        threads: of torch, each; as many CPUs are asked for.
        address: of the cluster, as Ray takes it; ``None`` for the one that Ray finds, or one of this machine.

    Raises:
        SweepError: Ray is not installed, or no cluster answers at the address.

    >>> RayWorkers(jobs=8, threads=2)  # started by run_sweep
    RayWorkers(jobs=8, threads=2, ...)
    """

    jobs: int | None = None
    threads: int = 1
    address: str | None = None

    def __post_init__(self) -> None:
        _check(self.jobs, self.threads, least=2)

    @contextmanager
    def start(self) -> Iterator[None]:
        from isornn.training.sweep.cluster import connected

        with (
            connected(self.address),
            joblib.parallel_config(backend="ray", ray_remote_args={"num_cpus": self.threads}),
        ):
            yield

    def work(self, work: Callable[[], None], *, runs: int, alone: bool = False) -> None:
        from ray.exceptions import RayActorError

        from isornn.training.sweep.cluster import room

        actors = _enough(room(self.threads, self.jobs), runs)
        try:
            _spread(work, actors, self.threads, alone)
        except RayActorError as error:
            raise WorkerLost(str(error)) from error


def processors() -> int:
    """The CPUs that this process may use.

    >>> processors() >= 1
    True
    """
    return int(joblib.cpu_count())


def _check(jobs: int | None, threads: int, least: int) -> None:
    for field, value, smallest in (("jobs", jobs, least), ("threads", threads, 1)):
        if value is not None and not value >= smallest:
            raise SweepError(field, value, f"it must be at least {smallest}")


def _enough(most: int, runs: int) -> int:
    """Processes for so many runs: two at least where there may be more than one, for one is joblib's caller itself."""
    return min(most, max(runs, 2))


def _spread(work: Callable[[], None], processes: int, threads: int, alone: bool) -> None:
    slots = 1 if alone else processes
    joblib.Parallel(n_jobs=processes, batch_size=1)(joblib.delayed(_with_threads)(work, threads) for _ in range(slots))


def _with_threads(work: Callable[[], None], threads: int) -> None:
    # The number of threads decides the order of sums, so that results would depend on the number of workers.
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        work()
    finally:
        torch.set_num_threads(before)
