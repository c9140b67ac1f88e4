"""Interrupts that are not lost."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SECONDS_UNTIL_AGAIN = 0.01
_SECONDS_WITHOUT_EFFECT = 1.0


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

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Within the block an interrupt comes again: a moment later where Python says that it dropped it, and every
        second for as long as the block goes on."""
        before, again = sys.unraisablehook, list[threading.Timer]()
        over = threading.Event()
        insisting = threading.Thread(target=self._insist, args=(over,), daemon=True)

        def hook(dropped: sys.UnraisableHookArgs) -> None:
            if dropped.exc_type is not KeyboardInterrupt:
                before(dropped)
                return
            # Not from here: what is raised within the hook is dropped too.
            again.append(threading.Timer(_SECONDS_UNTIL_AGAIN, self.repeat))
            again[-1].daemon = True
            again[-1].start()

        sys.unraisablehook = hook
        insisting.start()
        try:
            yield
        finally:
            over.set()
            sys.unraisablehook = before
            for timer in again:
                timer.cancel()
            insisting.join()

    def _insist(self, over: threading.Event) -> None:
        while not over.wait(_SECONDS_WITHOUT_EFFECT):
            self.repeat()

    def repeat(self) -> None:
        """Interrupt the main thread again if there was an interrupt; called from another thread."""
        if self._came:
            _thread.interrupt_main()


@contextmanager
def interrupts_kept() -> Iterator[Interrupts]:
    """Within the block an interrupt (SIGINT) is noted, and what is yielded raises it again where Python dropped it.

    Python raises KeyboardInterrupt wherever the program is at that moment, and drops it where that is a finaliser or a
    callback of a weak reference, as there are many while modules are imported; others swallow it, with an ``except:``
    of what they try to import. It then comes again, at least every second until the block ends, and whoever checks
    between steps ends after that step. A block within such a block has the interrupts of the outer one. Where another
    handler than Python's own is in place, or outside the main thread, it is left alone.
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
        with interrupts.repeated():
            yield interrupts
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
