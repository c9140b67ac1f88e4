"""Interrupts that Python drops come again."""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import suppress

import pytest

from dropped_interrupts import Deleted
from isornn.interrupts import interrupts_kept


def test_an_interrupt_in_a_finaliser_comes_again_while_nobody_checks() -> None:
    def work() -> None:
        with interrupts_kept():
            Deleted()
            for _ in range(1000):
                time.sleep(0.01)

    begun, hook = time.perf_counter(), sys.unraisablehook
    with pytest.raises(KeyboardInterrupt):
        work()
    assert time.perf_counter() - begun < 5
    assert sys.unraisablehook is hook and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_that_somebody_swallows_comes_again_until_the_block_ends() -> None:
    def work() -> None:
        with interrupts_kept():
            for _ in range(2):
                with suppress(BaseException):  # as packages do around what they may import
                    signal.raise_signal(signal.SIGINT)
            for _ in range(1000):
                time.sleep(0.01)

    begun, threads = time.perf_counter(), threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        work()
    assert time.perf_counter() - begun < 5
    assert threading.active_count() == threads and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_errors_in_finalisers_are_said_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def __del__(self) -> None:
            raise OSError("lost")

    said: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: said.append(dropped.exc_type))
    with interrupts_kept():
        Failing()
    assert said == [OSError]
