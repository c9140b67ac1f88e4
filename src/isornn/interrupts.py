"""Interrupts that are not lost."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """The handler of SIGINT that `interrupts_kept` installs: it raises KeyboardInterrupt, and notes that it did."""

    def __init__(self) -> None:
        self._came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        signal.default_int_handler(number, frame)

    def check(self) -> None:
        """Raise KeyboardInterrupt if there was an interrupt; called between steps of the main thread's."""
        if self._came:
            raise KeyboardInterrupt

    def repeat(self) -> None:
        """Interrupt the main thread again if there was an interrupt; called from another thread."""
        if self._came:
            _thread.interrupt_main()


@contextmanager
def interrupts_kept() -> Iterator[Interrupts]:
    """Within the block an interrupt (SIGINT) is noted, and what is yielded raises it again where Python dropped it.

    Python raises KeyboardInterrupt wherever the program is at that moment, and drops it where that is a finaliser or a
    callback of a weak reference, as there are many while modules are imported. Whoever checks between steps ends after
    the step where that happened. A block within such a block has the interrupts of the outer one. Where another handler
    than Python's own is in place, or outside the main thread, it is left alone.
    """
    ours = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if ours else None
    if isinstance(before, Interrupts):
        yield before
        return
    interrupts = Interrupts()
    if before is not signal.default_int_handler:
        yield interrupts
        return
    signal.signal(signal.SIGINT, interrupts)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
