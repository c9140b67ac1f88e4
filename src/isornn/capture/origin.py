"""Where in memory a tensor is that a module was given."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


@dataclass(frozen=True)
class Origin:
    """Where in memory an input was: views of one tensor have one storage.

    Args:
        storage: an identifier of the storage.
        offset, shape, strides: as torch has them, in numbers.
        whole: shape of the tensor that it is a view of; its own where it is none, or one of a nested tensor.
        contiguous: whether both are, in the order of their axes.
    """

    storage: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    whole: tuple[int, ...]
    contiguous: bool

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
