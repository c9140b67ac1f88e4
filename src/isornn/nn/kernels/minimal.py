"""minimalRNN: one gate between the state and the input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.nn.kernels.contract import RecurrenceArgs, Gradients, Kernel
from isornn.nn.kernels.minimal_steps import MINIMAL_IN_TORCH, MinimalSteps
from isornn.nn.kernels.steps import backwards, dense, forwards, weight_gradient


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

    def forward(self, drive: Tensor, given: RecurrenceArgs, keep: bool) -> tuple[list[Tensor], list[Tensor]]:
        assert given.weight is not None
        assert given.x is not None
        (h0,) = given.initial
        h = torch.empty_like(drive)
        forwards(drive, given.weight, h0, h, self.steps(drive.device).forward(drive, given.x, h0, h))
        return [h], [drive] if keep else []

    def backward(
        self, given: RecurrenceArgs, results: Sequence[Tensor], kept: Sequence[Tensor], grads: Sequence[Tensor | None]
    ) -> Gradients:
        assert given.weight is not None
        assert given.x is not None
        ((h0,), (h,), (f,)) = given.initial, results, kept
        du, dx, carried = torch.empty_like(h), torch.empty_like(h), torch.zeros_like(h0)
        pointwise = self.steps(f.device).backward(f, given.x, h0, h, *dense(grads, h0), carried, du, dx)
        backwards(du, given.weight, carried, pointwise)
        return Gradients(du, weight_gradient(du, h0, h), offset=None, x=dx, units=[], initial=[carried])
