"""Interrupts that come where Python drops the exception."""

from __future__ import annotations

import os
import signal
import sys


class Deleted:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def dropped_interrupt() -> None:
    """It comes while an object is being deleted."""
    dropped: list[type[BaseException]] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda each: dropped.append(each.exc_type)
    try:
        Deleted()
    finally:
        sys.unraisablehook = before
    assert dropped == [KeyboardInterrupt]
