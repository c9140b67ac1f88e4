"""How far a long command is, on stderr: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from isornn.cli.show import errors, say

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

PATIENCE = 20.0


class NowAndThen:
    """Lets lines through at most every so many seconds.

    Args:
        seconds: between two lines.
        at_once: whether the first needs no wait.

    >>> due = NowAndThen(60.0, at_once=True)
    >>> due(), due()
    (True, False)
    """

    def __init__(self, seconds: float = PATIENCE, *, at_once: bool = False) -> None:
        self._seconds, self._last = seconds, -math.inf if at_once else time.monotonic()

    def __call__(self) -> bool:
        """Whether a line may be said now; it then counts as said."""
        due = time.monotonic() - self._last >= self._seconds
        if due:
            self._last = time.monotonic()
        return due


class Bars:
    """rich's bars by name, each there from when it is first shown."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def show(self, name: str, done: float, of: float | None, **fields: Any) -> None:
        """How far the bar of this name is; ``fields`` are what its text has."""
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=of, **fields)
        self._progress.update(self._tasks[name], completed=done, total=of, **fields)

    def remove(self, name: str) -> None:
        """Without the bar of this name, if it is there."""
        if name in self._tasks:
            self._progress.remove_task(self._tasks.pop(name))


@contextmanager
def bars(
    text: str = "{task.description}", columns: Sequence[ProgressColumn] | None = None, *, transient: bool = False
) -> Iterator[Bars | None]:
    """Bars on a terminal's stderr; ``None`` elsewhere, where lines are to be said or nothing.

    Args:
        text: before each bar, with rich's ``task`` in it.
        columns: between the bar and the time that is left; how many of how many by default.
        transient: whether the bars disappear at the end.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = errors()
    if not console.is_terminal:
        yield None
        return
    between = (MofNCompleteColumn(),) if columns is None else columns
    every = (TextColumn(text), BarColumn(), *between, TimeRemainingColumn())
    with Progress(*every, console=console, transient=transient) as progress:
        yield Bars(progress)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Until the block ends ``what`` on a terminal's stderr, and elsewhere a line every `PATIENCE` seconds."""
    console, over, begun = errors(), threading.Event(), time.monotonic()
    if console.is_terminal:
        with console.status(what):
            yield
        return

    def lines() -> None:
        while not over.wait(PATIENCE):
            say(f"isornn: {what}, for {time.monotonic() - begun:.0f} s so far")

    thread = threading.Thread(target=lines, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Called with how many of ``total`` are done."""
    due = NowAndThen()

    def line(done: int) -> None:
        if due():
            say(f"{done} of {total} {what}")

    with bars(transient=True) as shown:
        yield line if shown is None else lambda done: shown.show(what, done, total)


def is_tenth(done: int, of: int) -> bool:
    """Whether a line is due after so many: each tenth of them, and the last.

    >>> [done for done in range(1, 26) if is_tenth(done, 25)]
    [2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 25]
    """
    return done == of or done % max(1, of // 10) == 0
