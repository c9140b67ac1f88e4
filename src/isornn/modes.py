"""Denormal numbers, and other global modes of torch that callers may have switched."""

from __future__ import annotations

import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import torch


def flushes_denormals() -> bool:
    """Whether this thread's arithmetic replaces denormal numbers by 0; torch sets that mode but does not show it.

    >>> with denormals_flushed(True):
    ...     flushes_denormals()
    True
    """
    return sys.float_info.min / 2 == 0.0


@contextmanager
def denormals_flushed(flush: bool = True) -> Iterator[None]:
    """Within the block denormal numbers are replaced by 0 (``flush``) or computed with; afterwards as it was before.

    Denormal numbers are those below 1.2e-38 (float32) and 2.2e-308 (float64) in size. Many CPUs are ten times slower
    with them, and a gradient that has vanished consists of them.

    The mode belongs to a thread, and a new thread takes over that of the thread which starts it. Those of torch's pool
    start with the first parallel operation and keep their mode from then on: enter the block before that, and all
    threads flush, the pool's for good.
    """
    before = flushes_denormals()
    torch.set_flush_denormal(flush)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def denormal_mode() -> str:
    """What the threads of torch do with denormal numbers, for records and headings.

    >>> with denormals_flushed(False):
    ...     denormal_mode()
    'computed with'
    """
    # More numbers than torch leaves to one thread; starts the pool.
    numbers = torch.full((1 << 17,), torch.finfo(torch.float32).tiny, dtype=torch.float32, device="cpu")
    if not flushes_denormals():
        return "computed with"
    return "flushed to 0" if not (numbers * 0.5).any() else "flushed to 0, but not by threads that torch had already"


def processor() -> str:
    """The CPU by its maker's name, where the system says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


@contextmanager
def usual_modes() -> Iterator[None]:
    """Within the block torch is as a new process has it; afterwards as it was.

    Off: inference mode, ``no_grad``, autocast, a default dtype or device of the user's, flushed denormal numbers.
    What is computed within it does not depend on what the caller has switched.

    >>> with torch.inference_mode(), usual_modes():
    ...     torch.ones(2, requires_grad=True).sum().requires_grad
    True
    """
    # A device context slows every call down, so it is entered only where there is another to leave.
    elsewhere = torch.get_default_device().type != "cpu"
    with unhindered(), _USUAL_DTYPE, torch.device("cpu") if elsewhere else nullcontext():
        yield


class _UsualDtype:
    """float32 as the default dtype, which all threads share: the first that enters sets it, the last puts it back."""

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, torch.float32

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before = torch.get_default_dtype()
                torch.set_default_dtype(torch.float32)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                torch.set_default_dtype(self._before)


_USUAL_DTYPE = _UsualDtype()


@contextmanager
def unhindered() -> Iterator[None]:
    """`usual_modes`, but for the default dtype and device, which a user's own model may count on."""
    with ExitStack() as off:
        off.enter_context(torch.inference_mode(False))
        off.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                off.enter_context(torch.autocast(device, enabled=False))
        off.enter_context(denormals_flushed(False))
        yield
