"""One call of a recurrent module: what it was given, what it returned, and the gradients of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from isornn.capture.origin import Origin

States = tuple[Tensor, ...]


@dataclass
class Given:
    """What a recurrent module is called with.

    Args:
        inputs: a copy of its input.
        state, lengths, previous: its further arguments; ``None`` where not given.
        origin, state_origin: where its input was in memory; the first part of its state.
        tracked: whether the call is made with gradients enabled.
        recomputed: whether it is made without, by `torch.utils.checkpoint`, which makes it again with them.
        detached: whether it is, and given a state without a gradient.
        altered: whether its state is that in which the call before ended, and has another gradient: see
            `isornn.capture.graph.changes_gradient`.
        made: when the graph node of its state was made, as `graph_time`; ``None`` without one.
    """

    inputs: Tensor | PackedSequence
    state: States | None
    lengths: Tensor | Sequence[int] | None
    previous: Tensor | None
    origin: Origin | None
    state_origin: Origin | None
    tracked: bool
    recomputed: bool
    detached: bool
    altered: bool
    made: int | None


@dataclass
class Call(Given):
    """One call of a recurrent module.

    Args:
        output, final: what it returned, before anything else could write to it.
        precision: what its products are computed in.
        of_output, of_final: gradients of the loss, total derivatives. Without a loss, of a random sum of the model's
            outputs where use is looked at, else ``None``.
    """

    output: Tensor | PackedSequence
    final: States
    precision: torch.dtype
    of_output: Tensor | PackedSequence | None = None
    of_final: States | None = None


def is_result(module: nn.Module, result: Any) -> bool:
    """Whether it is what a module of its class returns: an output and a state, of a cell the state alone."""
    if isinstance(module, nn.RNNCellBase):
        return _is_state(result)
    return (
        isinstance(result, tuple | list)
        and len(result) == 2
        and isinstance(result[0], Tensor | PackedSequence)
        and _is_state(result[1])
    )


def _is_state(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, tuple) and all(isinstance(part, Tensor) for part in value))


def dense(grad: Tensor | None, like: Tensor) -> Tensor:
    """A gradient, 0 where autograd has none."""
    return torch.zeros_like(like) if grad is None else grad.detach()


def as_tuple(state: Any) -> States:
    """A state of one tensor or of several."""
    return (state,) if isinstance(state, Tensor) else tuple(state)


def data_of(value: Any) -> Tensor:
    """The tensor itself, or that of a PackedSequence."""
    return value.data if isinstance(value, PackedSequence) else value


def with_data(value: Any, data: Tensor) -> Any:
    """``data`` in the form of ``value``."""
    return value._replace(data=data) if isinstance(value, PackedSequence) else data
