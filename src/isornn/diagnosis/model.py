"""Measure every recurrent layer of a model on a batch."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from isornn.cells import Cell, full_name
from isornn.diagnosis.backward import LastOutput, backward_profile, by_lag
from isornn.diagnosis.capture import Captured, run
from isornn.diagnosis.denormals import denormals
from isornn.diagnosis.forward import forward_profile
from isornn.diagnosis.gates import gate_activities, memory
from isornn.diagnosis.heard import Heard, heard
from isornn.diagnosis.inputs import input_facts
from isornn.diagnosis.jacobians import jacobians, lyapunov
from isornn.diagnosis.layers import RecurrentModule, recurrent_modules
from isornn.diagnosis.losses import Target, loss_gradient_norms, loss_of
from isornn.diagnosis.moments import state_moments
from isornn.diagnosis.predicted import NOT_ASKED, Predicted, predicted
from isornn.diagnosis.records import Diagnosis, LayerDiagnosis, Place, Unmeasured
from isornn.diagnosis.replaying import Replayed, replayed
from isornn.diagnosis.weights import weight_facts
from isornn.modes import flushes_denormals, unhindered, usual_modes

SEED = 0


def measure(
    model: nn.Module,
    batch: Any,
    length: int | None = None,
    target: Target | None = None,
    *,
    theory: bool = True,
    generator: torch.Generator | None = None,
) -> Diagnosis:
    """How far each recurrent layer of a model sees on the user's data: what is kept, what comes back, and how fast.

    The model runs once on the batch, in eval mode, and is left bit by bit as it was (see `kept_as_found`). Every layer
    and direction is then replayed in float64 from the inputs and initial states that it had, checked against what the
    module gave, and measured along that replay.

    Args:
        model: holds torch.nn.RNN, LSTM, GRU of any depth, direction and projection, their ...Cell forms stepped by
            hand, or isornn's layers.
        batch: what the model is called with: a tensor or PackedSequence, a tuple of positional arguments, or a dict of
            keyword arguments. Its layout is the model's own business.
        length: T, how many steps the layers should bridge; those of the longest sequence by default.
        target: for the gradient of the loss: a function of the model's output, integer labels (cross entropy), or
            floating point values (mean squared error).
        theory: whether to ask the theory what it expects of such layers, which takes most of the time.
        generator: of the random directions; seeded with 0 by default, so that equal calls agree.

    Returns:
        The measurements, one entry a layer and direction. A module that was never called is named as such; of one that
        was called several times on separate sequences the longest is measured (see `heard`).

    Raises:
        ModuleError: the model has no recurrent layer.
        ReplayError: a replay is not what the module gave.
        ValueError: length, or a target that does not fit the output.

    >>> model = nn.Sequential(nn.Linear(2, 8), nn.GRU(8, 16, batch_first=True))
    >>> diagnosis = measure(model, torch.randn(4, 50, 2), theory=False)
    >>> [layer.place.name for layer in diagnosis.layers]
    ['1 l0']
    >>> diagnosis.layers[0].backward.xi.number() < 2
    True
    """
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 2):
        raise ValueError(f"length: {length!r} is not allowed; it is a whole number of steps, at least 2")
    generator = torch.Generator().manual_seed(SEED) if generator is None else generator
    flushes = flushes_denormals()
    modules = recurrent_modules(model)
    with unhindered():
        captured = run(model, modules, batch, None if target is None else loss_of(target))
    with usual_modes():
        return _diagnosis(type(model).__name__, modules, captured, length, theory, generator, flushes)


def _diagnosis(
    model: str,
    modules: list[RecurrentModule],
    captured: Captured,
    length: int | None,
    theory: bool,
    generator: torch.Generator,
    flushes: bool,
) -> Diagnosis:
    unmeasured = [reason for module in modules if (reason := _unmeasured(module, captured.calls[module.module]))]
    named = {reason.module for reason in unmeasured}
    sequences = {
        module.name: heard(module, captured.calls.pop(module.module)) for module in modules if module.name not in named
    }
    steps = max((int(found.lengths.max()) for found in sequences.values()), default=2)
    wanted = max(steps, 2) if length is None else length
    layers: list[LayerDiagnosis] = []
    for module in modules:
        if module.name not in named:
            layers += _measured(module, sequences.pop(module.name), wanted, theory, generator, flushes)
    return Diagnosis(model, wanted, tuple(layers), tuple(unmeasured), captured.loss)


def _unmeasured(module: RecurrentModule, calls: list[Any]) -> Unmeasured | None:
    reason = None
    if not calls:
        reason = "it was never called on this batch"
    elif getattr(module.module, "untied", False):
        reason = "its weights are fresh at every step, so that a run cannot be repeated"
    return None if reason is None else Unmeasured(module.name, module.kind, reason)


def _measured(
    module: RecurrentModule, found: Heard, length: int, theory: bool, generator: torch.Generator, flushes: bool
) -> list[LayerDiagnosis]:
    places = replayed(module, found)
    losses = loss_gradient_norms(module, found, places)
    layers: list[LayerDiagnosis] = []
    for number, one in enumerate(places):
        replay = one.replay
        facts = input_facts(one.heard, replay.lengths)
        layers.append(
            LayerDiagnosis(
                place=_place(module, found, one),
                check=one.check,
                inputs=facts,
                weights=weight_facts(one.place),
                gates=gate_activities(replay),
                memory=memory(replay, length),
                moments=state_moments(replay),
                forward=forward_profile(replay, generator),
                backward=backward_profile(replay, LastOutput.drawn(replay, generator)),
                loss=None if losses is None else by_lag(replay, losses[number]),
                loss_steps=_share_read(found),
                jacobians=jacobians(replay),
                lyapunov=lyapunov(replay, generator),
                predicted=predicted(one.place, facts.law) if theory else Predicted(None, None, NOT_ASKED),
            )
        )
    small = denormals(module, found, places, losses or [layer.backward.log_norm for layer in layers], flushes)
    return [replace(layer, denormals=small) for layer in layers]


def _share_read(found: Heard) -> float | None:
    """Of the steps of the module's sequences, those at which a gradient enters its outputs or last states."""
    if found.of_output is None or found.of_ends is None or len(found.of_ends) > 1:
        return None
    entered = (found.of_output != 0).any(-1)
    (places,) = found.of_ends.values()
    last = (found.lengths - 1).unsqueeze(0)
    reached = torch.stack([(part != 0).any(-1) for states in places for part in states]).any(0)
    entered.scatter_(0, last, entered.gather(0, last) | reached)
    return float(entered.sum()) / int(found.lengths.sum())


def _place(module: RecurrentModule, found: Heard, one: Replayed) -> Place:
    place, replay = one.place, one.replay
    some = next(gate.input for gate in place.gates.values() if gate.input is not None)
    return Place(
        module=module.name,
        kind=module.kind,
        layer=place.layer,
        direction=place.direction,
        cell=full_name(place.cell),
        options=_options(place.cell),
        inputs=place.inputs,
        hidden=place.hidden,
        projection=None if place.projection is None else place.projection.shape[0],
        bias=any(gate.biases for gate in place.gates.values()),
        batch_first=getattr(module.module, "batch_first", None),
        dropout=float(getattr(module.module, "dropout", 0.0)),
        parametrised=parametrize.is_parametrized(module.module),
        dtype=str(some.dtype).removeprefix("torch."),
        device=str(some.device),
        calls=found.calls,
        chains=found.chains,
        sequences=replay.batch,
        steps=replay.steps,
        mean_steps=float(replay.lengths.double().mean()),
        packed=found.sequences.lengths is not None,
    )


def _options(cell: Cell) -> dict[str, Any]:
    values = {option.name: (getattr(cell, option.name), option.default) for option in fields(cell)}
    return {name: value for name, (value, default) in values.items() if value != default}
