"""Whether a model takes the axes of what its recurrent modules read and return for what they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, dropwhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from isornn.capture.batches import tensors_in
from isornn.capture.calls import Call
from isornn.capture.origin import Origin

_AXES = 3  # of a batch of sequences, and of the states of layers


def steps_are_rows(module: nn.Module, calls: Sequence[Call], output: Any) -> bool:
    """Whether row k of the model's output depends on step k of the module's alone, and there on one row alone, its
    batch's last.

    So it is where a batch (B, T, D) is given to a module that takes (T, B, D), or the other way round, and what should
    be its last step is read: every row is then computed from the rows before it. A mean over that axis may be one over
    steps, or over the series of a panel at each step, which is no fault. False without gradients.
    """
    if len(calls) != 1 or isinstance(calls[0].output, PackedSequence):
        return False
    result, rows = calls[0].output, _rows_of(output)
    if rows is None or result.dim() != _AXES:
        return False
    batch_first = bool(getattr(module, "batch_first", False))
    steps, batch = result.shape[1::-1] if batch_first else result.shape[:2]
    if min(steps, batch) < 2 or rows.shape[0] != steps or batch in rows.shape:
        return False
    for k in (0, steps - 1):
        (found,) = _gradients_of_row(rows, k, [result])
        place = [batch - 1, k] if batch_first else [k, batch - 1]
        if found is None or found.any(-1).nonzero().tolist() != [place]:
            return False
    return True


def _rows_of(output: Any) -> Tensor | None:
    """The first tensor of a model's output that has a gradient and a first axis."""
    return next((one for one in tensors_in(output) if one.requires_grad and one.dim()), None)


def _gradients_of_row(rows: Tensor, row: int, results: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """Gradients of the sum over one row of the model's output; ``None`` where none leads."""
    try:
        return torch.autograd.grad(rows[row].double().sum(), list(results), retain_graph=True, allow_unused=True)
    except RuntimeError:  # what the graph has saved was changed in place
        return [None] * len(results)


@dataclass(frozen=True)
class Reshaped:
    """A tensor whose axes were to be exchanged, by `transpose` or `permute`, and which was reshaped (`view`, `reshape`,
    `flatten`): its numbers stay in their order in memory, so that those of several rows become one row.

    Args:
        what: ``"input"``, ``"output"``, or ``"last state"`` of a module; ``"last layer's last state"``, of its two
            directions alone.
        shape: of the tensor.
        taken_for: the shape, or its first two sizes, by which the numbers were read.
        read: the sequences that row 0 of the model's output is computed from; empty of an input.

    >>> import torch
    >>> from isornn.diagnosis import measure
    >>> class Model(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.gru = torch.nn.GRU(3, 8, num_layers=2, batch_first=True)
    ...     def forward(self, x):
    ...         return self.gru(x)[1].view(len(x), -1)
    >>> measure(Model(), torch.randn(5, 20, 3)).layers[0].use.reshaped
    Reshaped(what='last state', shape=(2, 5, 8), taken_for=(5, 2), read=(0, 1))
    """

    what: str
    shape: tuple[int, ...]
    taken_for: tuple[int, ...]
    read: tuple[int, ...] = ()


def reshaped(calls: Mapping[nn.Module, Sequence[Call]], batch: Any, output: Any) -> dict[nn.Module, Reshaped]:
    """By module, which of its input, output and last state is reshaped where its axes were to be exchanged.

    What one module returns and another one reads is the other's input alone.
    """
    inputs = {own: found for own, made in calls.items() if (found := reshaped_input(own, made, batch)) is not None}
    known = {(one.shape, one.taken_for[:2]) for one in inputs.values()}
    results = reshaped_results(calls, output)
    return {own: one for own, one in results.items() if (one.shape, one.taken_for) not in known} | inputs


def reshaped_input(module: nn.Module, calls: Sequence[Call], batch: Any) -> Reshaped | None:
    """The first input that is reshaped from a tensor with the same sizes in another order, as ``x.view(T, B, D)`` of
    an ``x`` (B, T, D): by the tensor that it is a view of, or by its graph. How the batch itself was made is not the
    model's.

    Of a tensor with one axis more, two are joined, as in ``x.view(B, W, C * H)`` of a convolution's (B, C, H, W). Where
    none are, two sizes that are exchanged do not count if one is a multiple of the other, as steps may be stacked (40
    of 20 numbers to 20 of 40) or cut into windows: unless they are steps and sequences of a module that takes steps
    first.
    """
    steps_first = not getattr(module, "batch_first", False)
    given = [Origin.of(tensor) for tensor in tensors_in(batch)]
    for origin in (call.origin for call in calls if call.origin is not None and call.origin not in given):
        before = list(dropwhile(origin.shape.__eq__, origin.reshaped_from))
        if origin.shape in before:  # reshaped there and back
            continue
        of_base = [origin.whole] if origin.contiguous else []
        for whole in (*of_base, *before):
            if _exchanges_axes(whole, origin.shape, steps_first):
                return Reshaped("input", whole, origin.shape)
    return None


def _exchanges_axes(whole: tuple[int, ...], shape: tuple[int, ...], steps_first: bool) -> bool:
    """Whether ``shape`` has the sizes of ``whole`` in another order, as `reshaped_input` counts them."""
    # Axes of size 1 have no order in memory.
    before, after = ([size for size in sizes if size > 1] for sizes in (whole, shape))
    if len(before) > len(after):
        return _joins_others(before, after)
    if before == after or sorted(before) != sorted(after):
        return False
    moved = [axis for axis, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    steps_and_sequences = moved == [0, 1] and len(shape) == _AXES and 1 not in shape[:2]
    sizes = [after[axis] for axis in moved]
    split_or_joined = len(moved) == 2 and max(sizes) % min(sizes) == 0
    return not split_or_joined or (steps_first and steps_and_sequences)


def _joins_others(before: list[int], after: list[int]) -> bool:
    """Whether two axes of a tensor with sizes ``before`` joined would give those of ``after``, and no two neighbouring
    ones do, in this order."""
    joined = {
        (i, j): [*before[:i], before[i] * before[j], *before[i + 1 : j], *before[j + 1 :]]
        for i, j in combinations(range(len(before)), 2)
    }
    neighbours = (sizes for (i, j), sizes in joined.items() if j == i + 1)
    return after not in neighbours and sorted(after) in map(sorted, joined.values())


def reshaped_results(calls: Mapping[nn.Module, Sequence[Call]], output: Any) -> dict[nn.Module, Reshaped]:
    """Modules whose output or last state is reshaped as if its first two axes were the other way round, as by
    ``h_n.view(B, -1)`` of an ``h_n`` (layers, B, N).

    So it is where the numbers that row b of the model's output has a gradient with respect to would be those of
    sequence b if they were, and are not so of row 0. Rows 0, 1 and the last are looked at.
    """
    rows = _rows_of(output)
    if rows is None:
        return {}
    results = [one for own, made in calls.items() if len(made) == 1 for one in _results(own, made[0])]
    results = [one for one in results if one.sequences == len(rows)]
    for row in (0, 1, len(rows) - 1):
        if results:
            results = _read_as_exchanged(results, rows, row)
    return {one.module: Reshaped(one.what, one.shape, one.shape[1::-1], one.read) for one in results}


@dataclass
class _Result:
    """A tensor that a module returned: its first two axes are those of its sequences and of others, steps or layers.

    Args:
        below: how many of the first layers' states are left out.
    """

    module: nn.Module
    what: str
    tensor: Tensor
    batch_first: bool
    below: int = 0
    read: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.tensor) - self.below, *self.tensor.shape[1:])

    @property
    def sequences(self) -> int:
        return self.shape[0 if self.batch_first else 1]

    @property
    def others(self) -> int:
        return self.shape[1 if self.batch_first else 0]

    def sequences_at(self, places: Tensor, *, exchanged: bool) -> Tensor:
        """By place in the first two axes, flattened, the number of its sequence; as if they were exchanged, or as they
        are."""
        if self.batch_first != exchanged:
            return places // self.others
        return places % self.sequences


def _results(module: nn.Module, call: Call) -> list[_Result]:
    """Its output and last states (steps or layers, sequences, N), where the first two sizes are above 1 and differ."""
    if not call.tracked:
        return []
    found = [_Result(module, "last state", part, batch_first=False) for part in call.final]
    if getattr(module, "bidirectional", False):  # whose last layer has two, as ``h_n[-2:]``
        above = "last layer's last state"
        found += [replace(one, what=above, below=len(one.tensor) - 2) for one in found if len(one.tensor) > 2]
    if not isinstance(call.output, PackedSequence):
        found.append(_Result(module, "output", call.output, bool(getattr(module, "batch_first", False))))
    found = [one for one in found if one.tensor.dim() == _AXES and one.tensor.requires_grad]
    return [one for one in found if one.sequences > 1 < one.others != one.sequences]


def _read_as_exchanged(results: Sequence[_Result], rows: Tensor, row: int) -> list[_Result]:
    """The results of which this row of the model's output depends on those numbers alone that would be its own
    sequence's with the first two axes exchanged; row 0 in addition on another sequence."""
    gradients, found = _gradients_of_row(rows, row, [one.tensor for one in results]), []
    for one, gradient in zip(results, gradients, strict=True):
        if gradient is None or bool(gradient[: one.below].any()):
            continue
        places = gradient[one.below :].flatten(0, 1).any(-1).nonzero().flatten()
        if not len(places) or not bool((one.sequences_at(places, exchanged=True) == row).all()):
            continue
        if row == 0:
            one.read = tuple(one.sequences_at(places, exchanged=False).unique().tolist())
        if one.read != (0,):
            found.append(one)
    return found
