"""Who is at work in a run's folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """The lock of a run's folder: whether it is this thread's until the block ends. A thread that has it gets it again.

    It is a lock of the operating system (flock) on ``.lock``, which falls when the process ends, however that comes
    about; the file stays.

    Raises:
        OSError: the file system has no locks.
    """
    # A lock that is only a file's existence would outlive a killed worker.
    lock = FileLock(folder.absolute() / LOCK, fallback_to_soft=False, is_singleton=True)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def held(folder: Path) -> bool:
    """Whether somebody has the lock of a run's folder, this thread too; the right to read the folder is enough.

    Raises:
        OSError: ``.lock`` may not be read, or the file system has no locks.
    """
    import fcntl  # which a system without flock does not have

    try:
        with (folder / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
