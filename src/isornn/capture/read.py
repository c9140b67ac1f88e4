"""Which of a layer's results a model reads, by the gradients of what it computes from them."""

from __future__ import annotations

import torch
from torch import Tensor

from isornn.capture.sequences import CapturedSequence


def unread_shorter(found: CapturedSequence) -> int:
    """How many sequences are shorter than the longest where nothing is read of any of these, and of all the longest.

    So it is where step -1 of the padded outputs is read; 0 where there are no lengths, or no gradients.
    """
    if found.sequences.lengths is None or found.of_output is None:
        return 0
    ends = [part for states in (found.of_ends or {}).values() for layer in states for part in layer]
    read = _any(found.of_output).any(0)
    for part in ends:
        read = read | _any(part)
    shorter = found.lengths < found.lengths.max()
    as_padded = not bool(read[shorter].any()) and bool(read[~shorter].all())
    return int(shorter.sum()) if as_padded else 0


def reads_reverse_at_its_start(found: CapturedSequence, directions: int) -> bool:
    """Whether of the last layer's reverse direction only the output at each sequence's last step is read.

    There it has read that one step. False where there are no gradients.
    """
    if directions < 2 or found.of_output is None or int(found.lengths.min()) < 2:
        return False
    if any(bool(part.any()) for states in (found.of_ends or {}).values() for part in states[-1]):
        return False
    read = _any(found.of_output.chunk(2, -1)[1])
    last = torch.arange(len(read), device=read.device).unsqueeze(1) == found.lengths - 1
    return bool(read.any()) and not bool((read & ~last).any())


def _any(gradient: Tensor) -> Tensor:
    """Where a gradient ``(..., features)`` is not 0."""
    return (gradient != 0).any(-1)
