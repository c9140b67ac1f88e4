"""The linear recurrence on devices where T launches one after another are too many."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from isornn.nn.kernels.doubling import scan_by_doubling

_INSTALLED = importlib.util.find_spec("triton") is not None


def scan_on_device(a: Tensor, b: Tensor, initial: Tensor, *, reverse: bool = False) -> Tensor:
    """``h_t = a_t h_(t-1) + b_t`` for T >= 1 steps, (T, ...): by Triton's kernel where it runs, else by doubling."""
    if not runs_triton(b.device):
        return scan_by_doubling(a, b, initial, reverse=reverse)
    from isornn.nn.kernels import scan_triton

    return scan_triton.scan(a, b, initial, reverse)


def runs_triton(device: torch.device) -> bool:
    """Whether it is a CUDA device that Triton supports, and Triton is installed."""
    return device.type == "cuda" and _INSTALLED and torch.cuda.get_device_capability(device) >= (8, 0)


if _INSTALLED:
    # The compiler need not look into it. This loads torch._dynamo, two seconds that nobody pays without Triton.
    runs_triton = torch.compiler.assume_constant_result(runs_triton)
