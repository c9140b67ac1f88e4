"""The pointwise half of minimalRNN's step: what it promises, and by torch's operations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.nn.kernels.steps import Step, before, in_torch


@dataclass(frozen=True)
class MinimalSteps:
    """The pointwise half of ``h = f h + (1-f) x``, all (T, B, N).

    Args:
        forward: ``(f, x, h0, h, t)`` writes h_t and, over the pre-activation in ``f``, the activation.
        backward: ``(f, x, h0, h, dh, carried, du, dx, t)``: with what is carried from step t + 1 added to dh,

                du = dh (h_(t-1) - x) sigma'(u)
                dx = dh (1-f)

            and dh f is carried to step t - 1, to which the kernel adds what goes through the matrix.
    """

    forward: Step
    backward: Step


def _forward(f: Tensor, x: Tensor, h0: Tensor, h: Tensor, t: int) -> None:
    torch.mul(f[t].sigmoid_(), before(h0, h, t), out=h[t]).addcmul_(1 - f[t], x[t])


def _backward(
    f: Tensor, x: Tensor, h0: Tensor, h: Tensor, dh: Tensor, carried: Tensor, du: Tensor, dx: Tensor, t: int
) -> None:
    carried.add_(dh[t % len(dh)])
    torch.mul(carried, 1 - f[t], out=dx[t])
    torch.mul(dx[t] * f[t], before(h0, h, t) - x[t], out=du[t])
    carried.mul_(f[t])


MINIMAL_IN_TORCH = MinimalSteps(in_torch(_forward), in_torch(_backward))
