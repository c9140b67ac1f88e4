"""What a recurrence in machine code promises: the numbers of the cell's own steps, forwards and backwards, faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class RecurrenceArgs:
    """What a recurrence takes beside its drive; none of it is written to.

    Args:
        weight: (M N, N), the matrices of the M gates that read a state; ``None`` where none does.
        offset: (J N,), biases of the J gates that read no input (the GRU's nh); ``None`` where there are none.
        x: (T, B, N) where the input enters pointwise.
        units: the cell's own parameters, (N,) each, in their order.
        initial: the states before the first step, (B, N) each.

    >>> import torch
    >>> given = RecurrenceArgs(torch.zeros(4 * 8, 8), None, None, (), (torch.zeros(2, 8), torch.zeros(2, 8)))
    >>> [state.shape for state in given.initial]  # of an LSTM of 8 units, for 2 sequences
    [torch.Size([2, 8]), torch.Size([2, 8])]
    """

    weight: Tensor | None
    offset: Tensor | None
    x: Tensor | None
    units: Sequence[Tensor]
    initial: Sequence[Tensor]


@dataclass(frozen=True)
class Gradients:
    """Gradients of a recurrence: of its ``drive`` (T, B, K N) and of its `RecurrenceArgs`, ``None`` where these are.

    >>> import torch
    >>> found = Gradients(torch.zeros(5, 2, 32), torch.zeros(32, 8), None, None, [], [torch.zeros(2, 8)])
    >>> found.offset is None
    True
    """

    drive: Tensor
    weight: Tensor | None
    offset: Tensor | None
    x: Tensor | None
    units: list[Tensor]
    initial: list[Tensor]


class Kernel(Protocol):
    """One layer and direction of one cell over a whole sequence of T >= 1 steps, B >= 1 sequences, N units.

    Names: *results* are the cell's states after each step, in their order, then the output where that is not the
    first state, each (T, B, N) and contiguous. Gates are in the cell's order throughout.

    Works for float32 and float64, on any device; may assume contiguous arguments.
    """

    @property
    def kept_widths(self) -> tuple[int, ...]:
        """For each tensor that ``forward`` keeps, (T, B, width N), its width."""
        ...

    def forward(self, drive: Tensor, given: RecurrenceArgs, keep: bool) -> tuple[list[Tensor], list[Tensor]]:
        """Results, and what ``backward`` wants kept (nothing unless ``keep``).

        Args:
            drive: (T, B, K N), for each of the K gates that read an input what all but the recurrent product adds to
                it, biases included. It is the kernel's own: it may be written over, and kept.
        """
        ...

    def backward(
        self, given: RecurrenceArgs, results: Sequence[Tensor], kept: Sequence[Tensor], grads: Sequence[Tensor | None]
    ) -> Gradients:
        """Gradients of ``sum_k <grads_k, results_k>``; ``None`` in ``grads`` is zero.

        Args:
            given, results, grads: none of them is written to.
            kept: by ``forward``. It is the kernel's own: it may be written over, and returned.
        """
        ...
