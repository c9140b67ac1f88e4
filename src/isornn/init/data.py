"""A start for the inputs that each recurrent layer of a model receives, measured on a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isornn.capture.modules import RecurrentModule, recurrent_modules
from isornn.capture.parts import CaptureError
from isornn.capture.sequences import CapturedInputs
from isornn.cells import Cell, Input, Spec
from isornn.cells.arguments import check_generator
from isornn.init.input_warnings import (
    warn_of_other_input_in_training,
    warn_of_own_forward,
    warn_of_shared,
    warn_of_unnormalised,
    warn_of_unread,
)
from isornn.init.layer_input import LayerInput
from isornn.init.received import Received, calls_of, in_forward_order, inputs_of, joined, received_by
from isornn.init.without_biases import set_without_biases
from isornn.init.writing import all_or_nothing, check_settable, warn_of_unreadable
from isornn.modes import usual_modes
from isornn.nn import draws
from isornn.nn.gate_tensors import FeatureMap, ModuleError, RecurrentLayer
from isornn.nn.ownership import check_alone
from isornn.theory.critical_points.rule import SEEN_TO_LEARN, WRITTEN
from isornn.warn import warn

Report = Callable[["LayerStart"], object]
SpecFor = Callable[[Cell, float, Input], Spec]
_ROUNDED = 1.0  # of a pre-activation: by so much a gate may be off where biases cancel large means


@dataclass(frozen=True)
class LayerStart:
    """What one layer was found to receive, and the start that it was given.

    Args:
        where: the layer.
        length: T that it was set for.
        input: what it receives; ``None`` where that is not known, and it was set as if for input with mean 0 and
            variance 1.
        spec: the law that its weights and biases were drawn by, for what its gates read less its mean: the input, or
            ``Phi`` of it where the layer has a feature map.
        unread: why its input is not known, as that the batch does not reach it.

    >>> from isornn.init import critical_
    >>> starts = []
    >>> _ = critical_(nn.LSTM(1, 8), length=100, batch=torch.randn(20, 4, 1), report=starts.append)
    >>> starts[0].where, starts[0].length
    ('LSTM l0', 100)
    """

    where: str
    length: float
    input: LayerInput | None
    spec: Spec
    unread: str | None = None

    def __str__(self) -> str:
        """One line."""
        if self.input is None:
            return f"{self.where}: set for {self.length:g} steps of standardised input; {self.unread}"
        return f"{self.where}: set for {self.length:g} steps; {self.input}"


@torch.no_grad()
def start_for_batch_(
    model: nn.Module,
    batch: Any,
    length: float | None,
    spec_for: SpecFor,
    generator: torch.Generator | None,
    report: Report | None,
) -> None:
    """Draw every recurrent layer for the input that it receives, in the order in which the model calls them.

    A layer is measured when those below it have been set, by a run of the model in eval mode that leaves everything
    else as it was. Where its input has a mean mu, every gate's bias is lowered by ``U mu``, so that gates and
    candidates start in the middle of their range; the spec then holds for the input less its mean.

    Args:
        model, batch, length, generator, report: as `isornn.init.critical_`.
        spec_for: the spec by cell, length and law of the input.

    Raises:
        ValueError: the batch reaches no recurrent layer whose input can be read, or gives one sequences of one step and
            there is no length; as `isornn.capture.run.capture`.
        SpecError, ModuleError: as `isornn.init.critical_`.
    """
    check_generator(generator)
    modules = in_forward_order(model, batch)
    check_alone(model)
    for number, found in enumerate(modules):
        warn_of_shared(found, modules[:number])
    starts, unread = list[LayerStart](), list[CaptureError]()
    with all_or_nothing([layer for found in modules for layer in found.layers], generator):
        for found in modules:
            try:
                captured = _inputs(model, found, batch)
            except CaptureError as error:
                unread.append(error)
                steps = _longest_of_any(model, modules, batch) if length is None else length
                if steps is None:
                    raise _unreached(error) from None
                starts += [_set_unread(layer, steps, spec_for, generator, error) for layer in found.layers]
                continue
            steps = _longest(found, captured) if length is None else length
            for received in received_by(found, captured):
                start = _set(received, steps, spec_for, generator)
                starts.append(start)
                if start.input is not None and (received.layer.layer, received.layer.direction) == (0, 0):
                    warn_of_unnormalised(start.where, start.input, captured, batch)
        if len(unread) == len(modules):
            raise _unreached(unread[0])
        for reason in unread:
            warn_of_unread(reason)
        warn_of_other_input_in_training(model, modules, batch, length)
        warn_of_unreadable(model)
        if report is not None:
            for start in starts:
                report(start)


@torch.no_grad()
def redraw_for_batch_(
    model: nn.Module,
    layer: RecurrentLayer,
    batch: Any,
    length: float,
    spec_for: SpecFor,
    generator: torch.Generator | None,
) -> LayerStart:
    """Draw one layer and direction for the input that it receives; all others stay as they are.

    Args, raises: as `start_for_batch_`.
    """
    check_generator(generator)
    modules = recurrent_modules(model)
    found = next(found for found in modules if found.module is layer.module)
    warn_of_shared(found, [other for other in modules if other is not found])
    with all_or_nothing([layer], generator):
        try:
            captured = _inputs(model, found, batch)
        except CaptureError as error:
            warn_of_unread(error)
            return _set_unread(layer, length, spec_for, generator, error)
        warn_of_other_input_in_training(model, [found], batch, length)
        place = (layer.layer, layer.direction)
        own = (one for one in received_by(found, captured) if (one.layer.layer, one.layer.direction) == place)
        return _set(next(own), length, spec_for, generator)


def _inputs(model: nn.Module, found: RecurrentModule, batch: Any) -> CapturedInputs:
    """As `inputs_of`, with a warning where that is not all that counts."""
    calls = calls_of(model, found, batch)
    inputs = joined(found, calls)
    warn_of_own_forward(found, calls)
    return inputs


def _unreached(error: CaptureError) -> ValueError:
    return ValueError(f"batch: it reaches no recurrent layer whose input can be read; {error}")


def _longest(found: RecurrentModule, captured: CapturedInputs) -> int:
    """Steps of the longest sequence.

    Raises:
        ValueError: it has one, which needs no start.
    """
    steps = int(captured.lengths.max())
    if steps < 2:
        raise ValueError(
            f"batch: {found.label} is given sequences of one step; give length=, or run the model on "
            "whole sequences: batch=lambda model: ..."
        )
    return steps


def _longest_of_any(model: nn.Module, modules: Sequence[RecurrentModule], batch: Any) -> int | None:
    """Of those modules whose input can be read."""
    steps = list[int]()
    for found in modules:
        with suppress(CaptureError):
            steps.append(_longest(found, inputs_of(model, found, batch)))
    return max(steps, default=None)


@usual_modes()
@torch.no_grad()
def _set(received: Received, length: float, spec_for: SpecFor, generator: torch.Generator | None) -> LayerStart:
    layer = received.layer
    seen = own = LayerInput.of(received.sequence, received.lengths, layer.where)
    if layer.features is not None:
        _set_features(layer.features, own, generator)
    x = received.gate_inputs()[..., : layer.inputs]  # x_(t-1), which some read too, has the same law
    if layer.features is not None:
        seen = LayerInput.of(x, received.lengths, layer.where)
    spec = spec_for(layer.cell, length, seen.law(layer.where))
    if any(gate.biases for gate in layer.gates.values()):
        check_settable(layer, spec)
        draws.redraw(layer, spec, generator)
        _centre(layer, seen.means)
    else:
        set_without_biases(layer, x, received.lengths, spec, generator)
    return LayerStart(layer.where, length, own, spec)


def _set_features(features: FeatureMap, seen: LayerInput, generator: torch.Generator | None) -> None:
    """Give ``Phi(x)``, which takes a candidate's place, mean 0 and a candidate's size."""
    variance = SEEN_TO_LEARN if features.bounded else WRITTEN
    draws.redraw_features(features, variance / (seen.size or 1.0), seen.means, generator)


@usual_modes()
@torch.no_grad()
def _set_unread(
    layer: RecurrentLayer, length: float, spec_for: SpecFor, generator: torch.Generator | None, error: CaptureError
) -> LayerStart:
    spec = spec_for(layer.cell, length, Input())
    check_settable(layer, spec)
    draws.redraw(layer, spec, generator)
    return LayerStart(layer.where, length, None, spec, str(error))


def _centre(layer: RecurrentLayer, means: Tensor) -> None:
    """Lower every bias by what the mean of the input adds to its gate.

    Raises:
        ModuleError: the bias would be beyond what the module's dtype can hold.
    """
    coarse = 0.0
    for name, gate in layer.gates.items():
        for weight in (gate.input, gate.previous_input):
            if weight is not None and gate.biases:
                bias = gate.biases[0]
                bias.copy_(bias.double() - weight.double() @ means.to(weight.device))
                if not bool(bias.isfinite().all()):
                    dtype = str(bias.dtype).removeprefix("torch.")
                    raise ModuleError(
                        f"{layer.where}: gate {name} would need biases that {dtype} cannot hold, as its input has "
                        f"means up to {float(means.abs().max()):.3g}; subtract the mean from the data"
                    )
                coarse = max(coarse, torch.finfo(bias.dtype).eps * float(bias.abs().max()))
    if coarse > _ROUNDED:
        warn(
            f"{layer.where}: its input has means up to {float(means.abs().max()):.3g}, beside which the module's dtype "
            f"resolves pre-activations to {coarse:.2g} only; subtract the mean from the data",
        )
