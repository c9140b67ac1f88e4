"""The calls of one recurrent module joined into sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from isornn.capture.calls import Call, RecurrentModule, States, data_of
from isornn.nn.sequences import Sequences

# How many unfinished sequences a call may continue: a loop may alternate between some.
_OPEN = 32


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
        chains: how many separate sequences, or batches of them, those calls make.
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
    sequence's; and one step with the step before, where both are joined with no call by an equal state.

    Raises:
        CaptureError: as `longest_sequence`.
    """
    chains = _joined_though_altered(module, _chained(module, calls))
    joined = [_side_by_side([_read(module, call) for call in chain]) for chain in chains]
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

    In a loop of single steps the rows of a batch may go on each for itself: the rows whose episodes or sequences have
    ended get another state, or are left out. Where that gives longer sequences, these are the rows' own: as many as
    the batch has rows, the longest, with their lengths.

    Raises:
        CaptureError: shapes that a module of this class would not return.
    """
    chains = _chained(module, calls)
    parts = [[_read(module, call) for call in chain] for chain in chains]
    longest = max(parts, key=_steps)
    if len(chains) > 1 and not any(_is_whole(module, call) for call in calls):
        made = {
            id(call): part
            for chain, read in zip(chains, parts, strict=True)
            for call, part in zip(chain, read, strict=True)
        }
        in_order = [made[id(call)] for call in calls]
        runs = _runs(in_order)
        if runs and runs[0].steps > _steps(longest):
            return _by_row(in_order, runs)
    return replace(
        _joined(longest, len(calls), len(chains)), cuts=_cuts(longest), goes_on=_goes_on_detached(longest[0])
    )


def _steps(parts: Sequence[_Part]) -> int:
    return sum(len(part.output) for part in parts)


def _goes_on_detached(first: _Part) -> bool:
    given = first.initial or ()
    return first.detached and any(bool(part.any()) for states in given for part in states)


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


@dataclass(frozen=True)
class _Run:
    """Calls number ``start`` to ``stop`` - 1, in which one row of the batch goes on from its own state."""

    row: int
    start: int
    stop: int

    @property
    def steps(self) -> int:
        return self.stop - self.start


def _runs(parts: Sequence[_Part]) -> list[_Run]:
    """Those of all rows, the longest first; none where a call has more than one step, or what only its start has.

    A step after which the state before it is given again, as of a row that is masked, is of no run.
    """
    if any(len(part.output) > 1 or part.previous is not None for part in parts):
        return []
    begun, held, runs = list[int](), list[bool](), list[_Run]()

    def end(row: int, stop: int) -> None:
        if stop - begun[row] > held[row]:
            runs.append(_Run(row, begun[row], stop))

    for number, part in enumerate(parts):
        goes_on, repeats = _alike(parts[number - 1], part) if number else ([], [])
        batch, met = part.output.shape[1], len(goes_on)
        stays = [row < met and goes_on[row] for row in range(max(batch, len(begun)))]
        again = [row < met and repeats[row] for row in range(max(batch, len(begun)))]
        for row in range(len(begun)):
            if not stays[row]:
                end(row, number - again[row])
        held = [held[row] if stays[row] else again[row] for row in range(batch)]
        begun = [begun[row] if stays[row] else number for row in range(batch)]
    for row in range(len(begun)):
        end(row, len(parts))
    return sorted(runs, key=lambda run: (-run.steps, run.start, run.row))


def _alike(before: _Part, part: _Part) -> tuple[list[bool], list[bool]]:
    """For each row that both have: whether its state is the very one in which it ended; or, not 0, began before."""
    given, met = part.initial, min(before.output.shape[1], part.output.shape[1])
    if given is None:
        return [], []

    def equal(found: Sequence[States]) -> Tensor:
        pairs = (pair for layers in zip(found, given, strict=True) for pair in zip(*layers, strict=True))
        return torch.stack([(a[:met] == b[:met]).all(-1) for a, b in pairs]).all(0)

    repeats = torch.stack([state[:met].bool().any(-1) for states in given for state in states]).any(0)
    repeats &= equal(before.initial) if before.initial is not None else repeats.new_zeros(())
    return equal(before.final).tolist(), repeats.tolist()


def _by_row(parts: Sequence[_Part], runs: Sequence[_Run]) -> CapturedSequence:
    """The longest runs as a batch of sequences with lengths, as many as the largest call has rows."""
    batch, device = max(part.output.shape[1] for part in parts), parts[0].output.device
    longest, chosen = runs[0], runs[:batch]
    rows, starts, lengths = (
        torch.tensor([getattr(run, name) for run in chosen], device=device) for name in ("row", "start", "steps")
    )
    # Behind its end a run stays at its last call.
    times = torch.arange(longest.steps, device=device).unsqueeze(1).minimum(lengths - 1)

    def at(numbers: Tensor, values: Sequence[Tensor]) -> Tensor:
        """Of these calls the runs' own rows, from values (rows of the call, .) of all calls."""
        return torch.stack([nn.functional.pad(one, (0, 0, 0, batch - len(one))) for one in values])[numbers, rows]

    def of_states(numbers: Tensor, found: Sequence[Sequence[States]]) -> Sequence[States]:
        """Likewise by layer, from states by layer."""
        return [
            tuple(at(numbers, values) for values in zip(*by_call, strict=True)) for by_call in zip(*found, strict=True)
        ]

    def by_time(found: Sequence[Sequence[States]]) -> Mapping[int, Sequence[States]]:
        whole = of_states(starts + times, found)
        return {t + 1: [tuple(values[t] for values in states) for states in whole] for t in range(longest.steps)}

    sequences = Sequences(at(starts + times, [part.sequences.values[0] for part in parts]), lengths)
    blank = [[tuple(map(torch.zeros_like, states)) for states in part.final] for part in parts]
    given = [zero if part.initial is None else part.initial for part, zero in zip(parts, blank, strict=True)]
    of_output = [part.of_output[0] for part in parts if part.of_output is not None]
    of_final = [part.of_final for part in parts if part.of_final is not None]
    return CapturedSequence(
        sequences.with_values(sequences.ended(sequences.values)),
        None,
        of_states(starts, given),
        sequences.ended(at(starts + times, [part.output[0] for part in parts])),
        by_time([part.final for part in parts]),
        sequences.ended(at(starts + times, of_output)) if of_output else None,
        by_time(of_final) if of_final else None,
        calls=len(parts),
        chains=len(runs),
        cuts=tuple(n - longest.start for n in range(longest.start + 1, longest.stop) if parts[n].detached),
        goes_on=_goes_on_detached(parts[longest.start]),
    )


def _chained(module: RecurrentModule, calls: Sequence[Call]) -> list[list[Call]]:
    """The calls in separate sequences: each goes on from the very state in which the one before ended."""
    chains: list[list[Call]] = []
    for call in calls:
        chain = None
        if call.state is not None and not _is_whole(module, call):
            chain = next((chain for chain in reversed(chains[-_OPEN:]) if _goes_on(module, chain[-1], call)), None)
        if chain is None:
            chains.append([call])
        else:
            chain.append(call)
    return chains


def _is_whole(module: RecurrentModule, call: Call) -> bool:
    return module.directions > 1 or call.lengths is not None or isinstance(call.inputs, PackedSequence)


def _goes_on(module: RecurrentModule, call: Call, later: Call) -> bool:
    # Sequences with lengths of their own end at different steps, so none of them goes on in step with the others.
    if _is_whole(module, call) or later.state is None:
        return False
    return all(torch.equal(a, b) for a, b in zip(call.final, later.state, strict=True))


def _joined_though_altered(module: RecurrentModule, chains: Sequence[list[Call]]) -> list[list[Call]]:
    """Those together whose state the model has changed in between: see `all_inputs`."""
    whole: list[list[list[Call]]] = []
    for chain in chains:
        first, found = chain[0], None
        if first.state is not None and not _is_whole(module, first) and not _starts_alike(chains[0][0], first):
            unfinished = [one for one in whole[-_OPEN:] if not _is_whole(module, one[-1][-1])]
            found = next((one for one in reversed(unfinished) if _share_a_row(one[-1][-1], first)), None)
            # A loop that passes states on as they are shows it, so the next sequence is not taken for the same one.
            if found is None and unfinished and len(chain) == len(unfinished[-1][-1]) == 1:
                found = unfinished[-1] if _is_one_step(module, first, unfinished[-1][-1][-1]) else None
        if found is None:
            whole.append([chain])
        else:
            found.append(chain)
    return [[call for chain in one for call in chain] for one in whole]


def _is_one_step(module: RecurrentModule, call: Call, before: Call) -> bool:
    """Whether it may be the step after ``before``, of as many sequences."""
    assert isinstance(call.inputs, Tensor)
    kind: Any = module.module
    steps = 1 if module.steps_by_hand else call.inputs.shape[int(kind.batch_first and call.inputs.dim() == 3)]
    return steps == 1 and all(a.shape == b.shape for a, b in zip(before.final, call.state or (), strict=True))


def _share_a_row(call: Call, later: Call) -> bool:
    """Whether a sequence's state, not 0, is the same in both; of a smaller batch, one of the first sequences."""
    for final, state in zip(call.final, later.state or (), strict=True):
        if final.dim() > 1 and final.shape[-1] == state.shape[-1] and final.shape[-2] >= state.shape[-2]:
            same = (final[..., : state.shape[-2], :] == state).all(-1) & state.bool().any(-1)
            if bool(same.any()):
                return True
    return False


def _starts_alike(first: Call, call: Call) -> bool:
    """Whether the call's state is 0, or the one from which the first started, as one that is learned."""
    state = call.state or ()
    if not any(bool(part.any()) for part in state):
        return True
    return first.state is not None and all(torch.equal(a, b) for a, b in zip(first.state, state, strict=True))


def _side_by_side(parts: Sequence[_Part]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Of one sequence's calls the inputs (T, B, D), lengths (B,) and x_0; rows that a later call lacks have ended."""
    first, batch = parts[0], parts[0].output.shape[1]
    values = [nn.functional.pad(part.sequences.values, (0, 0, 0, batch - part.output.shape[1])) for part in parts]
    if first.sequences.lengths is not None:
        lengths = first.sequences.lengths
    else:
        rows = torch.arange(batch, device=first.output.device)
        lengths = torch.stack([(rows < part.output.shape[1]) * len(part.output) for part in parts]).sum(0)
    return torch.cat(values), lengths, first.previous


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
