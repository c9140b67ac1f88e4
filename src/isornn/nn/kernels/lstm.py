"""The gated memory: the LSTMs, whose matrices read the output, and the papers' peephole cell, whose read the memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.nn.kernels.contract import RecurrenceArgs, Gradients, Kernel
from isornn.nn.kernels.lstm_steps import GERS_IN_TORCH, MEMORY_IN_TORCH, MemorySteps
from isornn.nn.kernels.steps import backwards, dense, forwards, weight_gradient


def fastest_memory_steps(device: torch.device) -> MemorySteps:
    """Compiled steps on a CPU, torch's operations elsewhere."""
    if device.type != "cpu":
        return MEMORY_IN_TORCH
    from isornn.nn.kernels.lstm_compiled import MEMORY_COMPILED

    return MEMORY_COMPILED


def fastest_gers_steps(device: torch.device) -> MemorySteps:
    """As `fastest_memory_steps`."""
    if device.type != "cpu":
        return GERS_IN_TORCH
    from isornn.nn.kernels.lstm_compiled import GERS_COMPILED

    return GERS_COMPILED


@dataclass(frozen=True)
class MemoryKernel(Kernel):
    """The `Kernel` of a gated memory whose matrices all read its first result.

    Kept: the gates' activations. tanh(c) is computed again, a fifth of a step's functions for a fifth of the memory.

    Args:
        memory: where c is among the two results, the other being y; which of them is read is all that tells the
            LSTMs, 1, from the peephole cell, 0.
        steps: the pointwise halves of a step, by device.
    """

    kept_widths = (4,)

    memory: int
    steps: Callable[[torch.device], MemorySteps] = fastest_memory_steps

    def forward(self, drive: Tensor, given: RecurrenceArgs, keep: bool) -> tuple[list[Tensor], list[Tensor]]:
        assert given.weight is not None
        results = [drive.new_empty(len(drive), *given.initial[0].shape) for _ in range(2)]
        c, y = results[self.memory], results[1 - self.memory]
        gates = drive.unflatten(-1, (4, -1))
        pointwise = self.steps(drive.device).forward(gates, given.initial[self.memory], c, y, *given.units)
        forwards(drive, given.weight, given.initial[0], results[0], pointwise)
        return results, [drive] if keep else []

    def backward(
        self, given: RecurrenceArgs, results: Sequence[Tensor], kept: Sequence[Tensor], grads: Sequence[Tensor | None]
    ) -> Gradients:
        assert given.weight is not None
        c, y = self.memory, 1 - self.memory
        gates = kept[0].unflatten(-1, (4, -1))
        du = torch.empty_like(gates)
        of_results, carried = dense(grads, given.initial[0]), [torch.zeros_like(given.initial[0]) for _ in results]
        of_units = [torch.zeros_like(given.initial[0]) for _ in given.units]
        pointwise = self.steps(gates.device).backward(
            *(gates, given.initial[c], results[c], of_results[c], of_results[y], carried[c], carried[y], du),
            *(*given.units, *of_units),
        )
        of_drive = du.flatten(2)
        backwards(of_drive, given.weight, carried[0], pointwise)
        of_weight = weight_gradient(of_drive, given.initial[0], results[0])
        summed, of_initial = [value.sum(0) for value in of_units], carried[: len(given.initial)]
        return Gradients(of_drive, of_weight, offset=None, x=None, units=summed, initial=of_initial)
