"""Batches of sequences in the forms that torch has: padded, packed, of given lengths, or a single one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.jit._trace import is_tracing
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence


@dataclass(frozen=True)
class Sequences:
    """Sequences as time, batch, feature, zero behind their ends, and what the caller gave.

    Args:
        values: (T, B, D).
        lengths: (B,) where sequences differ in length.
        batched, batch_first: the form of the tensor that the caller gave.
        packed: what the caller gave, if it was packed.
    """

    values: Tensor
    lengths: Tensor | None
    batched: bool = True
    batch_first: bool = False
    packed: PackedSequence | None = None

    @staticmethod
    def of(
        x: Tensor | PackedSequence, lengths: Tensor | Sequence[int] | None, batch_first: bool, features: int
    ) -> Sequences:
        """Read what a layer with ``features`` inputs was called with.

        Raises:
            ValueError: a shape, or lengths, that do not fit.
        """
        check_dense("input", x.data if isinstance(x, PackedSequence) else x)
        if isinstance(x, PackedSequence):
            if lengths is not None:
                raise ValueError("lengths: not with a PackedSequence, which has its own")
            _check_shape(x.data, (2,), features, "(all steps of all sequences, {})")
            values, own = pad_packed_sequence(x)
            return Sequences(values, own.to(values.device), packed=x)
        if not isinstance(x, Tensor):
            raise ValueError(f"input: {type(x).__name__} is not allowed; it must be a tensor or a PackedSequence")
        _check_shape(x, (2, 3), features, "(batch, steps, {})" if batch_first else "(steps, batch, {})")
        batched = x.dim() == 3
        values = x.unsqueeze(1) if not batched else x.transpose(0, 1) if batch_first else x
        if not is_tracing() and values.shape[0] == 0:
            raise ValueError(f"input: shape {tuple(x.shape)} is not allowed; it must have at least one step")
        known = None if lengths is None else _checked_lengths(lengths, values)
        if known is not None:
            # Padding, NaN included, must not affect outputs or gradients.
            values = values.masked_fill((~within(known, values.shape[0])).unsqueeze(-1), 0.0)
        return Sequences(values, known, batched, batch_first)

    def reversed(self, values: Tensor) -> Tensor:
        """``values`` (T, B, .) from each sequence's last step to its first; padding stays behind."""
        if self.lengths is None:
            return values.flip(0)
        steps = torch.arange(values.shape[0], device=values.device).unsqueeze(1)
        order = torch.where(steps < self.lengths, self.lengths - 1 - steps, steps)
        return values.gather(0, order.unsqueeze(-1).expand(values.shape))

    def ended(self, values: Tensor) -> Tensor:
        """``values`` (T, B, N) with zeros behind each sequence's end."""
        if self.lengths is None:
            return values
        return values.masked_fill((~within(self.lengths, values.shape[0])).unsqueeze(-1), 0.0)

    def given_back(self, values: Tensor) -> Tensor | PackedSequence:
        """``values`` (T, B, N) in the form in which the caller gave its input."""
        if self.packed is not None:
            return _packed_like(self.packed, values)
        if not self.batched:
            return values.squeeze(1)
        return values.transpose(0, 1) if self.batch_first else values

    def with_values(self, values: Tensor) -> Sequences:
        """The same sequences with other features, as a deeper layer reads them."""
        return replace(self, values=values)


def check_dense(name: str, value: object) -> None:
    """Refuse sparse and nested tensors, which recurrences are not for.

    Raises:
        ValueError: names the argument and its layout.
    """
    if isinstance(value, Tensor) and (value.is_nested or value.layout != torch.strided):
        layout = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        raise ValueError(f"{name}: a {layout} tensor is not allowed; it must be dense (see PackedSequence and lengths)")


def last_states(values: Tensor, initial: Tensor, lengths: Tensor | None) -> Tensor:
    """(B, N): each sequence's last of ``values`` (T, B, N), or ``initial`` (B, N) where it has no step."""
    if lengths is None:
        return values[-1].clone()  # a view would keep all of ``values`` alive
    index = (lengths.clamp(max=values.shape[0]) - 1).clamp(min=0).reshape(1, -1, 1).expand(1, *values.shape[1:])
    return torch.where((lengths > 0).unsqueeze(-1), values.gather(0, index).squeeze(0), initial)


def _check_shape(x: Tensor, dims: tuple[int, ...], features: int, form: str) -> None:
    if x.dim() not in dims or (not is_tracing() and x.shape[-1] != features):
        raise ValueError(f"input: shape {tuple(x.shape)} is not allowed; it must be {form.format(features)}")


def _checked_lengths(lengths: Tensor | Sequence[int], values: Tensor) -> Tensor:
    if is_tracing() and isinstance(lengths, Tensor):  # a trace has no values to look at
        return lengths
    check_dense("lengths", lengths)
    try:
        known = torch.as_tensor(lengths, device=values.device)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"lengths: {lengths!r} is not allowed; whole numbers, one for each of the {values.shape[1]} sequences"
        ) from None
    known = known.long() if known.numel() == 0 else known  # an empty list says no type
    whole = not (known.dtype.is_floating_point or known.dtype.is_complex or known.dtype == torch.bool)
    if not whole or known.shape != values.shape[1:2]:
        raise ValueError(
            f"lengths: shape {tuple(known.shape)} of {known.dtype} is not allowed; whole numbers, one for each of the "
            f"{values.shape[1]} sequences"
        )
    known = known.long()
    if (
        not torch.compiler.is_compiling()
        and not known.is_meta
        and bool(((known < 0) | (known > values.shape[0])).any())
    ):
        raise ValueError(
            f"lengths: {int(known.min())} to {int(known.max())} is not allowed; each must be from 0 to the "
            f"{values.shape[0]} steps of input"
        )
    return known


def within(lengths: Tensor, steps: int) -> Tensor:
    """(T, B): whether a step is within the sequence.

    >>> within(torch.tensor([3, 1]), 3).tolist()
    [[True, True], [True, False], [True, False]]
    """
    return torch.arange(steps, device=lengths.device).unsqueeze(1) < lengths


def _packed_like(packed: PackedSequence, values: Tensor) -> PackedSequence:
    if packed.sorted_indices is not None:
        values = values.index_select(1, packed.sorted_indices)
    sizes = packed.batch_sizes.to(values.device)
    inside = torch.arange(values.shape[1], device=values.device) < sizes.unsqueeze(1)
    return PackedSequence(values[inside], packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
