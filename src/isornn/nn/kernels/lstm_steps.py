"""The pointwise half of a gated memory's step: what it promises, and by torch's operations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.nn.kernels.steps import Step, before, in_torch


@dataclass(frozen=True)
class MemorySteps:
    """The pointwise half of ``c = f c + i g``, ``y = o tanh(c)``; gates are (T, B, 4, N), states (T, B, N).

    Args:
        forward: ``(gates, c0, c, y, *units, t)`` writes c_t, y_t and, over the pre-activations in ``gates``,
            activations.
        backward: ``(gates, c0, c, dc, dy, carried_c, carried_y, du, *units, *of_units, t)``, where dc and dy are the
            gradients of the results, and what comes to both from step t + 1 is carried. With it added to them,

                du_o = dy tanh(c) sigma'(u_o)
                dc += dy o tanh'(c)
                du_i, du_f, du_g = dc g sigma'(u_i), dc c_(t-1) sigma'(u_f), dc i tanh'(u_g)

            and carried to step t - 1 are dc f and 0, to which the kernel adds what goes through the matrices.

    The units of Gers' cell are peepholes, which add p_i c_(t-1), p_f c_(t-1) and p_o c_t to the pre-activations. Back
    through one, ``dc += p du`` for the c that it shows, and ``dp += du c``: that is ``of_units``, (B, N) each.
    """

    forward: Step
    backward: Step


def _forward(gates: Tensor, c0: Tensor, c: Tensor, y: Tensor, t: int) -> None:
    i, f, g, o = gates[t].unbind(1)
    _remember(i, f, g, before(c0, c, t), c[t])
    _show(o, c[t], y[t])


def _gers_forward(
    gates: Tensor, c0: Tensor, c: Tensor, y: Tensor, peep_i: Tensor, peep_f: Tensor, peep_o: Tensor, t: int
) -> None:
    i, f, g, o = gates[t].unbind(1)
    old = before(c0, c, t)
    _remember(i.addcmul_(peep_i, old), f.addcmul_(peep_f, old), g, old, c[t])
    _show(o.addcmul_(peep_o, c[t]), c[t], y[t])


def _remember(i: Tensor, f: Tensor, g: Tensor, old: Tensor, c: Tensor) -> None:
    torch.mul(f.sigmoid_(), old, out=c).addcmul_(i.sigmoid_(), g.tanh_())


def _show(o: Tensor, c: Tensor, y: Tensor) -> None:
    torch.tanh(c, out=y).mul_(o.sigmoid_())


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
    _show_backward(o, c[t], dc[t % len(dc)], dy[t % len(dy)], carried_c, carried_y, du_o)
    _remember_backward(i, f, g, before(c0, c, t), carried_c, du_i, du_f, du_g)


def _gers_backward(
    gates: Tensor,
    c0: Tensor,
    c: Tensor,
    dc: Tensor,
    dy: Tensor,
    carried_c: Tensor,
    carried_y: Tensor,
    du: Tensor,
    peep_i: Tensor,
    peep_f: Tensor,
    peep_o: Tensor,
    of_peep_i: Tensor,
    of_peep_f: Tensor,
    of_peep_o: Tensor,
    t: int,
) -> None:
    i, f, g, o = gates[t].unbind(1)
    du_i, du_f, du_g, du_o = du[t].unbind(1)
    old = before(c0, c, t)
    _show_backward(o, c[t], dc[t % len(dc)], dy[t % len(dy)], carried_c, carried_y, du_o)
    _peep_backward(peep_o, c[t], du_o, carried_c, of_peep_o)
    _remember_backward(i, f, g, old, carried_c, du_i, du_f, du_g)
    _peep_backward(peep_i, old, du_i, carried_c, of_peep_i)
    _peep_backward(peep_f, old, du_f, carried_c, of_peep_f)


def _show_backward(
    o: Tensor, c: Tensor, direct_c: Tensor, direct_y: Tensor, of_c: Tensor, of_y: Tensor, du_o: Tensor
) -> None:
    """With the direct gradients added, that of y goes into those of c and u_o, and is 0 after."""
    tanh_c = torch.tanh(c)
    of_y.add_(direct_y)
    of_c.add_(direct_c).addcmul_(of_y * o, 1 - tanh_c * tanh_c)
    torch.mul(of_y * tanh_c, o * (1 - o), out=du_o)
    of_y.zero_()


def _remember_backward(
    i: Tensor, f: Tensor, g: Tensor, old: Tensor, of_c: Tensor, du_i: Tensor, du_f: Tensor, du_g: Tensor
) -> None:
    """Gradients of three pre-activations; that of c becomes that of ``old``."""
    torch.mul(of_c * g, i * (1 - i), out=du_i)
    torch.mul(of_c * old, f * (1 - f), out=du_f)
    torch.mul(of_c * i, 1 - g * g, out=du_g)
    of_c.mul_(f)


def _peep_backward(peep: Tensor, c: Tensor, du: Tensor, of_c: Tensor, of_peep: Tensor) -> None:
    of_c.addcmul_(peep, du)
    of_peep.addcmul_(du, c)


MEMORY_IN_TORCH = MemorySteps(in_torch(_forward), in_torch(_backward))
GERS_IN_TORCH = MemorySteps(in_torch(_gers_forward), in_torch(_gers_backward))
