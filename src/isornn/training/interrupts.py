"""Interrupts that are not lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_kept() -> Iterator[Callable[[], None]]:
    """Within the block an interrupt (SIGINT) is noted; what is yielded raises KeyboardInterrupt if there was one.

    Python raises KeyboardInterrupt wherever the program is at that moment, and drops it where that is a finaliser or a
    callback of a weak reference. Whoever calls between steps what is yielded ends after the step where that happened.
    Where another handler than Python's own is in place, or outside the main thread, it is left alone.
    """
    kept = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal kept
        kept = True
        signal.default_int_handler(number, frame)

    def check() -> None:
        if kept:
            raise KeyboardInterrupt

    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield check
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
