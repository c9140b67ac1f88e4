"""Measure every recurrent layer of a model on a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import nn

from isornn.capture.calls import Call, data_of
from isornn.capture.modules import RecurrentModule, as_called, recurrent_modules
from isornn.capture.parts import CaptureError
from isornn.capture.read import (
    reads_at_its_start,
    reads_repeated_end,
    state_sizes,
    unread_places,
    unread_shorter,
)
from isornn.capture.run import Captured, capture
from isornn.capture.sequences import CapturedSequence, all_inputs
from isornn.capture.use import ends_in_own_codes, exchanged_states, reads_batch, restarts
from isornn.cells import Cell, full_name
from isornn.cells.arguments import check_function, seeded, whole_number
from isornn.diagnosis.cotangents import LastOutput
from isornn.diagnosis.data_facts import with_data_facts
from isornn.diagnosis.denormals import denormals
from isornn.diagnosis.facts import InputFacts, Profile
from isornn.diagnosis.gradients import LossGradient, amplification, by_lag, gradient_norms, loss_gradients
from isornn.diagnosis.jacobians import forward_profile, jacobians, lyapunov
from isornn.diagnosis.json_record import single
from isornn.diagnosis.known_starts import known_start
from isornn.diagnosis.measurable import measurable_sequence
from isornn.diagnosis.not_finite import non_finite, numbers_outside
from isornn.diagnosis.predicted import predicted
from isornn.diagnosis.records import Diagnosis, LayerDiagnosis, LayerInfo, Predicted, Unmeasured, Use
from isornn.diagnosis.replay import LayerReplay, Replay, ReplayError, replay_module
from isornn.diagnosis.states import gates_and_memory, input_facts, state_moments
from isornn.diagnosis.target import Target, loss_of
from isornn.diagnosis.weights import weight_facts
from isornn.modes import flushes_denormals, unhindered, usual_modes
from isornn.nn.gate_tensors import unreadable_modules
from isornn.nn.ownership import is_computed
from isornn.nn.wrappers import unwrapped

Progress = Callable[[str], object]

NOT_ASKED = "not asked for; theory=True, or --theory on the command line, adds it"
ENTERS_THROUGHOUT = "a gradient enters at many steps, so its slope is not the decay of one that enters at the end"
PIECE_BY_PIECE = "the layer is called piece by piece, so what enters at the end is not known alone"
NEVER_CALLED = "it was never called on this batch"


def measure(
    model: nn.Module,
    batch: Any,
    length: int | None = None,
    target: Target | None = None,
    *,
    theory: bool = False,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Gradients, states, gates and weights of each recurrent layer of a model, on the user's data.

    The model runs once on the batch, in eval mode, and is left bit by bit as it was (see `preserve_state`). Every layer
    and direction is then recomputed in float64 from the inputs and initial states that it had, checked against the
    module's own outputs, and measured along that replay.

    Args:
        model: holds torch.nn.RNN, LSTM, GRU of any depth, direction and projection, their ...Cell forms stepped by
            hand, or isornn's layers.
        batch: what the model is called with: a tensor or PackedSequence, a tuple of positional arguments, or a dict of
            keyword arguments (or the dict itself, where forward takes one). Its layout is the model's own. Or a
            function that is called with the model and runs it, where that is not by forward.
        length: T, how many steps the layers should bridge; by default those of each layer's longest sequence.
        target: for the gradient of the loss: a function of the model's output, integer labels (cross entropy), or
            floating point values (mean squared error).
        theory: whether to add the theory's predictions for such layers, which take longer than everything else.
        generator: of the random directions; seeded with 0 by default, so that equal calls agree.
        progress: called with a line of text at the start of each part of the work, with the
            time scale xi of the layer before.

    Returns:
        The measurements, one entry per layer and direction. A module that was never called, or whose numbers are not
        finite, is named as unmeasured; of one that was called several times on separate sequences the longest is
        measured (see `longest_sequence`).

    Raises:
        ModuleError: the model is no module, or has no recurrent layer.
        ReplayError: a replay does not reproduce the outputs of any module; one of several is left out, and named.
        ValueError: length, an empty batch, or a target that does not fit the output.

    >>> model = nn.Sequential(nn.Linear(2, 8), nn.GRU(8, 16, batch_first=True))
    >>> diagnosis = measure(model, torch.randn(4, 50, 2))
    >>> [layer.info.name for layer in diagnosis.layers]
    ['1 l0']
    >>> diagnosis.layers[0].backward.xi.number() < 2
    True
    """
    if length is not None:
        length = whole_number("length", length, 2, "whole number of steps")
    generator = seeded(generator)
    check_function("progress", progress)
    progress = (lambda _: None) if progress is None else progress
    flushes = flushes_denormals()
    modules = recurrent_modules(model)
    progress("running the model")
    with unhindered():
        captured = capture(model, modules, batch, None if target is None else loss_of(target), use=True)
    with usual_modes():
        called, unmeasured = _called(model, modules, captured, batch)
        steps = [int(one.sequence.lengths.max()) for one in called] or [one.steps for one in unmeasured]
        longest = max([*steps, 1]) if length is None else length
        layers: list[LayerDiagnosis] = []
        unlike: list[ReplayError] = []
        while called:  # each is released when it has been measured
            one = called.pop(0)
            try:
                layers += _layers(one, length, theory, generator, flushes, progress)
            except ReplayError as error:
                unlike.append(error)
                unmeasured.append(Unmeasured(one.module.name, one.module.kind, str(error)))
    if unlike and not layers:
        raise unlike[0]
    finite = all(one.finite for one in unmeasured)
    # What a loss leaves out may be NaN on purpose, as outputs behind the sequences' ends.
    left_out = captured.loss is not None and math.isfinite(captured.loss)
    outside = numbers_outside(unwrapped(model), modules, captured.output_nan if finite and not left_out else None)
    return Diagnosis(type(unwrapped(model)).__name__, longest, tuple(layers), tuple(unmeasured), captured.loss, outside)


@dataclass(frozen=True)
class _Called:
    """A module, the sequence that it was called on, and what the model does with it."""

    module: RecurrentModule
    sequence: CapturedSequence
    use: Use


def _called(
    model: nn.Module, modules: Sequence[RecurrentModule], captured: Captured, batch: Any
) -> tuple[list[_Called], list[Unmeasured]]:
    """What can be measured, in forward order, and what cannot."""
    called, unmeasured = list[_Called](), _unreadable(model)
    exchanged = exchanged_states(captured.calls)
    for module in (as_called(module, captured.layers) for module in modules):
        calls = captured.calls.pop(module.module)  # released, so that only one module's are in memory twice
        found = _sequence(module, captured, calls)
        if isinstance(found, Unmeasured):
            unmeasured.append(found)
            continue
        use = _use(module, captured, calls, found, batch, exchanged.get(module.module, 0))
        if captured.loss is None:  # gradients are those of the output then, and said what the model reads alone
            found = replace(found, of_output=None, of_ends=None)
        called.append(_Called(module, found, use))
    return called, unmeasured


def _sequence(module: RecurrentModule, captured: Captured, calls: Sequence[Call]) -> CapturedSequence | Unmeasured:
    """The sequence to measure, or why there is none."""
    refused = captured.refused.get(module.module)
    if calls and refused is None and not module.untied:
        broken = non_finite(module, calls, of_loss=captured.loss is not None)
        if broken is not None:
            return Unmeasured(module.name, module.kind, broken, finite=False, steps=_steps(module, calls))
    try:
        return measurable_sequence(module, calls, refused=refused, uncalled=NEVER_CALLED)
    except CaptureError as error:
        called = bool(calls) or refused is not None
        steps = _steps(module, calls) if calls and refused is None else 0
        trained = _is_trained(module.module)
        return Unmeasured(module.name, module.kind, str(error), called=called, steps=steps, trained=trained)


def _is_trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _steps(module: RecurrentModule, calls: Sequence[Call]) -> int:
    """Of the longest sequence by what `critical_` takes for one; 0 where the calls do not show it."""
    try:
        return int(all_inputs(module, calls).lengths.max())
    except CaptureError:
        return 0


def _unreadable(model: nn.Module) -> list[Unmeasured]:
    return [
        Unmeasured(name, getattr(module, "original_name", type(module).__name__), reason)
        for name, module, reason in unreadable_modules(unwrapped(model))
    ]


def _use(
    module: RecurrentModule,
    captured: Captured,
    calls: Sequence[Call],
    found: CapturedSequence,
    batch: Any,
    exchanged: int,
) -> Use:
    own = module.module
    reached = captured.reached.get(own) if _is_trained(own) else None
    carried, attached = own in captured.carried, captured.carried.get(own, False)
    of_batch = reads_batch(data_of(calls[0].inputs), batch)
    sure = own not in captured.behind_zero  # that a gradient of 0 is one also after the first update
    return Use(
        reached=reached,
        windows=found.windows,
        restarts=restarts(own, calls),
        carried=carried,
        attached=attached,
        held=captured.held.get(own) if carried else None,
        along_batch=own in captured.along_batch,
        unread=unread_shorter(found),
        reverse_at_start=sure and reads_at_its_start(found, 1, module.directions),
        forward_at_start=sure and found.chains == 1 and reads_at_its_start(found, 0, module.directions),
        reads_batch=of_batch,
        padding_read=reads_repeated_end(found, module.directions),
        zero_gradient=own in captured.zero_gradient,
        reshaped=captured.reshaped.get(own),
        exchanged=exchanged,
        state_sizes=state_sizes(module.layers[0].cell.states, found),
        unread_places=unread_places(found, module.directions) if sure else (),
        ends_in_codes=of_batch is False and ends_in_own_codes(found.sequences.values, batch),
    )


def _layers(
    called: _Called,
    length: int | None,
    theory: bool,
    generator: torch.Generator,
    flushes: bool,
    progress: Progress,
) -> list[LayerDiagnosis]:
    module, captured = called.module, called.sequence
    length = int(captured.lengths.max()) if length is None else length
    progress(f"{module.label}: recomputing it in float64")
    replays = replay_module(module, captured)
    losses = loss_gradients(module, captured, replays)
    layers: list[LayerDiagnosis] = []
    for number, one in enumerate(replays):
        # A copy, so that what it keeps of its linearised steps goes when it has been measured.
        replay, info = replace(one.replay), _info(module, captured, one)
        progress(f"{info.name}: gradients, gates and states" + (", theory" if theory else "") + _latest(layers))
        inputs, (gates, memory) = input_facts(one.inputs, replay.lengths), gates_and_memory(replay, length)
        if called.use.reads_batch and (one.layer.layer, one.layer.direction) == (0, 0):
            inputs = with_data_facts(inputs, one.inputs, replay.lengths)
        forward = forward_profile(replay, generator)
        drawn, facts = LastOutput.drawn(replay, generator), weight_facts(one.layer)
        norms = gradient_norms(replay, drawn)
        loss = None if losses is None else losses[number]
        amplified = None if loss is None else loss.amplification
        if amplified is None:
            entering = drawn.entering(replay.steps)
            amplified = amplification(replay.lengths, norms["all"], entering, of_loss=False, steps=length)
        layers.append(
            LayerDiagnosis(
                info=info,
                check=one.check,
                inputs=inputs,
                weights=facts,
                gates=gates,
                memory=memory,
                moments=state_moments(replay),
                forward=forward,
                backward=by_lag(replay, norms),
                loss=None if loss is None else _of_loss(replay, loss),
                amplification=amplified,
                loss_steps=None if loss is None else loss.share_of_steps,
                jacobians=jacobians(replay),
                lyapunov=lyapunov(replay, generator),
                predicted=predicted(one.layer, _given(one, inputs)) if theory else Predicted(None, None, NOT_ASKED),
                start=known_start(one.layer, facts),
            )
        )
    progress(f"{module.label}: denormal numbers" + _latest(layers))
    log_norms = [one.log_norm for one in losses] if losses else [layer.backward.log_norm for layer in layers]
    small = denormals(module, captured, replays, log_norms, flushes)
    return [replace(layer, denormals=small, use=called.use) for layer in layers]


def _latest(layers: Sequence[LayerDiagnosis]) -> str:
    """For those who wait: how far the gradient comes in the layer before."""
    return f" ({layers[-1].info.name}: xi = {layers[-1].backward.xi})" if layers else ""


def _of_loss(replay: Replay, loss: LossGradient) -> Profile:
    """Its profile, with a rate only where all of it enters at the sequences' ends."""
    profile, share = by_lag(replay, loss.log_norm), loss.share_of_steps
    if share is not None and share * float(replay.lengths.double().mean()) < 2:
        return profile
    unknown = single(math.nan, reasons={PIECE_BY_PIECE if share is None else ENTERS_THROUGHOUT: True})
    return replace(profile, rate=unknown, xi=unknown, window=None, misfit=None)


def _info(module: RecurrentModule, captured: CapturedSequence, one: LayerReplay) -> LayerInfo:
    layer, replay = one.layer, one.replay
    some = next(gate.input for gate in layer.gates.values() if gate.input is not None)
    return LayerInfo(
        module=module.name,
        kind=module.kind,
        layer=layer.layer,
        direction=layer.direction,
        cell=full_name(layer.cell),
        options=_options(layer.cell),
        inputs=layer.inputs,
        hidden=layer.hidden,
        projection=None if layer.projection is None else layer.projection.shape[0],
        bias=any(gate.biases for gate in layer.gates.values()),
        batch_first=getattr(module.module, "batch_first", None),
        dropout=float(getattr(module.module, "dropout", 0.0)),
        parametrised=is_computed(layer),
        dtype=str(some.dtype).removeprefix("torch."),
        device=str(some.device),
        calls=captured.calls,
        chains=captured.chains,
        sequences=replay.batch,
        steps=replay.steps,
        mean_steps=float(replay.lengths.double().mean()),
        packed=captured.sequences.lengths is not None,
    )


def _options(cell: Cell) -> dict[str, Any]:
    values = {option.name: (getattr(cell, option.name), option.default) for option in fields(cell)}
    return {name: value for name, (value, default) in values.items() if value != default}


def _given(one: LayerReplay, inputs: InputFacts) -> InputFacts:
    """Of what the cell is given: the layer's ``inputs``, or features of them where it computes some."""
    if one.layer.features is None:
        return inputs
    return input_facts(one.replay.inputs[..., : one.layer.inputs], one.replay.lengths)
