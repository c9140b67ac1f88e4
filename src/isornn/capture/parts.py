"""One call of a recurrent module, with the time first, whatever the module takes and returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from isornn.capture.calls import Call, States, data_of
from isornn.capture.modules import RecurrentModule
from isornn.nn.sequences import Sequences


class CaptureError(ValueError):
    """A recurrent module whose calls are not those of its class: says why."""


@dataclass(frozen=True)
class Part:
    """What `CapturedSequence` has of one call."""

    sequences: Sequences
    previous: Tensor | None
    initial: Sequence[States] | None
    output: Tensor
    final: Sequence[States]
    of_output: Tensor | None
    of_final: Sequence[States] | None
    detached: bool
    altered: bool
    precision: torch.dtype

    def of_row(self, row: int) -> Part:
        """The same of one row of the batch, which is kept as an axis of length 1."""

        def in_time(values: Tensor) -> Tensor:
            return values[:, row : row + 1]

        def by_layer(states: Sequence[States] | None) -> Sequence[States] | None:
            return states and [tuple(state[row : row + 1] for state in layer) for layer in states]

        final = by_layer(self.final)
        assert final is not None
        return replace(
            self,
            sequences=self.sequences.with_values(in_time(self.sequences.values)),
            initial=by_layer(self.initial),
            output=in_time(self.output),
            final=final,
            of_output=None if self.of_output is None else in_time(self.of_output),
            of_final=by_layer(self.of_final),
        )


def read_part(module: RecurrentModule, call: Call) -> Part:
    """Inputs and outputs (T, B, .), and states (B, .) by layer, of one call.

    Raises:
        CaptureError: shapes that a module of this class would not return.
    """
    if len(call.final) != len(module.layers[0].cell.states):
        raise CaptureError(f"it returns {len(call.final)} states, where {module.kind} has another number")
    if module.steps_by_hand:
        return _read_step(call)
    kind: Any = module.module
    sequences = Sequences.of(call.inputs, call.lengths, kind.batch_first, kind.input_size)

    def in_time(value: Tensor | PackedSequence) -> Tensor:
        features = data_of(value).shape[-1]
        return Sequences.of(value, None, kind.batch_first, features).values.detach()

    def by_layer(states: States | None) -> Sequence[States] | None:
        if states is None:
            return None
        batched = [part.detach() if sequences.batched else part.detach().unsqueeze(1) for part in states]
        return list(zip(*(part.unbind(0) for part in batched), strict=True))

    output = in_time(call.output)
    if sequences.lengths is not None and len(output) == int(sequences.lengths.max()):
        # A subclass may return the steps of the longest sequence only.
        sequences = sequences.with_values(sequences.values[: len(output)])
    first = call.final[0]
    batch = first.shape[1] if sequences.batched and first.dim() == 3 else 1
    if output.shape[:2] != sequences.values.shape[:2] or (len(first), batch) != (len(module.layers), output.shape[1]):
        raise CaptureError(
            f"of inputs (T, B, D) {tuple(sequences.values.shape)} it returns outputs {tuple(output.shape)} and states "
            f"{tuple(first.shape)}, which {module.library_kind} would not"
        )
    final = by_layer(call.final)
    assert final is not None
    return Part(
        sequences,
        call.previous if call.previous is None or sequences.batched else call.previous.unsqueeze(0),
        by_layer(call.state),
        output,
        final,
        None if call.of_output is None else in_time(call.of_output),
        by_layer(call.of_final),
        call.detached,
        call.altered,
        call.precision,
    )


def _read_step(call: Call) -> Part:
    """A cell's call: one step. Its output is its first state, so the states' gradients are all there is."""
    assert isinstance(call.inputs, Tensor)
    batched = call.inputs.dim() == 2

    def rows(states: States | None) -> Sequence[States] | None:
        if states is None:
            return None
        return [tuple(part.detach() if batched else part.detach().unsqueeze(0) for part in states)]

    final = rows(call.final)
    assert final is not None
    output = final[0][0].unsqueeze(0)
    inputs = call.inputs if batched else call.inputs.unsqueeze(0)
    return Part(
        Sequences(inputs.unsqueeze(0), None, batched),
        None,
        rows(call.state),
        output,
        final,
        None if call.of_output is None else torch.zeros_like(output),
        rows(call.of_final),
        call.detached,
        call.altered,
        call.precision,
    )
