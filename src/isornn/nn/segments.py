"""A whole sequence through one layer and direction in segments: for checkpoints, detached states and uneven lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from isornn.cells import Cell
from isornn.nn.cudnn import recurrence_by_cudnn, runs_cudnn
from isornn.nn.layout import Layout
from isornn.nn.onednn import lstm_by_onednn, runs_onednn
from isornn.nn.recording import recording
from isornn.nn.recurrence import recurrence, transformed
from isornn.nn.sequences import last_states
from isornn.nn.stepped import Weights

States = tuple[Tensor, ...]


@dataclass(frozen=True)
class Segments:
    """One layer and direction over time.

    Args:
        cell, layout: the cell and its layout.
        weights: the layer's.
        checkpoint_every: how many steps a segment has that is run again in the backward pass; ``None``: none is.
    """

    cell: Cell
    layout: Layout
    weights: Weights
    checkpoint_every: int | None

    def run(
        self,
        inputs: Tensor,
        pointwise: Tensor | None,
        initial: States,
        lengths: Tensor | None,
        detached: Sequence[int] = (),
    ) -> tuple[Tensor, States]:
        """Outputs (T, B, N) and last states: in segments, run again in the backward pass, where asked for.

        A segment begins, too, at the steps ``detached``, where the first state is read without its gradient.
        """
        # A recorded program would keep the segments of the example's length.
        every = self.checkpoint_every if torch.is_grad_enabled() and not recording() else None
        if every is None and not detached:
            return self._segment(inputs, pointwise, self.weights, initial, lengths)
        length = inputs.shape[0]
        outputs, states = [], initial
        for start, stop in pairwise([*sorted({0, *detached, *range(0, length, every or length)}), length]):
            steps = slice(start, stop)
            first, *others = states
            if start in detached:  # but what a sequence ended with before is returned with its gradient
                ended = None if lengths is None else (lengths <= start)[:, None]
                first = first.detach() if ended is None else torch.where(ended, first, first.detach())
            of_segment = (
                inputs[steps],
                None if pointwise is None else pointwise[steps],
                self.weights.from_step(start),
                (first, *others),
                None if lengths is None else lengths - start,
            )
            run = self._segment if every is None else partial(checkpoint, self._segment, use_reentrant=False)
            out, states = run(*of_segment)
            outputs.append(out)
        return torch.cat(outputs), states

    def _segment(
        self,
        inputs: Tensor,
        pointwise: Tensor | None,
        weights: Weights,
        initial: States,
        lengths: Tensor | None,
    ) -> tuple[Tensor, States]:
        mode, given = self.layout.mode, [inputs, *initial, *weights.tensors()]
        if runs_cudnn(mode, inputs, weights, lengths) and not transformed(given):
            return recurrence_by_cudnn(self.cell, inputs, weights, initial)
        if runs_onednn(mode, inputs, weights, lengths) and not transformed(given):
            return lstm_by_onednn(inputs, weights, initial)
        results = recurrence(self.cell, self.layout, inputs, pointwise, weights, initial)
        if lengths is not None and _overflows(results, [inputs, pointwise, *initial, *weights.tensors()], lengths):
            return self._without_padding(inputs, pointwise, weights, initial, lengths)
        states = zip(results, initial, strict=False)
        last = tuple(last_states(values, start, lengths) for values, start in states)
        return (results[0] if len(results) == len(initial) else results[-1]), last

    def _without_padding(
        self,
        inputs: Tensor,
        pointwise: Tensor | None,
        weights: Weights,
        initial: States,
        lengths: Tensor,
    ) -> tuple[Tensor, States]:
        """`_segment` of the sequences that go on alone, as `torch.nn` runs packed ones; zeros behind their ends.

        It takes a call for each length that occurs, and is for states that overflow in the padding: gradients there,
        which are 0, would be 0 times infinity.
        """
        outputs, states = [], list(initial)
        for start, stop in pairwise(sorted({0, *lengths.clamp(0, len(inputs)).tolist()})):
            going_on = (lengths > start).nonzero().flatten()
            now, x = inputs[start:stop, going_on], None if pointwise is None else pointwise[start:stop, going_on]
            before = [value[going_on] for value in states]
            results = recurrence(self.cell, self.layout, now, x, weights.from_step(start), before)
            states = [old.index_copy(0, going_on, new[-1]) for old, new in zip(states, results, strict=False)]
            found = results[0] if len(results) == len(initial) else results[-1]
            outputs.append(found.new_zeros(len(found), len(lengths), found.shape[-1]).index_copy(1, going_on, found))
        whole = torch.cat(outputs)
        return nn.functional.pad(whole, (0, 0, 0, 0, 0, len(inputs) - len(whole))), tuple(states)


def _overflows(results: Sequence[Tensor], given: Sequence[Tensor | None], lengths: Tensor) -> bool:
    """Whether a state is not finite at some step, as where sequences that have ended went on over padding."""
    if recording() or transformed(given):  # where values cannot be asked for
        return False
    if any(type(value) is not Tensor or value.is_meta for value in results):
        return False
    wide = torch.float32  # the sum of many numbers in half precision is soon infinite
    finite = (value.sum(dtype=torch.promote_types(value.dtype, wide)).isfinite() for value in results)
    return not all(map(bool, finite)) and bool((lengths > 0).any())
