"""The calls of one recurrent module joined into sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from isornn.capture.calls import Call, States
from isornn.capture.chains import chained, is_whole, joined_though_altered
from isornn.capture.modules import RecurrentModule
from isornn.capture.parts import CaptureError, Part, read_part
from isornn.capture.rows import Run, discarded, returns_to_earlier, runs_of, steps_though_reordered
from isornn.nn.sequences import Sequences, within

ALTERED = (
    "between its calls the model changes the gradient of the state that it passes on: it detaches a part of it, scales "
    "its gradient, or has a hook on it; the layer alone has another gradient than the model"
)
SEVERAL_STATES = (
    "a sequence of the batch goes on from states of earlier calls than the last, as where each of several speakers has "
    "a state of its own; which call goes on with which is not followed"
)

REORDERED = (
    "between its calls the rows of its state are reordered, as in a beam search or where particles are drawn anew; "
    "which row goes on with which is not followed"
)


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
        chains: how many separate sequences, or batches of them, those calls make.
        cuts: times at which a call went on from a state without a gradient.
        goes_on: whether the first call did, from one that is not 0.
        altered: whether the model changes the gradient of a state that it passes on: see
            `isornn.capture.graph.changes_gradient`.
        precision: what the products of its calls are computed in.
        of_rows: by the times of ``of_ends``, for which sequences, (B,); ``None`` where a call's end is that of all.
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
    precision: torch.dtype
    cuts: tuple[int, ...] = ()
    goes_on: bool = False
    of_rows: Mapping[int, Tensor] | None = None
    altered: bool = False

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

    def longest(self, count: int) -> CapturedSequence:
        """At most ``count`` of the sequences, the longest, the first of equals, as far as the longest of them goes."""
        chosen = self.lengths.argsort(descending=True, stable=True)[:count]
        steps, known = int(self.lengths[chosen[0]]), self.sequences.lengths

        def in_time(values: Tensor) -> Tensor:
            return values[:steps].index_select(1, chosen)

        def by_layer(states: Sequence[States]) -> Sequence[States]:
            return [tuple(state.index_select(0, chosen) for state in layer) for layer in states]

        def at_ends(ends: Mapping[int, Sequence[States]]) -> Mapping[int, Sequence[States]]:
            return {time: by_layer(states) for time, states in ends.items()}

        own = self.sequences.with_values(in_time(self.sequences.values))
        return replace(
            self,
            sequences=own if known is None else replace(own, lengths=known[chosen]),
            previous=None if self.previous is None else self.previous[chosen],
            initial=None if self.initial is None else by_layer(self.initial),
            output=in_time(self.output),
            ends=at_ends(self.ends),
            of_output=None if self.of_output is None else in_time(self.of_output),
            of_ends=None if self.of_ends is None else at_ends(self.of_ends),
            of_rows=None if self.of_rows is None else {time: which[chosen] for time, which in self.of_rows.items()},
        )


@dataclass(frozen=True)
class CapturedInputs:
    """All sequences that one module was called with, as one batch.

    Args:
        sequences: (T, B, D) and lengths (B,).
        previous: x_0, (B, D), where it was given.
    """

    sequences: Sequences
    previous: Tensor | None

    @property
    def lengths(self) -> Tensor:
        """(B,)."""
        assert self.sequences.lengths is not None
        return self.sequences.lengths


def all_inputs(module: RecurrentModule, calls: Sequence[Call]) -> CapturedInputs:
    """Everything that the module was called with; calls are joined as in `longest_sequence`, and less strictly.

    A model may change a state between two calls: rows that have ended are masked, a state is reset, normalised or
    scaled, the batch shrinks. A call goes on with an earlier sequence also where a row of its state, not 0, is that
    sequence's; and one step with the step before, where both are joined with no call by an equal state. Steps that are
    masked are left out: see `isornn.capture.rows.discarded`.

    Raises:
        CaptureError: as `longest_sequence`.
    """
    chains = joined_though_altered(module, chained(module, calls))
    joined = [_side_by_side([read_part(module, call) for call in chain]) for chain in chains]
    steps = max(len(values) for values, _, _ in joined)
    values = [nn.functional.pad(values, (0, 0, 0, 0, 0, steps - len(values))) for values, _, _ in joined]
    lengths = torch.cat([lengths for _, lengths, _ in joined])
    given = any(first is not None for _, _, first in joined)
    previous = [torch.zeros_like(values[0]) if first is None else first for values, _, first in joined]
    return CapturedInputs(Sequences(torch.cat(values, 1), lengths), torch.cat(previous) if given else None)


def longest_sequence(module: RecurrentModule, calls: Sequence[Call]) -> CapturedSequence:
    """The longest sequence among a module's calls.

    A call that starts from the very state in which an earlier one ended continues its sequence: a cell in the
    user's loop over time, or a layer that is fed in pieces. Of sequences without such a connection, as the two sides of
    a shared encoder, the longest is taken, the first of equals; ``chains`` says how many there were.
    Calls of a bidirectional module and those with lengths are sequences of their own.

    In a loop the rows of a batch may go on each for itself: the rows whose episodes or sequences have ended get another
    state, or are left out. Where that gives longer sequences, these are the rows' own: as many as the batch has rows,
    the longest, with their lengths.

    Raises:
        CaptureError: shapes that a module of this class would not return; rows that return to states of earlier calls,
            or are reordered.
    """
    parts = [read_part(module, call) for call in calls]
    of_call = dict(zip(map(id, calls), parts, strict=True))
    chains = [[of_call[id(call)] for call in chain] for chain in chained(module, calls)]
    longest = max(chains, key=_steps)
    if len(chains) > 1 and not any(is_whole(module, call) for call in calls):
        runs = runs_of(parts)
        if steps_though_reordered(parts) > max(_steps(longest), runs[0].steps if runs else 0):
            raise CaptureError(REORDERED)
        if runs and runs[0].steps > _steps(longest):
            if returns_to_earlier(parts):
                raise CaptureError(SEVERAL_STATES)
            return _by_row(parts, runs)
    return replace(
        _joined(longest, len(calls), len(chains)),
        cuts=_cuts(longest),
        goes_on=_goes_on_detached(longest[0]),
        altered=any(part.altered for part in longest[1:]),
    )


def _steps(parts: Sequence[Part]) -> int:
    return sum(len(part.output) for part in parts)


def _goes_on_detached(first: Part) -> bool:
    given = first.initial or ()
    return first.detached and any(bool(part.any()) for states in given for part in states)


def _cuts(parts: Sequence[Part]) -> tuple[int, ...]:
    times = accumulate(len(part.output) for part in parts)
    return tuple(time for time, part in zip(times, parts[1:], strict=False) if part.detached)


def _by_row(parts: Sequence[Part], runs: Sequence[Run]) -> CapturedSequence:
    """The longest runs as a batch of sequences with lengths, as many as the largest call has rows."""
    batch = max(part.output.shape[1] for part in parts)
    calls, chains = len(parts), len(runs)
    each = [
        _joined([part.of_row(run.row) for part in parts[run.first : run.last]], calls, chains) for run in runs[:batch]
    ]
    longest = parts[runs[0].first : runs[0].last]
    return replace(
        _as_one_batch(each),
        cuts=_cuts(longest),
        goes_on=_goes_on_detached(longest[0]),
        altered=any(part.altered for part in parts),
    )


def _as_one_batch(each: Sequence[CapturedSequence]) -> CapturedSequence:
    """Sequences of one row each, the longest first, as one batch; their lengths say where each ends."""
    device, steps = each[0].output.device, len(each[0].output)
    lengths = torch.tensor([len(one.output) for one in each], device=device)

    def in_time(values: Sequence[Tensor]) -> Tensor:
        """(T, B, .) of (steps, 1, .) each, 0 behind their ends."""
        return torch.cat([nn.functional.pad(one, (0, 0, 0, 0, 0, steps - len(one))) for one in values], 1)

    def by_layer(states: Sequence[Sequence[States]]) -> Sequence[States]:
        """(B, .) each of (1, .) each."""
        return [tuple(torch.cat(rows) for rows in zip(*layer, strict=True)) for layer in zip(*states, strict=True)]

    final = [one.ends[len(one.output)] for one in each]
    blank = [[tuple(map(torch.zeros_like, layer)) for layer in states] for states in final]
    of_output = [one.of_output for one in each if one.of_output is not None]
    of_ends = [one.of_ends for one in each if one.of_ends is not None]
    times = sorted({time for own in of_ends for time in own})
    return CapturedSequence(
        Sequences(in_time([one.sequences.values for one in each]), lengths),
        None,
        by_layer([zero if one.initial is None else one.initial for one, zero in zip(each, blank, strict=True)]),
        in_time([one.output for one in each]),
        {steps: by_layer(final)},
        in_time(of_output) if of_output else None,
        # Where no call of a sequence ends, its last gradient stands in, which ``of_rows`` leaves out.
        {time: by_layer([own.get(time, own[max(own)]) for own in of_ends]) for time in times} or None,
        each[0].calls,
        each[0].chains,
        each[0].precision,
        of_rows={time: torch.tensor([time in own for own in of_ends], device=device) for time in times} or None,
    )


def _side_by_side(parts: Sequence[Part]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Of one sequence's calls the inputs (T, B, D), lengths (B,) and x_0; rows that a later call lacks have ended."""
    first, batch = parts[0], max(part.output.shape[1] for part in parts)
    values = torch.cat(
        [nn.functional.pad(part.sequences.values, (0, 0, 0, batch - part.output.shape[1])) for part in parts]
    )
    if first.sequences.lengths is not None:
        return values, first.sequences.lengths, first.previous
    steps = torch.tensor([len(part.output) for part in parts])
    rows = torch.tensor([part.output.shape[1] for part in parts])
    kept = (torch.arange(batch) < rows.unsqueeze(1)) & ~discarded(parts)
    return *_closed_up(values, kept.repeat_interleave(steps, 0).to(values.device)), first.previous


def _closed_up(values: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Of (T, B, D) the steps that are kept, (T, B), one behind the other, 0 behind them; their numbers (B,)."""
    lengths = kept.sum(0)
    order = (~kept).long().sort(dim=0, stable=True).indices
    ahead = values.gather(0, order.unsqueeze(-1).expand_as(values))
    return ahead.masked_fill((~within(lengths, len(values))).unsqueeze(-1), 0.0), lengths


def _joined(parts: Sequence[Part], calls: int, chains: int) -> CapturedSequence:
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
        min((part.precision for part in parts), key=lambda dtype: torch.finfo(dtype).bits),
    )
