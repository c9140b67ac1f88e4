"""Where in memory a tensor is that a module was given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

_RESHAPES = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0")
_KEEP_ORDER = (*_RESHAPES, "CloneBackward0", "UnsqueezeBackward0", "SqueezeBackward0", "SqueezeBackward1")


@dataclass(frozen=True)
class Origin:
    """Where in memory an input was: views of one tensor have one storage.

    Args:
        storage: an identifier of the storage.
        offset, shape, strides: as torch has them, in numbers.
        whole: shape of the tensor that it is a view of; its own where it is none, or one of a nested tensor.
        contiguous: whether both are, in the order of their axes.
        reshaped_from: shapes that it had before each reshape of its graph, the last reshape first, as far back as its
            numbers are in the same order; empty without a graph.
    """

    storage: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    whole: tuple[int, ...]
    contiguous: bool
    reshaped_from: tuple[tuple[int, ...], ...] = ()

    @staticmethod
    def of(inputs: Tensor | PackedSequence) -> Origin | None:
        """``None`` of packed sequences, nested tensors and tensors without strides."""
        if isinstance(inputs, PackedSequence) or inputs.is_nested or inputs.layout != torch.strided:
            return None
        base = inputs if inputs._base is None or inputs._base.is_nested else inputs._base
        return Origin(
            storage=int(inputs.untyped_storage()._cdata),
            offset=int(inputs.storage_offset()),
            shape=tuple(inputs.shape),
            strides=inputs.stride(),
            whole=tuple(base.shape),
            contiguous=base.is_contiguous() and inputs.is_contiguous(),
            reshaped_from=tuple(_shapes_before(inputs)),
        )

    def follows(self, before: Origin, time: int) -> bool:
        """Whether it begins where ``before`` ends along the axis ``time`` of a tensor with as many axes.

        Not where both have all of that axis: rows of a batch, whole sequences, lie one behind the other in memory too.
        """
        if (self.storage, self.strides, self.whole) != (before.storage, before.strides, before.whole):
            return False
        if len(self.whole) != len(self.shape) or self.shape[time] == before.shape[time] == self.whole[time]:
            return False
        same = all(a == b for axis, (a, b) in enumerate(zip(self.shape, before.shape, strict=True)) if axis != time)
        return same and self.offset == before.offset + before.shape[time] * self.strides[time]


def _shapes_before(tensor: Tensor) -> Iterator[tuple[int, ...]]:
    """`Origin.reshaped_from`. The base of a view may be older than the tensor that the model reshaped: a `Linear` with
    a bias returns a view of rows (B T, N)."""
    node = tensor.grad_fn
    while node is not None and node.name() in _KEEP_ORDER:
        if node.name() in _RESHAPES:
            yield tuple(map(int, getattr(node, "_saved_self_sym_sizes", ())))
        node = node.next_functions[0][0]
