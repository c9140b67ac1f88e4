"""Measure the recurrent layers of a model in one training step, from what was recorded in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils import parametrize

from isornn.capture.modules import RecurrentModule
from isornn.capture.parts import CaptureError
from isornn.capture.sequences import CapturedSequence
from isornn.diagnosis.denormals import denormals
from isornn.diagnosis.facts import Denormals
from isornn.diagnosis.gradients import LossGradient, by_lag, loss_gradients
from isornn.diagnosis.json_record import single
from isornn.diagnosis.measurable import measurable_sequence
from isornn.diagnosis.not_finite import first_step
from isornn.diagnosis.profiles import BEGINS_ANEW, MEASURABLE, separate
from isornn.diagnosis.replay import LayerReplay, Replay, ReplayError, replay_module
from isornn.diagnosis.states import gates_and_memory
from isornn.diagnosis.step_recorder import RecordedStep
from isornn.diagnosis.use_checks import MOST_RETAINING, retaining, truncated
from isornn.nn.gate_tensors import RecurrentLayer
from isornn.nn.rnn import suffix
from isornn.nn.spectral import factors, is_spectral
from isornn.theory import Quantity

Array = np.ndarray

SEQUENCES = 16
COLUMNS = 256

NOT_CALLED = "not called in this update, or by its .forward, which runs no hooks, or not differentiated through"
NOT_REACHED = "no gradient came to it in this update"
NOT_FINITE = "the gradient that came to it is not finite"
DROPPED = "dropout between its layers: the input of the upper ones is not known; a module for each layer shows it"
NOT_DETACHED = (
    "It is given a state whose graph is older than the update. Detach the state that is kept from one update to the "
    "next; else backpropagation fails, or grows by a batch with every update."
)
NOT_READ = "the loss does not read the last step"


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
class StepMeasurement:
    """One layer and direction at one iteration.

    Args:
        spectra: by gate with a recurrent matrix of finite numbers; empty where the layer was not called.
        gradients: ``None`` where there are none.
        reason: why not.
        denormals: of the module's pass, where they were asked for and there are some.
        findings: what was found of the states that it goes on from, by kind.
    """

    spectra: Mapping[str, Spectrum]
    gradients: Gradients | None
    reason: str | None
    denormals: Denormals | None = None
    findings: Mapping[str, str] = field(default_factory=dict)


def measure_step(module: RecurrentModule, recorded: RecordedStep, time_denormals: bool = True) -> list[StepMeasurement]:
    """Of every layer and direction of ``module``, from at most 16 of the sequences, the longest.

    Args:
        time_denormals: whether to time a pass with and without denormal numbers, if there are some.
    """
    known = recorded.module
    if known is None:
        return [StepMeasurement({}, None, recorded.refused or NOT_CALLED) for _ in module.layers]
    kept = {"not_detached": NOT_DETACHED} if recorded.stale else {}
    try:
        whole = _sequence(known, recorded)
        found = whole.longest(SEQUENCES)  # a sample of the batch, whose order is the user's
        if not _finite(found):
            return _without_gradients(known, NOT_FINITE, kept | {"not_finite": _where_not_finite(whole)})
        replays = replay_module(known, found)
    except (CaptureError, ReplayError) as error:
        return _without_gradients(known, str(error), kept)
    of_loss = loss_gradients(known, found, replays, at_end=True)
    assert of_loss is not None
    small = denormals(known, found, replays, [own.log_norm for own in of_loss]) if time_denormals else None
    return [
        StepMeasurement(
            _spectra(one.layer), _seen(one.replay, own, _in_pieces(whole)), None, small, kept | _truncated(found, one)
        )
        for one, own in zip(replays, of_loss, strict=True)
    ]


def _without_gradients(module: RecurrentModule, reason: str, findings: Mapping[str, str]) -> list[StepMeasurement]:
    return [StepMeasurement(_spectra(layer), None, reason, findings=findings) for layer in module.layers]


def _sequence(module: RecurrentModule, recorded: RecordedStep) -> CapturedSequence:
    """The sequences that a gradient came to.

    Raises:
        CaptureError: why there are none to measure it on.
    """
    stacked = len(module.layers) > module.directions
    if recorded.calls and stacked and module.module.training and getattr(module.module, "dropout", 0) > 0:
        raise CaptureError(DROPPED)
    return measurable_sequence(module, recorded.calls, refused=recorded.refused, uncalled=NOT_REACHED)


@torch.no_grad()
def _spectra(layer: RecurrentLayer) -> dict[str, Spectrum]:
    margin = _margin(layer)
    found = {}
    for name, gate in layer.gates.items():
        if gate.recurrent is not None and bool(gate.recurrent.isfinite().all()):
            values = torch.linalg.svdvals(gate.recurrent.double())
            found[name] = Spectrum(
                mean=float(values.mean()),
                std=float(values.std(correction=0)),
                smallest=float(values.min()),
                largest=float(values.max()),
                margin=margin,
            )
    return found


def _margin(layer: RecurrentLayer) -> float:
    name = "weight_hh" + suffix(layer.layer, layer.direction)
    if not (parametrize.is_parametrized(layer.module) and is_spectral(layer.module, name)):
        return math.inf
    margin = factors(layer.module, name)[0].margin
    return math.inf if margin is None else margin


def _where_not_finite(found: CapturedSequence) -> str:
    place = "" if found.of_output is None else first_step(found.of_output, backwards=True)
    sentence = f"{NOT_FINITE[0].upper()}{NOT_FINITE[1:]}{place}."
    return f"{sentence} A GradScaler, where there is one, may be looking for its scale."


def _truncated(found: CapturedSequence, one: LayerReplay) -> dict[str, str]:
    """Whether backpropagation ends at a detached state before most units have forgotten."""
    if not found.cuts and not found.goes_on:
        return {}
    window = max(found.windows)
    _, memory = gates_and_memory(one.replay, max(window, 2))
    longest = max((memory, *memory.others), key=lambda state: retaining(state, window))
    if retaining(longest, window) <= MOST_RETAINING:
        return {}
    # Whether a given state is the one in which an earlier batch ended, one update does not show.
    given = "" if found.cuts else "It is given a state without a gradient. If that continues an earlier batch: "
    return {"truncated": given + truncated(longest, window)}


def _in_pieces(found: CapturedSequence) -> str | None:
    """Why a time scale is missing where the calls could not be joined to sequences that have one."""
    steps = int(found.lengths.max())
    if found.chains == 1 or steps >= MEASURABLE:
        return None
    return f"{separate(found.calls, found.chains, steps)}; {BEGINS_ANEW}"


def _seen(replay: Replay, gradient: LossGradient, in_pieces: str | None) -> Gradients:
    assert gradient.at_end is not None
    whole, last = by_lag(replay, gradient.log_norm), by_lag(replay, gradient.at_end)
    kept = torch.linspace(0, len(whole.lags) - 1, min(len(whole.lags), COLUMNS)).round().long()
    loss, at_end = ({name: v[kept].numpy() for name, v in one.log_norm.items()} for one in (whole, last))
    unread = bool(last.log_norm["all"].isinf().all())
    reason = in_pieces or (NOT_READ if unread else None)
    xi = last.xi if reason is None else single(math.nan, 0.0, {reason: True})
    return Gradients(whole.lags[kept].numpy(), loss, at_end, xi)


def _finite(found: CapturedSequence) -> bool:
    assert found.of_output is not None and found.of_ends is not None
    ends = [state for layers in found.of_ends.values() for states in layers for state in states]
    return all(bool(values.isfinite().all()) for values in (found.of_output, *ends))
