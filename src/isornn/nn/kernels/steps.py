"""What the kernels' loops over time share: how a step's pointwise half is given, and sums over all steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

# The pointwise half of step t on arrays that it already knows, so that a step costs no more than it computes.
BoundStep = Callable[[int], None]
Step = Callable[..., BoundStep]


def in_torch(function: Callable[..., None]) -> Step:
    """``function(*tensors, t)``, bound to tensors first, ``step(*tensors)(t)``, as `arithmetic.compiled` steps are."""

    def bind(*tensors: Tensor) -> BoundStep:
        return partial(function, *tensors)

    return bind


def before(initial: Any, states: Any, t: int) -> Any:
    """The state before step ``t``; compiled as well."""
    return initial if t == 0 else states[t - 1]


def forwards(drive: Tensor, weight: Tensor, initial: Tensor, read: Tensor, pointwise: BoundStep) -> None:
    """At every step the recurrent product, added to the drive's, and the pointwise half.

    Args:
        drive: (T, B, M N), where all M gates have a matrix and add its product to what is driven.
        weight: (M N, N).
        initial: what the matrices read at the first step, (B, N).
        read: what they read at the next, which the pointwise half writes, (T, B, N).
    """
    matrix, old = weight.t(), initial
    for t, (u, new) in enumerate(zip(drive.unbind(), read.unbind(), strict=True)):
        u.addmm_(old, matrix)
        pointwise(t)
        old = new


def backwards(du: Tensor, weight: Tensor, carried: Tensor, pointwise: BoundStep) -> None:
    """Back through `forwards`: the pointwise half writes du_t, whose way through the matrices is carried on."""
    for t, du_t in reversed(list(enumerate(du.unbind()))):
        pointwise(t)
        carried.addmm_(du_t, weight)


def dense(grads: Sequence[Tensor | None], state: Tensor) -> list[Tensor]:
    """Gradients of results, contiguous; for an absent one zeros of one step, which all steps find at ``t % length``."""
    zeros = state.new_zeros(1, *state.shape)
    return [zeros if grad is None else grad.contiguous() for grad in grads]


def outer_products(du: Tensor, read: Tensor) -> Tensor:
    """``sum_tb du_tb read_tb^T``, (M, P), for (T, B, M) and (T, B, P)."""
    # The wider one second: with few columns there MKL takes up to ten times as long.
    return (read.flatten(0, 1).t() @ du.flatten(0, 1)).t().contiguous()


def weight_gradient(du: Tensor, initial: Tensor, read: Tensor) -> Tensor:
    """``sum_t du_t^T s_(t-1)``, in two products: one would need a copy of the states, moved by a step.

    Args:
        du: gradients of pre-activations, (T, B, M N).
        initial: the state before the first step, (B, N).
        read: the states after each step, (T, B, N).
    """
    first = initial.t() @ du[0]
    return first.addmm_(read[:-1].flatten(0, 1).t(), du[1:].flatten(0, 1)).t().contiguous()
