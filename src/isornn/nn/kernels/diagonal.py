"""The linear recurrence in one compiled pass; it takes the columns to work on, so that threads may share a call."""

from __future__ import annotations

from torch import Tensor

from isornn.nn.kernels.arithmetic import Array, jit
from isornn.nn.kernels.threads import shared


def linear_scan(a: Tensor, b: Tensor, initial: Tensor, reverse: bool) -> Tensor:
    """``h_t = a_t h_(t-1) + b_t``, all of shape (T, ...) and of one dtype; in reverse from ``h_(t+1)``."""
    h = b.new_empty(len(b), initial.numel())
    flat = [tensor.reshape(h.shape).contiguous() for tensor in (a, b)]
    work = h.numel() / 3  # nanoseconds
    shared(scan, *flat, initial.reshape(-1).contiguous(), h, reverse, over=h.shape[1], work=work)
    return h.view(b.shape)


@jit
def scan(a: Array, b: Array, initial: Array, h: Array, reverse: bool, start: int, stop: int) -> None:
    """``h_t = a_t h_(t-1) + b_t``, (T, M) each, for columns start to stop; in reverse from ``h_(t+1)``."""
    steps = len(h)
    for i in range(steps):
        t = steps - 1 - i if reverse else i
        old = initial if i == 0 else h[t + 1] if reverse else h[t - 1]
        # Cut first: an index from an unknown start may be negative, and asking so would cost the vector instructions.
        _combine(a[t, start:stop], old[start:stop], b[t, start:stop], h[t, start:stop])


@jit
def _combine(a: Array, old: Array, b: Array, new: Array) -> None:
    for n in range(len(new)):
        new[n] = a[n] * old[n] + b[n]
