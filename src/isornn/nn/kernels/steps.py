"""What recurrences share: gradients that are absent, sums over all steps."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def dense(grads: Sequence[Tensor | None], state: Tensor) -> list[Tensor]:
    """Gradients of results, contiguous; of one step, which all find at ``t % length``, where it is the same at each."""
    zeros = state.new_zeros(1, *state.shape)
    return [(grad if grad.stride(0) else grad[:1]).contiguous() for grad in (zeros if g is None else g for g in grads)]


def outer_products(du: Tensor, read: Tensor) -> Tensor:
    """``sum_tb du_tb read_tb^T``, (M, P), for (T, B, M) and (T, B, P)."""
    du, read = du.flatten(0, 1), read.flatten(0, 1)
    return (read.t() @ du).t().contiguous() if _wider_second(du, read) else du.t() @ read


def weight_gradient(du: Tensor, initial: Tensor, read: Tensor) -> Tensor:
    """``sum_t du_t^T s_(t-1)``, in two products: one would need a copy of the states, moved by a step.

    Args:
        du: gradients of pre-activations, (T, B, M N).
        initial: the state before the first step, (B, N).
        read: the states after each step, (T, B, N).
    """
    later, before = du[1:].flatten(0, 1), read[:-1].flatten(0, 1)
    if _wider_second(later, before):
        return (initial.t() @ du[0]).addmm_(before.t(), later).t().contiguous()
    return (du[0].t() @ initial).addmm_(later.t(), before)


def _wider_second(du: Tensor, read: Tensor) -> bool:
    """How to multiply: with few columns second MKL takes up to ten times as long; over few rows turning costs more."""
    return len(du) >= read.shape[1]
