"""A loop over a tensor's memory, shared by threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

# Nanoseconds of work, of which starting a thread would take a third.
_WORTH_A_THREAD = 300_000


def shared(loop: Callable[..., None], *arguments: Tensor | bool, over: int, work: float) -> None:
    """``loop(*arguments, start, stop)`` over ``range(over)``, in parts on as many threads as torch may use.

    The threads are not numba's: its pool ends the process where two Python threads call it at once.

    Args:
        loop: compiled.
        arguments: of the loop.
        over: how much there is to share out.
        work: about how many nanoseconds all of it takes one thread.
    """
    parts = max(1, min(torch.get_num_threads(), over, int(work) // _WORTH_A_THREAD))
    here, *elsewhere = pairwise(over * part // parts for part in range(parts + 1))
    arrays = [value.numpy(force=True) if isinstance(value, Tensor) else value for value in arguments]
    threads = [threading.Thread(target=loop, args=(*arrays, *bounds)) for bounds in elsewhere]
    for thread in threads:
        thread.start()
    loop(*arrays, *here)
    for thread in threads:
        thread.join()
