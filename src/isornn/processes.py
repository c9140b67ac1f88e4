"""Processes that end when their parent does."""

from __future__ import annotations

import os
import threading
import time

_SECONDS_BETWEEN_LOOKS = 0.5


def end_with_parent(parent: int) -> None:
    """Let this process end within a second of its parent's end, however that came about; called once, by the child.

    It imports nothing else of this package, so that it can be called before slow imports begin.

    Args:
        parent: the process number of the parent, as the parent knows it: it may have ended before this is called.
    """
    threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: int) -> None:
    # A process whose parent has ended is given another. A pipe of the parent's would not do: joblib's workers inherit
    # all of its ends from each other.
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)
