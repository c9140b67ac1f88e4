"""The gated recurrent units: torch's, which resets what the matrix gives, and Cho's, which resets what it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.nn.kernels.contract import RecurrenceArgs, Gradients, Kernel
from isornn.nn.kernels.gru_steps import CHO_IN_TORCH, GRU_IN_TORCH, ChoSteps, GRUSteps
from isornn.nn.kernels.steps import dense, weight_gradient


def fastest_gru_steps(device: torch.device) -> GRUSteps:
    """Compiled steps on a CPU, torch's operations elsewhere."""
    if device.type != "cpu":
        return GRU_IN_TORCH
    from isornn.nn.kernels.gru_compiled import GRU_COMPILED

    return GRU_COMPILED


@dataclass(frozen=True)
class GRUKernel(Kernel):
    """The `Kernel` of torch's GRU: one product a step. Kept: the activations of r, z and n, and u_nh.

    Args:
        steps: the pointwise halves of a step, by device.
    """

    kept_widths = (3, 1)

    steps: Callable[[torch.device], GRUSteps] = fastest_gru_steps

    def forward(self, drive: Tensor, given: RecurrenceArgs, keep: bool) -> tuple[list[Tensor], list[Tensor]]:
        assert given.weight is not None
        (read,) = given.initial
        gates = drive.unflatten(-1, (3, -1))
        h, nh = (drive.new_empty(steps, *read.shape) for steps in (len(drive), len(drive) if keep else 1))
        added = torch.zeros_like(read[0]) if given.offset is None else given.offset
        product, matrix = torch.empty_like(drive[0]), given.weight.t()
        pointwise = self.steps(drive.device).forward(gates, product.unflatten(-1, (3, -1)), added, read, h, nh)
        for t, new in enumerate(h.unbind()):
            torch.mm(read, matrix, out=product)
            pointwise(t)
            read = new
        return [h], [drive, nh] if keep else []

    def backward(
        self, given: RecurrenceArgs, results: Sequence[Tensor], kept: Sequence[Tensor], grads: Sequence[Tensor | None]
    ) -> Gradients:
        assert given.weight is not None
        ((h0,), (h,), (activations, nh)) = given.initial, results, kept
        gates = activations.unflatten(-1, (3, -1))
        du, du_nh = torch.empty_like(gates), torch.empty_like(nh)
        carried = torch.zeros_like(h0)
        pointwise = self.steps(gates.device).backward(gates, nh, h0, h, *dense(grads, h0), carried, du, du_nh)
        du_rz, weight_rz, weight_nh = du[:, :, :2].flatten(2), *_first_two_and_last(given.weight)
        for t, (du_rz_t, du_nh_t) in reversed(list(enumerate(zip(du_rz.unbind(), du_nh.unbind(), strict=True)))):
            pointwise(t)
            carried.addmm_(du_rz_t, weight_rz).addmm_(du_nh_t, weight_nh)
        of_weight = torch.cat([weight_gradient(part, h0, h) for part in (du_rz, du_nh)])
        of_offset = None if given.offset is None else du_nh.sum((0, 1))
        return Gradients(du.flatten(2), of_weight, of_offset, x=None, units=[], initial=[carried])


def _first_two_and_last(weight: Tensor) -> list[Tensor]:
    """The matrices of the gates r and z in one, and that of the candidate."""
    rows = len(weight) // 3
    return list(weight.split([2 * rows, rows]))


def fastest_cho_steps(device: torch.device) -> ChoSteps:
    """Compiled steps on a CPU, torch's operations elsewhere."""
    if device.type != "cpu":
        return CHO_IN_TORCH
    from isornn.nn.kernels.gru_compiled import CHO_COMPILED

    return CHO_COMPILED


@dataclass(frozen=True)
class ChoGRUKernel(Kernel):
    """The `Kernel` of Cho's GRU: two products a step, the second of what the first has reset.

    Kept: the activations of r, z and n; ``r h`` is computed again.

    Args:
        steps: the pointwise parts of a step, by device.
    """

    kept_widths = (3,)

    steps: Callable[[torch.device], ChoSteps] = fastest_cho_steps

    def forward(self, drive: Tensor, given: RecurrenceArgs, keep: bool) -> tuple[list[Tensor], list[Tensor]]:
        assert given.weight is not None
        (h0,) = given.initial
        gates = drive.unflatten(-1, (3, -1))
        h, reset = drive.new_empty(len(drive), *h0.shape), torch.empty_like(h0)
        steps = self.steps(drive.device)
        squash, update = steps.gates(gates, h0, h, reset), steps.update(gates, h0, h)
        matrix_rz, matrix_n = (part.t() for part in _first_two_and_last(given.weight))
        u_rz, u_n = gates[:, :, :2].flatten(2), gates[:, :, 2]
        read = h0
        for t, (u_rz_t, u_n_t, new) in enumerate(zip(u_rz.unbind(), u_n.unbind(), h.unbind(), strict=True)):
            u_rz_t.addmm_(read, matrix_rz)
            squash(t)
            u_n_t.addmm_(reset, matrix_n)
            update(t)
            read = new
        return [h], [drive] if keep else []

    def backward(
        self, given: RecurrenceArgs, results: Sequence[Tensor], kept: Sequence[Tensor], grads: Sequence[Tensor | None]
    ) -> Gradients:
        assert given.weight is not None
        ((h0,), (h,), (activations,)) = given.initial, results, kept
        gates = activations.unflatten(-1, (3, -1))
        du, of_reset, carried = torch.empty_like(gates), torch.empty_like(h0), torch.zeros_like(h0)
        steps = self.steps(gates.device)
        update = steps.update_backward(gates, h0, h, *dense(grads, h0), carried, du)
        squash = steps.gates_backward(gates, h0, h, of_reset, carried, du)
        weight_rz, weight_n = _first_two_and_last(given.weight)
        du_rz, du_n = du[:, :, :2].flatten(2), du[:, :, 2]
        for t, (du_rz_t, du_n_t) in reversed(list(enumerate(zip(du_rz.unbind(), du_n.unbind(), strict=True)))):
            update(t)
            torch.mm(du_n_t, weight_n, out=of_reset)
            squash(t)
            carried.addmm_(du_rz_t, weight_rz)
        reset = torch.empty_like(h)
        torch.mul(gates[0, :, 0], h0, out=reset[0])
        torch.mul(gates[1:, :, 0], h[:-1], out=reset[1:])
        of_weight = torch.cat([weight_gradient(du_rz, h0, h), du_n.flatten(0, 1).t() @ reset.flatten(0, 1)])
        return Gradients(du.flatten(2), of_weight, offset=None, x=None, units=[], initial=[carried])
