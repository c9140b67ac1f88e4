"""In a loop, the calls over which each row of the batch goes on from its own state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from isornn.capture.calls import States
from isornn.capture.parts import Part


@dataclass(frozen=True)
class Run:
    """Calls number ``first`` to ``last`` - 1, in which one row of the batch goes on from its own state.

    Args:
        row, first, last: of the batch; of the calls.
        start, steps: of its steps among those of all calls.
    """

    row: int
    first: int
    last: int
    start: int
    steps: int


def runs_of(parts: Sequence[Part]) -> list[Run]:
    """Those of all rows, the longest first; none where a call has what only its start has.

    A call after which the state before it is given again, as of a row that is masked, is of no run.
    """
    if any(part.previous is not None for part in parts):
        return []
    begun, held, runs = list[int](), list[bool](), list[Run]()
    times = list(accumulate((len(part.output) for part in parts), initial=0))

    def end(row: int, last: int) -> None:
        first = begun[row]
        if last - first > held[row]:
            runs.append(Run(row, first, last, times[first], times[last] - times[first]))

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


def discarded(parts: Sequence[Part]) -> Tensor:
    """(calls, B): rows in which the next call is given the state before the call again, as a loop does that masks the
    states of sequences that have ended.

    Only where other rows go on, or the call before was discarded for some: from one state a model may also take a step
    with each of several inputs. After the last call there is no state to see; a row of it counts where that of the call
    before does, or its input is one that was discarded there, as padding is.
    """
    found = torch.zeros(len(parts), max(part.output.shape[1] for part in parts), dtype=torch.bool)
    for number, (part, later) in enumerate(pairwise(parts)):
        goes_on, repeats = _alike(part, later)
        if any(goes_on) or (number and bool(found[number - 1].any())):
            met = [again and not on for again, on in zip(repeats, goes_on, strict=True)]
            found[number, : len(met)] = torch.tensor(met, dtype=torch.bool)
    if len(parts) > 1 and bool(found[-2].any()):
        found[-1] = found[-2] | _padding(parts[-2], parts[-1], found[-2])
    return found


def _padding(before: Part, part: Part, left_out: Tensor) -> Tensor:
    """Rows (B,) of a call whose input is that of one of the rows (B,) that were left out of the call before."""
    found = torch.zeros_like(left_out)
    if before.output.shape == part.output.shape:
        inputs, own = before.sequences.values[:, left_out], part.sequences.values
        same = (own.unsqueeze(2) == inputs.unsqueeze(1)) | (own.isnan().unsqueeze(2) & inputs.isnan().unsqueeze(1))
        found[: own.shape[1]] = same.all(-1).all(0).any(-1)
    return found


def returns_to_earlier(parts: Sequence[Part]) -> bool:
    """Whether a row is given a state, not 0, in which it ended some calls ago, and others since: as where each of
    several speakers or nodes has a state of its own."""
    seen = set[tuple[int, bytes]]()
    for number, part in enumerate(parts):
        given = _row_bytes(part.initial)
        goes_on, repeats = _alike(parts[number - 1], part) if number else ([], [])
        met = len(goes_on)
        for row, state in enumerate(given):
            known = row < met and (goes_on[row] or repeats[row])
            if not known and any(state) and (row, state) in seen:
                return True
        seen.update(enumerate(_row_bytes(part.final)))
    return False


def steps_though_reordered(parts: Sequence[Part]) -> int:
    """Of the longest sequence if a row goes on also from the state, not 0, in which another row of the call before
    ended: as in a beam search, where particles are drawn anew, or where rows between others leave the batch.

    As in `runs_of` a call does not count for a row that is given the state before it again.
    """
    longest, lengths, ended = 0, list[int](), dict[bytes, int]()
    repeats: Sequence[bool] = ()
    for number, part in enumerate(parts):
        given, batch = _row_bytes(part.initial), part.output.shape[1]
        goes_on, repeats = _alike(parts[number - 1], part) if number else ([], [])
        longest = max(longest, *_kept(lengths, repeats), 0)
        before = [
            lengths[row] if row < len(goes_on) and goes_on[row] else ended.get(given[row], 0) if given else 0
            for row in range(batch)
        ]
        lengths = [steps + len(part.output) for steps in before]
        ended = {state: steps for state, steps in zip(_row_bytes(part.final), lengths, strict=True) if any(state)}
    return max(longest, *_kept(lengths, repeats), 0)


def _kept(lengths: Sequence[int], repeats: Sequence[bool]) -> list[int]:
    """Those of rows that are not given the same state again, and of rows that there are no more."""
    return [steps for row, steps in enumerate(lengths) if row >= len(repeats) or not repeats[row]]


def _row_bytes(states: Sequence[States] | None) -> list[bytes]:
    """Each row's states of all layers."""
    if states is None:
        return []
    whole = torch.cat([state.detach().double().cpu() for layer in states for state in layer], -1)
    return [row.numpy().tobytes() for row in whole]


def _alike(before: Part, part: Part) -> tuple[list[bool], list[bool]]:
    """For each row that both have: whether its state is the very one in which it ended; or, not 0, began before."""
    given, met = part.initial, min(before.output.shape[1], part.output.shape[1])
    if given is None:
        return [], []

    def equal(found: Sequence[States]) -> Tensor:
        pairs = (pair for layers in zip(found, given, strict=True) for pair in zip(*layers, strict=True))
        return torch.stack([(a[:met] == b[:met]).all(-1) for a, b in pairs]).all(0)

    repeats = torch.stack([state[:met].bool().any(-1) for states in given for state in states]).any(0)
    repeats &= equal(before.initial) if before.initial is not None else torch.zeros_like(repeats)
    return equal(before.final).tolist(), repeats.tolist()
