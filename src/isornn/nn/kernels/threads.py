"""A loop over a tensor's memory, shared by threads."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from itertools import pairwise
from queue import SimpleQueue

import torch
from torch import Tensor

# Nanoseconds of work that repay a thread. Starting one takes 50 us; but OpenMP's threads, which torch's operations have
# used before, wait for more work for about 3 ms without leaving their cores.
_WORTH_A_THREAD = 2_000_000
# A thread that starts late or has to share its core leaves the parts that it has not begun to the others.
_PARTS_OF_A_THREAD = 2


def shared(loop: Callable[..., None], *arguments: Tensor | bool, over: int, work: float, least: int = 1) -> None:
    """``loop(*arguments, start, stop)`` over ``range(over)``, in parts on as many threads as torch may use.

    The threads are not numba's: its pool ends the process where two Python threads call it at once. They are started
    for the call, so that they treat denormal numbers as the caller does.

    Args:
        loop: compiled.
        arguments: of the loop.
        over: how much there is to share out.
        work: about how many nanoseconds all of it takes one thread.
        least: what a part has at least, where there is as much for each thread.

    Raises:
        Exception: the first that the loop raised in any part, after all parts have ended.
    """
    arrays = [value.numpy(force=True) if isinstance(value, Tensor) else value for value in arguments]
    threads = max(1, min(torch.get_num_threads(), over, int(work) // _WORTH_A_THREAD))
    if threads == 1:
        return loop(*arrays, 0, over)
    count = max(threads, min(threads * _PARTS_OF_A_THREAD, over // least))
    parts = list(pairwise(over * part // count for part in range(count + 1)))
    finished: SimpleQueue[BaseException | None] = SimpleQueue()

    def some_parts() -> None:
        while True:
            try:
                bounds = parts.pop()
            except IndexError:  # another thread had the last
                return
            try:
                loop(*arrays, *bounds)
            except BaseException as error:
                finished.put(error)
            else:
                finished.put(None)

    for _ in range(threads - 1):
        _thread.start_new_thread(some_parts, ())
    some_parts()
    errors = [error for error in (finished.get() for _ in range(count)) if error is not None]
    if errors:
        raise errors[0]
