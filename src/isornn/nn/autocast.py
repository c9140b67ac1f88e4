"""What ``torch.autocast`` asks of layers, and how what must be precise leaves it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def autocast_dtype(device: str) -> torch.dtype | None:
    """What autocast computes with on a device; ``None`` where it is off, and on the meta device, which has none.

    >>> with torch.autocast("cpu"):
    ...     autocast_dtype("cpu")
    torch.bfloat16
    >>> autocast_dtype("cpu"), autocast_dtype("meta")
    (None, None)
    """
    # torch.compile does not know torch.amp.is_autocast_available in every version
    if device == "meta" or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """A block in which autocast is off. Where it is off already nothing is entered, which takes as long as a step."""
    return nullcontext() if autocast_dtype(device) is None else torch.autocast(device, enabled=False)
