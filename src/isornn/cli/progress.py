"""How far a long command is, on stderr: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from isornn.cli.show import errors, say

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


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Called with how many of ``total`` are done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console, due = errors(), NowAndThen()
    if not console.is_terminal:
        yield lambda done: say(f"{done} of {total} {what}") if due() else None
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(what, total=total)
        yield lambda done: bars.update(task, completed=done)
