"""A linear recurrence in log2 T torch operations on whole sequences, for devices on which T steps are too many."""

from __future__ import annotations

import torch
from torch import Tensor


def scan_by_doubling(a: Tensor, b: Tensor, initial: Tensor, *, reverse: bool = False) -> Tensor:
    """``h_t = a_t h_(t-1) + b_t`` for T >= 1 steps, (T, ...); in reverse from ``h_(t+1)``.

    After round k each ``(a_t, b_t)`` stands for the last ``2^k`` steps in one (Hillis & Steele 1986), so partial
    products of ``a`` are formed: where these leave the dtype's range, so does the result, though the step by step
    one may not.

    >>> scan_by_doubling(torch.full((4,), 2.0), torch.ones(4), torch.tensor(0.0))
    tensor([ 1.,  3.,  7., 15.])
    """
    if reverse:
        return scan_by_doubling(a.flip(0), b.flip(0), initial).flip(0)
    h = torch.cat([torch.addcmul(b[:1], a[:1], initial), b[1:]])
    span = 1
    while span < len(h):
        h = torch.cat([h[:span], torch.addcmul(h[span:], a[span:], h[:-span])])
        a = torch.cat([a[:span], a[span:] * a[:-span]])
        span *= 2
    return h
