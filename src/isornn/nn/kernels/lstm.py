"""The gated memory: the LSTM, whose matrices read its output, and the papers' peephole cell, whose read the memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.nn.kernels.contract import Gradients, Kernel
from isornn.nn.kernels.steps import Step, before, dense, in_torch, weight_gradient


@dataclass(frozen=True)
class MemorySteps:
    """The pointwise half of ``c = f c + i g``, ``y = o tanh(c)``; gates are (T, B, 4, N), states (T, B, N).

    Args:
        forward: ``(gates, c0, c, y, t)`` writes c_t, y_t and, over the pre-activations in ``gates``, activations.
        backward: ``(gates, c0, c, dc, dy, carried_c, carried_y, du, t)``, where dc and dy are the gradients of the
            results, and what comes to both from step t + 1 is carried. With it added to them,

                dc += dy o tanh'(c)
                du_i, du_f = dc g sigma'(u_i), dc c_(t-1) sigma'(u_f)
                du_g, du_o = dc i tanh'(u_g), dy tanh(c) sigma'(u_o)

            and carried to step t - 1 are dc f and 0, to which the kernel adds what goes through the matrices.
    """

    forward: Step
    backward: Step


def _forward(gates: Tensor, c0: Tensor, c: Tensor, y: Tensor, t: int) -> None:
    i, f, g, o = gates[t].unbind(1)
    for gate in (i, f, o):
        gate.sigmoid_()
    torch.mul(f, before(c0, c, t), out=c[t]).addcmul_(i, g.tanh_())
    torch.tanh(c[t], out=y[t]).mul_(o)


def _backward(
    gates: Tensor,
    c0: Tensor,
    c: Tensor,
    dc: Tensor,
    dy: Tensor,
    carried_c: Tensor,
    carried_y: Tensor,
    du: Tensor,
    t: int,
) -> None:
    i, f, g, o = gates[t].unbind(1)
    du_i, du_f, du_g, du_o = du[t].unbind(1)
    tanh_c = torch.tanh(c[t])
    of_y = dy[t % len(dy)] + carried_y
    of_c = dc[t % len(dc)] + carried_c + of_y * o * (1 - tanh_c * tanh_c)
    torch.mul(of_c * g, i * (1 - i), out=du_i)
    torch.mul(of_c * before(c0, c, t), f * (1 - f), out=du_f)
    torch.mul(of_c * i, 1 - g * g, out=du_g)
    torch.mul(of_y * tanh_c, o * (1 - o), out=du_o)
    torch.mul(of_c, f, out=carried_c)
    carried_y.zero_()


IN_TORCH = MemorySteps(in_torch(_forward), in_torch(_backward))


def fastest_memory_steps(device: torch.device) -> MemorySteps:
    """Compiled steps on a CPU, torch's operations elsewhere."""
    if device.type != "cpu":
        return IN_TORCH
    from isornn.nn.kernels.lstm_compiled import COMPILED

    return COMPILED


@dataclass(frozen=True)
class MemoryKernel(Kernel):
    """The `Kernel` of a gated memory whose matrices all read its first result.

    Kept: the gates' activations. tanh(c) is computed again, a fifth of a step's functions for a fifth of the memory.

    Args:
        memory: where c is among the two results, the other being y; which of them is read is all that tells the
            LSTM, 1, from the peephole cell, 0.
        steps: the pointwise halves of a step, by device.
    """

    kept_widths = (4,)

    memory: int
    steps: Callable[[torch.device], MemorySteps] = fastest_memory_steps

    def forward(
        self,
        drive: Tensor,
        weight: Tensor | None,
        offset: Tensor | None,
        x: Tensor | None,
        initial: Sequence[Tensor],
        keep: bool,
    ) -> tuple[list[Tensor], list[Tensor]]:
        assert weight is not None
        results = [drive.new_empty(len(drive), *initial[0].shape) for _ in range(2)]
        c, y = results[self.memory], results[1 - self.memory]
        gates = drive.unflatten(-1, (4, -1))
        pointwise = self.steps(drive.device).forward(gates, initial[self.memory], c, y)
        read, matrix = initial[0], weight.t()
        for t, (u, new) in enumerate(zip(drive.unbind(), results[0].unbind(), strict=True)):
            u.addmm_(read, matrix)
            pointwise(t)
            read = new
        return results, [drive] if keep else []

    def backward(
        self,
        weight: Tensor | None,
        offset: Tensor | None,
        x: Tensor | None,
        initial: Sequence[Tensor],
        results: Sequence[Tensor],
        kept: Sequence[Tensor],
        grads: Sequence[Tensor | None],
    ) -> Gradients:
        assert weight is not None
        c, y = self.memory, 1 - self.memory
        gates = kept[0].unflatten(-1, (4, -1))
        du = torch.empty_like(gates)
        of_results, carried = dense(grads, initial[0]), [torch.zeros_like(initial[0]) for _ in results]
        pointwise = self.steps(gates.device).backward(
            gates, initial[c], results[c], of_results[c], of_results[y], carried[c], carried[y], du
        )
        of_drive = du.flatten(2)
        for t, du_t in reversed(list(enumerate(of_drive.unbind()))):
            pointwise(t)
            carried[0].addmm_(du_t, weight)
        of_weight = weight_gradient(of_drive, initial[0], results[0])
        return Gradients(of_drive, of_weight, offset=None, x=None, initial=carried[: len(initial)])
