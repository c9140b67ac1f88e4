"""What a model gives its recurrent modules, and which states it goes on with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from isornn.capture.batches import tensors_in
from isornn.capture.calls import Call, States
from isornn.capture.origin import Origin

_LAST = 4  # calls of a run that may have ended in a state that is kept
_FEWEST = 3  # calls that start from 0 one after the other: two may be two sequences
_AXES = 3  # of a batch of sequences
_TRIED = 1024  # places of a batch that have a row's largest number


def reads_batch(inputs: Tensor, batch: Any) -> bool | None:
    """Whether a module's inputs (..., D) are the batch's own numbers, not what the model computes from them.

    Looked for is the largest of their rows (D,), one number behind the other, in the batch's tensors as they are and
    with their last axes swapped. ``None`` where the batch has no tensors, as a function.
    """
    given = list(tensors_in(batch))
    if not given:
        return None
    rows = inputs.reshape(-1, inputs.shape[-1])
    row = rows[rows.square().sum(-1).argmax()]
    return any(_holds(tensor.to(row), row) for tensor in given if tensor.is_floating_point())


def _holds(tensor: Tensor, row: Tensor) -> bool:
    """Whether the tensor has the row (D,). It is looked for by its largest number, as many rows may begin with 0."""
    at = int(row.abs().argmax())
    for values in (tensor, tensor.transpose(-1, -2)) if tensor.dim() > 1 else (tensor,):
        flat = values.flatten()
        starts = (flat[at : max(0, len(flat) - len(row) + 1 + at)] == row[at]).nonzero()[:_TRIED]
        places = starts + torch.arange(len(row), device=row.device)
        if bool((flat[places] == row).all(-1).any()):
            return True
    return False


def ends_in_own_codes(inputs: Tensor, batch: Any) -> bool:
    """Whether sequences (T, B, D) end in repeated rows that differ from one to the other, and no tensor of the batch
    does at its own end: codes that the model computes, as by argmax, may stay the same for a while; padding is the
    batch's. False where no tensor of the batch has an axis of as many sequences."""
    if len(inputs) < 2:
        return False
    repeats = (inputs[-1] == inputs[-2]).all(-1)
    rows = inputs[-1][repeats]
    if bool((rows == rows[:1]).all()):
        return False
    given = [tensor.to(repeats.device) for tensor in tensors_in(batch) if len(repeats) in tensor.shape]
    return bool(given) and not any(_repeats_at_end(tensor, repeats) for tensor in given)


def _repeats_at_end(tensor: Tensor, chosen: Tensor) -> bool:
    """Whether the sequences that are ``chosen`` (B,) end in two equal steps, whatever the axes."""
    for axis in (axis for axis, size in enumerate(tensor.shape) if size == len(chosen)):
        own = tensor.movedim(axis, 0)[chosen]
        for time in (time for time in range(1, own.dim()) if own.shape[time] > 1):
            if bool((own.select(time, -1) == own.select(time, -2)).all()):
                return True
    return False


def restarts(module: nn.Module, calls: Sequence[Call]) -> int:
    """How many calls began at state 0 one after the other although they read one sequence; 0 where none did.

    Calls read one sequence where each input begins in memory where the one before ends; of cells, where they are views
    of one tensor at equal distances. Of states that are 0 throughout, as of dead units, those that are passed on count
    as carried, and views of one tensor are the states of several units, as of agents at their first step.
    """
    if len(calls) < _FEWEST or getattr(module, "bidirectional", False) or not all(map(_starts_blank, calls)):
        return 0
    if any(_passed_on(before.final, after.state) for before, after in pairwise(calls)):
        return 0
    places = [call.origin for call in calls if call.origin is not None]
    if len(places) < len(calls):
        return 0
    if isinstance(module, nn.RNNCellBase):
        states = [call.state_origin for call in calls if call.state_origin is not None]
        return len(calls) if _at_equal_distances(places) and not _at_equal_distances(states) else 0
    axes = len(places[0].shape)
    time = int(axes == _AXES and bool(getattr(module, "batch_first", False)))
    if any(len(place.shape) != axes for place in places):
        return 0
    return len(calls) if all(b.follows(a, time) for a, b in pairwise(places)) else 0


def exchanged_states(calls: Mapping[nn.Module, Sequence[Call]]) -> dict[nn.Module, int]:
    """By recurrent module, how many of its calls start from the two states in which a call ended, c as h and h as c.

    Looked at are its own calls just before, and the last one of every other module; not where h and c are equal.
    """
    last = {module: made[-1] for module, made in calls.items() if made}
    found = {}
    for module, made in calls.items():
        others = [call for other, call in last.items() if other is not module]
        count = sum(_is_exchanged(call, [*made[max(0, at - _LAST) : at], *others]) for at, call in enumerate(made))
        if count:
            found[module] = count
    return found


def _is_exchanged(call: Call, ended: Sequence[Call]) -> bool:
    if call.state is None or len(call.state) != 2 or torch.equal(*call.state):
        return False
    exchanged = call.state[::-1]
    return any(len(one.final) == 2 and _passed_on(one.final, exchanged) for one in ended)


def _at_equal_distances(places: Sequence[Origin]) -> bool:
    """Whether they are alike but for where they begin in one tensor, as the steps of a sequence do."""
    alike = {(place.storage, place.shape, place.strides, place.whole) for place in places}
    return len(alike) == 1 and len({b.offset - a.offset for a, b in pairwise(places)} - {0}) == 1


def _passed_on(ended: States, state: States | None) -> bool:
    return state is not None and all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(ended, state, strict=False)
    )


def _starts_blank(call: Call) -> bool:
    return call.lengths is None and (call.state is None or not any(bool(part.any()) for part in call.state))


def kept_states(model: nn.Module, calls: Mapping[nn.Module, Sequence[Call]]) -> dict[nn.Module, str]:
    """By recurrent module, the attribute or buffer, as ``"encoder.hidden"``, of whatever module holds a state that one
    of its last calls ended in."""
    ends: dict[torch.Size, list[tuple[nn.Module, Tensor]]] = {}
    for own, made in calls.items():
        for part in (part for call in made[-_LAST:] for part in call.final if bool(part.any())):
            ends.setdefault(part.shape, []).append((own, part))
    found: dict[nn.Module, str] = {}
    for place, module in model.named_modules():
        for name, value in {**vars(module), **module._buffers}.items():
            if name in ("_parameters", "_modules", "_buffers"):
                continue
            for tensor in tensors_in(value, 3):
                for own, end in ends.get(tensor.shape, ()):
                    if own not in found and torch.equal(tensor, end):
                        found[own] = f"{place}.{name}".removeprefix(".")
    return found


def carried_to(again: Sequence[Call], before: Sequence[Call]) -> bool:
    """Whether a run's first call starts from a state, not 0, in which a call of the run before ended."""
    if not again or again[0].state is None or _starts_blank(again[0]):
        return False
    state: States = again[0].state
    return any(
        len(call.final) == len(state) and all(torch.equal(a, b) for a, b in zip(call.final, state, strict=True))
        for call in before
    )
