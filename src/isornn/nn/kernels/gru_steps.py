"""The pointwise parts of the gated recurrent units' steps: what they promise, and by torch's operations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.nn.kernels.steps import Step, before, in_torch


@dataclass(frozen=True)
class GRUSteps:
    """The pointwise half of ``h = z h + (1-z) n``, ``n = tanh(u_nx + r u_nh)``; gates r, z, n are (T, B, 3, N).

    Args:
        forward: ``(gates, product, offset, h0, h, nh, t)`` adds the recurrent product, (B, 3, N), to r's and z's
            pre-activations, writes activations over them, u_nh and h_t.
        backward: ``(gates, nh, h0, h, dh, carried, du, du_nh, t)``: with what is carried from step t + 1 added to dh,

                du_z = dh (h_(t-1) - n) sigma'(u_z)
                du_nx = dh (1-z) tanh'(u_n)
                du_nh = du_nx r
                du_r = du_nx u_nh sigma'(u_r)

            and dh z is carried to step t - 1, to which the kernel adds what goes through the matrices.

    ``nh`` may have a single step, for all to use in turn.
    """

    forward: Step
    backward: Step


def _gru_forward(gates: Tensor, product: Tensor, offset: Tensor, h0: Tensor, h: Tensor, nh: Tensor, t: int) -> None:
    r, z, n = gates[t].unbind(1)
    u_nh = torch.add(product[:, 2], offset, out=nh[t % len(nh)])
    gates[t, :, :2].add_(product[:, :2]).sigmoid_()
    n.addcmul_(r, u_nh).tanh_()
    _mix(z, before(h0, h, t), n, h[t])


def _gru_backward(
    gates: Tensor, nh: Tensor, h0: Tensor, h: Tensor, dh: Tensor, carried: Tensor, du: Tensor, du_nh: Tensor, t: int
) -> None:
    r, z, n = gates[t].unbind(1)
    du_r, du_z, du_nx = du[t].unbind(1)
    carried.add_(dh[t % len(dh)])
    _mix_backward(z, before(h0, h, t), n, carried, du_z, du_nx)
    torch.mul(du_nx, r, out=du_nh[t])
    torch.mul(du_nx * nh[t], r * (1 - r), out=du_r)


def _mix(z: Tensor, old: Tensor, n: Tensor, h: Tensor) -> None:
    """``h = z old + (1-z) n``."""
    torch.mul(z, old, out=h).addcmul_(1 - z, n)


def _mix_backward(z: Tensor, old: Tensor, n: Tensor, dh: Tensor, du_z: Tensor, du_n: Tensor) -> None:
    """Gradients of both pre-activations; dh becomes that of ``old``."""
    torch.mul(dh * (old - n), z * (1 - z), out=du_z)
    torch.mul(dh * (1 - z), 1 - n * n, out=du_n)
    dh.mul_(z)


GRU_IN_TORCH = GRUSteps(in_torch(_gru_forward), in_torch(_gru_backward))


@dataclass(frozen=True)
class ChoSteps:
    """The pointwise parts of ``h = z h + (1-z) n``, ``n = tanh(u_n)``, where ``W_n`` reads ``r h``.

    Gates r, z, n are (T, B, 3, N). With W_n's product in between,

    Args:
        gates: ``(gates, h0, h, reset, t)`` writes the activations of r and z over theirs, and ``reset = r h_(t-1)``.
        update: ``(gates, h0, h, t)`` writes n over u_n, and h_t.
        update_backward: ``(gates, h0, h, dh, carried, du, t)``: with what is carried from step t + 1 added to dh,

                du_z = dh (h_(t-1) - n) sigma'(u_z)
                du_n = dh (1-z) tanh'(u_n)

            and dh z is carried.
        gates_backward: ``(gates, h0, h, of_reset, carried, du, t)``, where ``of_reset = W_n^T du_n``:

                du_r = of_reset h_(t-1) sigma'(u_r)

            and of_reset r is carried as well, to which the kernel adds what goes through the matrices of r and z.
    """

    gates: Step
    update: Step
    update_backward: Step
    gates_backward: Step


def _cho_gates(gates: Tensor, h0: Tensor, h: Tensor, reset: Tensor, t: int) -> None:
    gates[t, :, :2].sigmoid_()
    torch.mul(gates[t, :, 0], before(h0, h, t), out=reset)


def _cho_update(gates: Tensor, h0: Tensor, h: Tensor, t: int) -> None:
    _, z, n = gates[t].unbind(1)
    _mix(z, before(h0, h, t), n.tanh_(), h[t])


def _cho_update_backward(gates: Tensor, h0: Tensor, h: Tensor, dh: Tensor, carried: Tensor, du: Tensor, t: int) -> None:
    _, z, n = gates[t].unbind(1)
    _, du_z, du_n = du[t].unbind(1)
    carried.add_(dh[t % len(dh)])
    _mix_backward(z, before(h0, h, t), n, carried, du_z, du_n)


def _cho_gates_backward(
    gates: Tensor, h0: Tensor, h: Tensor, of_reset: Tensor, carried: Tensor, du: Tensor, t: int
) -> None:
    r, du_r = gates[t, :, 0], du[t, :, 0]
    torch.mul(of_reset * before(h0, h, t), r * (1 - r), out=du_r)
    carried.addcmul_(of_reset, r)


CHO_IN_TORCH = ChoSteps(
    in_torch(_cho_gates), in_torch(_cho_update), in_torch(_cho_update_backward), in_torch(_cho_gates_backward)
)
