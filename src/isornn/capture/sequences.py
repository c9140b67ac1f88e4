"""The calls of one recurrent module joined into sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from isornn.capture.calls import Call, RecurrentModule, States, data_of
from isornn.nn.sequences import Sequences

# How many unfinished sequences a call may continue: a loop may alternate between a few.
_OPEN = 4


class CaptureError(ValueError):
    """A recurrent module whose calls are not those of its class: says why."""


@dataclass(frozen=True)
class CapturedSequence:
    """One module's run over one batch of sequences, time first, in the module's own order of steps.

    Args:
        sequences: its inputs (T, B, D) and their lengths.
        previous: x_0, (B, D), where it was given.
        initial: states before the first step, for every layer (B, .) each; ``None`` where they are 0.
        output: (T, B, .), directions side by side.
        ends: states at the ends of its calls, by time: for every layer (B, .) each.
        of_output, of_ends: gradients of the loss with respect to these; ``None`` where there is no loss.
        calls: how often the module was called in all.
        chains: how many separate sequences those calls make.
        cuts: times at which a call went on from a state without a gradient.
        goes_on: whether the first call did, from one that is not 0.
    """

    sequences: Sequences
    previous: Tensor | None
    initial: Sequence[States] | None
    output: Tensor
    ends: Mapping[int, Sequence[States]]
    of_output: Tensor | None
    of_ends: Mapping[int, Sequence[States]] | None
    calls: int
    chains: int
    cuts: tuple[int, ...] = ()
    goes_on: bool = False

    @property
    def windows(self) -> tuple[int, ...]:
        """Steps from one cut to the next."""
        times = (0, *self.cuts, int(self.lengths.max()))
        return tuple(stop - start for start, stop in pairwise(times))

    @property
    def lengths(self) -> Tensor:
        """(B,)."""
        known = self.sequences.lengths
        steps, batch = self.sequences.values.shape[:2]
        return torch.full((batch,), steps, device=self.output.device) if known is None else known


def longest_sequence(module: RecurrentModule, calls: Sequence[Call]) -> CapturedSequence:
    """The longest sequence among a module's calls.

    A call that starts from the very state in which an earlier one ended continues its sequence: a cell in the
    user's loop over time, or a layer that is fed in pieces. Of sequences without such a connection, as the two sides of
    a shared encoder, the longest is taken, the first of equals; ``chains`` says how many there were.
    Calls of a bidirectional module and those with lengths are sequences of their own.

    Raises:
        CaptureError: shapes that a module of this class would not return.
    """
    chains: list[list[Call]] = []
    for call in calls:
        chain = None if _is_whole(module, call) else _continued(module, chains[-_OPEN:], call)
        if chain is None:
            chains.append([call])
        else:
            chain.append(call)
    parts = [[_read(module, call) for call in chain] for chain in chains]
    longest = max(parts, key=lambda chain: sum(len(part.output) for part in chain))
    given = longest[0].initial or ()
    goes_on = longest[0].detached and any(bool(part.any()) for states in given for part in states)
    return replace(_joined(longest, len(calls), len(chains)), cuts=_cuts(longest), goes_on=goes_on)


def _cuts(parts: Sequence[_Part]) -> tuple[int, ...]:
    times = accumulate(len(part.output) for part in parts)
    return tuple(time for time, part in zip(times, parts[1:], strict=False) if part.detached)


@dataclass(frozen=True)
class _Part:
    sequences: Sequences
    previous: Tensor | None
    initial: Sequence[States] | None
    output: Tensor
    final: Sequence[States]
    of_output: Tensor | None
    of_final: Sequence[States] | None
    detached: bool


def _is_whole(module: RecurrentModule, call: Call) -> bool:
    return module.directions > 1 or call.lengths is not None or isinstance(call.inputs, PackedSequence)


def _continued(module: RecurrentModule, chains: Sequence[list[Call]], call: Call) -> list[Call] | None:
    if call.state is None:
        return None
    for chain in reversed(chains):
        # Sequences with lengths of their own end at different steps, so none of them goes on in step with the others.
        if not _is_whole(module, chain[-1]):
            if all(torch.equal(a, b) for a, b in zip(chain[-1].final, call.state, strict=True)):
                return chain
    return None


def _read(module: RecurrentModule, call: Call) -> _Part:
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
            f"{tuple(first.shape)}, which {module.kind} would not"
        )
    final = by_layer(call.final)
    assert final is not None
    return _Part(
        sequences,
        call.previous if call.previous is None or sequences.batched else call.previous.unsqueeze(0),
        by_layer(call.state),
        output,
        final,
        None if call.of_output is None else in_time(call.of_output),
        by_layer(call.of_final),
        call.detached,
    )


def _read_step(call: Call) -> _Part:
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
    return _Part(
        Sequences(inputs.unsqueeze(0), None, batched),
        None,
        rows(call.state),
        output,
        final,
        None if call.of_output is None else torch.zeros_like(output),
        rows(call.of_final),
        call.detached,
    )


def _joined(parts: Sequence[_Part], calls: int, chains: int) -> CapturedSequence:
    first, times, total = parts[0], [], 0
    for part in parts:
        total += len(part.output)
        times.append(total)
    of_ends = {time: part.of_final for time, part in zip(times, parts, strict=True) if part.of_final is not None}
    of_output = [part.of_output for part in parts if part.of_output is not None]
    return CapturedSequence(
        first.sequences.with_values(torch.cat([part.sequences.values for part in parts])),
        first.previous,
        first.initial,
        torch.cat([part.output for part in parts]),
        {time: part.final for time, part in zip(times, parts, strict=True)},
        torch.cat(of_output) if of_output else None,
        of_ends or None,
        calls,
        chains,
    )
