"""minimalRNN: one gate between the state and the input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.nn.kernels.contract import Given, Gradients, Kernel
from isornn.nn.kernels.steps import Step, backwards, before, dense, forwards, in_torch, weight_gradient


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


def fastest_minimal_steps(device: torch.device) -> MinimalSteps:
    """Compiled steps on a CPU, torch's operations elsewhere."""
    if device.type != "cpu":
        return MINIMAL_IN_TORCH
    from isornn.nn.kernels.minimal_compiled import MINIMAL_COMPILED

    return MINIMAL_COMPILED


@dataclass(frozen=True)
class MinimalKernel(Kernel):
    """The `Kernel` of minimalRNN. Kept: the gate's activations.

    Args:
        steps: the pointwise halves of a step, by device.
    """

    kept_widths = (1,)

    steps: Callable[[torch.device], MinimalSteps] = fastest_minimal_steps

    def forward(
        self,
        drive: Tensor,
        given: Given,
        keep: bool,
    ) -> tuple[list[Tensor], list[Tensor]]:
        assert given.weight is not None
        assert given.x is not None
        (h0,) = given.initial
        h = torch.empty_like(drive)
        forwards(drive, given.weight, h0, h, self.steps(drive.device).forward(drive, given.x, h0, h))
        return [h], [drive] if keep else []

    def backward(
        self,
        given: Given,
        results: Sequence[Tensor],
        kept: Sequence[Tensor],
        grads: Sequence[Tensor | None],
    ) -> Gradients:
        assert given.weight is not None
        assert given.x is not None
        ((h0,), (h,), (f,)) = given.initial, results, kept
        du, dx, carried = torch.empty_like(h), torch.empty_like(h), torch.zeros_like(h0)
        pointwise = self.steps(f.device).backward(f, given.x, h0, h, *dense(grads, h0), carried, du, dx)
        backwards(du, given.weight, carried, pointwise)
        return Gradients(du, weight_gradient(du, h0, h), offset=None, x=dx, units=[], initial=[carried])
