"""What one training step shows of a recurrent layer: its singular values, and how far its gradient came back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parametrize

from isornn.diagnosis.backward import by_lag
from isornn.diagnosis.denormals import Denormals, denormals
from isornn.diagnosis.heard import Heard, heard
from isornn.diagnosis.layers import RecurrentModule, States
from isornn.diagnosis.listening import Overheard
from isornn.diagnosis.losses import loss_gradient_norms
from isornn.diagnosis.numbers import single
from isornn.diagnosis.profiles import Profile
from isornn.diagnosis.replaying import Replayed, ReplayError, own_time, replayed
from isornn.nn.gate_tensors import RecurrentLayer
from isornn.nn.rnn import suffix
from isornn.nn.spectral import factors, is_spectral
from isornn.theory import Quantity

SEQUENCES = 16
COLUMNS = 256

NOT_CALLED = "not called in this update, or not differentiated through"
NOT_REACHED = "no gradient came to it in this update"
NOT_FINITE = "the gradient that came to it is not finite"
DROPPED = "dropout between its layers: what an upper one was given is not known; one module a layer shows it"
UNTIED = "its weights are fresh at every step, so that a step cannot be repeated"
NOT_READ = "the loss does not read the last step"

Array = np.ndarray


class Spectrum(NamedTuple):
    """Singular values of one recurrent matrix, and the margin m they are kept within, 1 +- m; infinite without one."""

    mean: float
    std: float
    smallest: float
    largest: float
    margin: float


@dataclass(frozen=True)
class Gradients:
    """ln of the root mean square over sequences of the norm of dL/ds_t, by lag: steps from t to the sequence's end.

    Args:
        lags: (c,), from 0, which is the state that the last step gives.
        loss: by state, and of all together: of the whole loss. -inf where it is exactly 0.
        last: likewise, of what enters at the layer's own last step alone.
        xi: time scale fitted to ``last``, as `Profile` has it.
    """

    lags: Array
    loss: Mapping[str, Array]
    last: Mapping[str, Array]
    xi: Quantity


@dataclass(frozen=True)
class Sight:
    """One layer and direction at one iteration.

    Args:
        spectra: by gate with a recurrent matrix; empty where the layer was not called.
        gradients: ``None`` where there are none.
        reason: why not.
        denormals: of the module's pass, where they were asked for and there are some.
    """

    spectra: Mapping[str, Spectrum]
    gradients: Gradients | None
    reason: str | None
    denormals: Denormals | None = None


def sights(module: RecurrentModule, overheard: Overheard, time_denormals: bool = True) -> list[Sight]:
    """Of every layer and direction of ``module``, from at most 16 of the sequences, the longest.

    Args:
        time_denormals: whether to time a pass with and without denormal numbers, if there are some.
    """
    known = overheard.module
    if known is None:
        return [Sight({}, None, NOT_CALLED) for _ in module.places]
    spectra = [_spectra(place) for place in known.places]
    found = _gradients(known, overheard, time_denormals)
    if isinstance(found, str):
        return [Sight(one, None, found) for one in spectra]
    gradients, small = found
    return [Sight(one, own, None, small) for one, own in zip(spectra, gradients, strict=True)]


@torch.no_grad()
def _spectra(place: RecurrentLayer) -> dict[str, Spectrum]:
    margin = _margin(place)
    found = {}
    for name, gate in place.gates.items():
        if gate.recurrent is not None:
            values = torch.linalg.svdvals(gate.recurrent.double())
            found[name] = Spectrum(
                mean=float(values.mean()),
                std=float(values.std(correction=0)),
                smallest=float(values.min()),
                largest=float(values.max()),
                margin=margin,
            )
    return found


def _margin(place: RecurrentLayer) -> float:
    name = "weight_hh" + suffix(place.layer, place.direction)
    if not (parametrize.is_parametrized(place.module) and is_spectral(place.module, name)):
        return math.inf
    margin = factors(place.module, name)[0].margin
    return math.inf if margin is None else margin


def _gradients(
    module: RecurrentModule, overheard: Overheard, time_denormals: bool
) -> tuple[list[Gradients], Denormals | None] | str:
    """By place, and their denormal numbers; or the reason why there are none."""
    if getattr(module.module, "untied", False):
        return UNTIED
    if not overheard.calls:
        return NOT_REACHED
    if len(module.places) > module.directions and module.module.training and getattr(module.module, "dropout", 0) > 0:
        return DROPPED
    found = _few(heard(module, overheard.calls))
    if overheard.precision is not None:
        # The replay is asked to agree to the precision that the module computed with.
        found = replace(found, output=found.output.to(overheard.precision))
    if not _finite(found):
        return NOT_FINITE
    try:
        places = replayed(module, found)
    except ReplayError as error:
        return str(error)
    whole = _profiles(module, found, places)
    at_end = _at_end(found, places)
    last = whole if at_end is found else _profiles(module, at_end, places)
    small = denormals(module, found, places, [one.log_norm for one in whole]) if time_denormals else None
    return [_seen(*pair) for pair in zip(whole, last, strict=True)], small


def _profiles(module: RecurrentModule, found: Heard, places: list[Replayed]) -> list[Profile]:
    logs = loss_gradient_norms(module, found, places)
    assert logs is not None
    return [by_lag(one.replay, norms) for one, norms in zip(places, logs, strict=True)]


def _seen(whole: Profile, last: Profile) -> Gradients:
    kept = torch.linspace(0, len(whole.lags) - 1, min(len(whole.lags), COLUMNS)).round().long()
    loss, at_end = ({name: v[kept].numpy() for name, v in one.log_norm.items()} for one in (whole, last))
    unread = bool(last.log_norm["all"].isinf().all())
    xi = single(math.nan, 0.0, {NOT_READ: True}) if unread else last.xi
    return Gradients(whole.lags[kept].numpy(), loss, at_end, xi)


def _few(found: Heard) -> Heard:
    """The longest sequences, the first of equals: a sample of the batch, whose order is the user's."""
    lengths = found.lengths
    chosen = lengths.argsort(descending=True, stable=True)[:SEQUENCES]
    steps = int(lengths[chosen[0]])

    def rows(states: States) -> States:
        return tuple(state.index_select(0, chosen) for state in states)

    def in_time(values: Tensor) -> Tensor:
        return values[:steps].index_select(1, chosen)

    assert found.of_output is not None and found.of_ends is not None
    known = found.sequences.lengths
    return replace(
        found,
        sequences=replace(
            found.sequences,
            values=in_time(found.sequences.values),
            lengths=None if known is None else known[chosen],
        ),
        previous=None if found.previous is None else found.previous[chosen],
        initial=None if found.initial is None else [rows(states) for states in found.initial],
        output=in_time(found.output),
        ends={time: [rows(states) for states in places] for time, places in found.ends.items()},
        of_output=in_time(found.of_output),
        of_ends={time: [rows(states) for states in places] for time, places in found.of_ends.items()},
    )


def _finite(found: Heard) -> bool:
    assert found.of_output is not None and found.of_ends is not None
    ends = [state for places in found.of_ends.values() for states in places for state in states]
    return all(bool(values.isfinite().all()) for values in (found.of_output, *ends))


def _at_end(found: Heard, places: list[Replayed]) -> Heard:
    """The same with the gradients alone that enter at the last steps; itself where there are no others."""
    assert found.of_output is not None and found.of_ends is not None
    directions = 1 + max(one.place.direction for one in places)
    parts = []
    for direction, part in enumerate(found.of_output.chunk(directions, -1)):
        own = own_time(found.sequences, part, direction)
        steps = torch.arange(len(own), device=own.device).unsqueeze(1)
        kept = torch.where((steps == found.lengths - 1).unsqueeze(-1), own, 0.0)
        parts.append(own_time(found.sequences, kept, direction))
    outputs = torch.cat(parts, -1)
    last = max(found.of_ends)
    # Gradients at the end of an earlier call have what comes from later ones in them; 0 is where autograd was cut.
    ends = {time: states for time, states in found.of_ends.items() if time == last or _all_zero(states)}
    if len(ends) == len(found.of_ends) and torch.equal(outputs, found.of_output):
        return found
    return replace(found, of_output=outputs, of_ends=ends)


def _all_zero(places: Sequence[States]) -> bool:
    return not any(bool(state.any()) for states in places for state in states)
