"""The Elman network, whose state says what its own slope was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.nn.kernels.contract import RecurrenceArgs, Gradients, Kernel
from isornn.nn.kernels.steps import dense, weight_gradient


@dataclass(frozen=True)
class Transition:
    """A nonlinearity: ``apply(u)`` writes phi(u) over u, ``slope(h)`` is phi'(u) where ``h = phi(u)``."""

    apply: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


TRANSITIONS = {
    "tanh": Transition(torch.tanh_, lambda h: 1 - h * h),
    "sigmoid": Transition(torch.sigmoid_, lambda h: h * (1 - h)),
    "relu": Transition(torch.relu_, lambda h: (h > 0).to(h.dtype)),
    "identity": Transition(lambda u: u, torch.ones_like),
}


@dataclass(frozen=True)
class VanillaKernel(Kernel):
    """The `Kernel` of ``h = phi(u)``, in torch's operations: two a step, there and back. Nothing is kept.

    Args:
        transition: phi.
    """

    kept_widths = ()

    transition: Transition

    def forward(self, drive: Tensor, given: RecurrenceArgs, keep: bool) -> tuple[list[Tensor], list[Tensor]]:
        assert given.weight is not None
        (read,), matrix = given.initial, given.weight.t()
        for u in drive.unbind():
            read = self.transition.apply(u.addmm_(read, matrix))
        return [drive], []

    def backward(
        self, given: RecurrenceArgs, results: Sequence[Tensor], kept: Sequence[Tensor], grads: Sequence[Tensor | None]
    ) -> Gradients:
        assert given.weight is not None
        (h0,), (h,) = given.initial, results
        (direct,) = dense(grads, h0)
        slope = self.transition.slope(h)
        du = slope * direct
        later = du[-1]
        for du_t, slope_t in reversed(list(zip(du[:-1].unbind(), slope[:-1].unbind(), strict=True))):
            later = du_t.addcmul_(slope_t, later @ given.weight)
        return Gradients(du, weight_gradient(du, h0, h), offset=None, x=None, units=[], initial=[du[0] @ given.weight])
