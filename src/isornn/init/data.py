"""A start for the inputs that each recurrent layer of a model receives, measured on a batch."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from isornn.capture.calls import Call, RecurrentModule, capture, recurrent_modules
from isornn.capture.parts import CaptureError
from isornn.capture.sequences import CapturedInputs, CapturedSequence, all_inputs, longest_sequence
from isornn.capture.use import reads_batch
from isornn.cells import Cell, Input, Spec
from isornn.cells.arguments import check_generator
from isornn.init.layer_input import LayerInput
from isornn.init.writing import all_or_nothing, check_settable
from isornn.modes import unhindered
from isornn.nn import draws
from isornn.nn.gate_tensors import FeatureMap, ModuleError, RecurrentLayer, owned_by
from isornn.nn.layer_step import LayerStep, gate_inputs, own_time, upwards
from isornn.nn.sequences import within
from isornn.theory.critical_points.rule import SEEN_TO_LEARN, WRITTEN
from isornn.warn import warn

Report = Callable[["LayerStart"], object]
SpecFor = Callable[[Cell, float, Input], Spec]
_ROUNDED = 1.0  # of a pre-activation: by so much a gate may be off where biases cancel large means
_HALF_PRECISION = 0.05  # of the largest value; bfloat16 and some steps of it
_OTHER_INPUT = 2.0  # times as large or as long as in eval mode is another input in training; dropout's is below
_RIDGE = 1e-9  # of the features' mean square, so that a constant feature has a finite weight


class StandardisedInput(UserWarning):
    """A start drawn without a batch or law of the input, as if every layer's input had mean 0 and variance 1.

    >>> import warnings
    >>> from isornn.init import critical_
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     _ = critical_(nn.GRU(1, 8), length=100)
    >>> caught[0].category.__name__
    'StandardisedInput'
    """


class UnnormalisedInput(UserWarning):
    """A start for data whose features have means or scales that weights and biases make up for only at first, or rare
    values that are far larger than the others.

    >>> import warnings
    >>> from isornn.init import critical_
    >>> kelvin = 290 + torch.randn(8, 20, 2)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     _ = critical_(nn.GRU(2, 8, batch_first=True), batch=kelvin)
    >>> caught[0].category.__name__
    'UnnormalisedInput'
    """


@dataclass(frozen=True)
class LayerStart:
    """What one layer was found to receive, and the start that it was given.

    Args:
        where: the layer.
        length: T that it was set for.
        input: what it receives; ``None`` where the batch did not reach it, and it was set as if for input with mean 0
            and variance 1.
        spec: the law that its weights and biases were drawn by, for what its gates read less its mean: the input, or
            ``Phi`` of it where the layer has a feature map.

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

    def __str__(self) -> str:
        """One line."""
        if self.input is None:
            return f"{self.where}: not reached by the batch; set for {self.length:g} steps of standardised input"
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
            there is no length; as `isornn.capture.calls.capture`.
        SpecError, ModuleError: as `isornn.init.critical_`.
    """
    check_generator(generator)
    modules = in_forward_order(model, batch)
    for number, found in enumerate(modules):
        _warn_of_shared(found, modules[:number])
    starts, unread = list[LayerStart](), list[CaptureError]()
    with all_or_nothing([layer for found in modules for layer in found.layers], generator):
        for found in modules:
            try:
                captured = _inputs(model, found, batch)
            except CaptureError as error:
                unread.append(error)
                longest = max((start.length for start in starts), default=None) if length is None else length
                if longest is None:
                    raise _unreached(error) from None
                starts += [_set_unreached(layer, longest, spec_for, generator) for layer in found.layers]
                continue
            steps = _longest(found, captured) if length is None else length
            for received in received_by(found, captured):
                starts.append(_set(received, steps, spec_for, generator))
                if (received.layer.layer, received.layer.direction) == (0, 0):
                    _warn_of_unnormalised(starts[-1], captured, batch)
        if len(unread) == len(modules):
            raise _unreached(unread[0])
        for reason in unread:
            _warn_of_unread(reason)
        _warn_of_other_input_in_training(model, modules, batch, length)
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
    _warn_of_shared(found, [other for other in modules if other is not found])
    with all_or_nothing([layer], generator):
        try:
            captured = _inputs(model, found, batch)
        except CaptureError as error:
            _warn_of_unread(error)
            return _set_unreached(layer, length, spec_for, generator)
        _warn_of_other_input_in_training(model, [found], batch, length)
        place = (layer.layer, layer.direction)
        own = (one for one in received_by(found, captured) if (one.layer.layer, one.layer.direction) == place)
        return _set(next(own), length, spec_for, generator)


def in_forward_order(model: nn.Module, batch: Any) -> list[RecurrentModule]:
    """The recurrent modules of a model by their first calls on a batch; those that it does not reach come last."""
    modules = recurrent_modules(model)
    with unhindered():
        order = capture(model, modules, batch, None).order
    place = {module: number for number, module in enumerate(order)}
    return sorted(modules, key=lambda found: place.get(found.module, len(place)))


def _unreached(error: CaptureError) -> ValueError:
    return ValueError(f"batch: it reaches no recurrent layer whose input can be read; {error}")


def _warn_of_unread(error: CaptureError) -> None:
    warn(f"{error}; set for standardised input", StandardisedInput)


def _warn_of_shared(found: RecurrentModule, others: Sequence[RecurrentModule]) -> None:
    own = set(map(id, found.module.parameters(recurse=False)))
    for other in others:
        if own.intersection(map(id, other.module.parameters(recurse=False))):
            warn(f"{found.name}: it shares parameters with {other.name}, and sets them for its own input")


def _warn_of_unnormalised(start: LayerStart, captured: CapturedInputs, batch: Any) -> None:
    assert start.input is not None
    wrong = start.input.unnormalised(each=reads_batch(captured.sequences.values, batch) is True)
    if wrong is not None:
        warn(f"{start.where}: the features of its input {wrong}", UnnormalisedInput)


def _longest(found: RecurrentModule, captured: CapturedInputs) -> int:
    """Steps of the longest sequence.

    Raises:
        ValueError: it has one, which needs no start.
    """
    steps = int(captured.lengths.max())
    if steps < 2:
        raise ValueError(
            f"batch: {found.name or found.kind} is given sequences of one step; give length=, or run the model on "
            "whole sequences: batch=lambda model: ..."
        )
    return steps


def _warn_of_other_input_in_training(
    model: nn.Module, modules: Sequence[RecurrentModule], batch: Any, length: float | None
) -> None:
    """Name what is set for the input that it has in eval mode and has another one in training, as with targets that a
    decoder reads there; or, without a length, as many steps. A model that cannot be run so, as without its targets, is
    not judged."""
    found_wrong = list[str]()
    with unhindered(), suppress(Exception):
        runs = [capture(model, modules, batch, None, training=training).calls for training in (False, True)]
        for found in modules:
            as_set, in_training = (_size_and_steps(found, calls[found.module]) for calls in runs)
            if as_set is None or in_training is None:
                continue
            if _unlike(as_set[0], in_training[0]):
                sizes = f"{as_set[0]:.2g}; in training mode that is {in_training[0]:.2g}"
                differs = f"input in eval mode, of root mean square {sizes}"
            elif length is None and _unlike(as_set[1], in_training[1]):
                differs = f"{as_set[1]} steps in eval mode; in training mode these are {in_training[1]}"
            else:
                continue
            found_wrong.append(
                f"{found.name or found.kind}: it is set for its {differs}. If it reads targets there (teacher "
                "forcing), run the model so: batch=lambda model: model.train()(...)",
            )
    for wrong in found_wrong:  # outside, as a warning may be an error
        warn(wrong)


def _unlike(one: float, other: float) -> bool:
    return max(one, other) > _OTHER_INPUT * min(one, other)


def _size_and_steps(found: RecurrentModule, calls: Sequence[Call]) -> tuple[float, int] | None:
    """Of all inputs the root mean square, and the steps of the longest sequence; ``None`` where that is not known."""
    try:
        inputs = all_inputs(found, calls) if calls else None
    except CaptureError:
        inputs = None
    if inputs is None:
        return None
    inside = within(inputs.lengths, len(inputs.sequences.values))
    size = float(inputs.sequences.values[inside].double().square().mean().sqrt())
    return size, int(inputs.lengths.max())


def _inputs(model: nn.Module, found: RecurrentModule, batch: Any) -> CapturedInputs:
    """What the module runs over, with a warning where its forward makes something else of it; raises as `inputs_of`."""
    calls = _calls(model, found, batch)
    inputs = _joined(found, calls)
    if _has_own_forward(found.module) and not _follows_its_class(found, longest_sequence(found, calls)):
        warn(
            f"{found.name or found.kind}: its forward is its own, and does not return what its weights make of its "
            "input; it is set for that input, not for what forward may make of it",
        )
    return inputs


def _has_own_forward(module: nn.Module) -> bool:
    """Whether it is neither torch's nor isornn's."""
    package = getattr(inspect.unwrap(module.forward), "__module__", "") or ""
    return package.partition(".")[0] not in ("torch", "isornn")


def _follows_its_class(found: RecurrentModule, sequence: CapturedSequence) -> bool:
    """Whether its outputs are those of its weights on its inputs, as far as half precision shows; not judged where it
    was given a state."""
    if sequence.initial is not None:
        return True
    whole = replace(sequence.sequences, lengths=sequence.lengths)
    top = max(layer.layer for layer in found.layers)
    received = received_by(found, CapturedInputs(whole, sequence.previous))
    outputs = [
        own_time(whole, LayerStep.of(one.layer).run(one.gate_inputs()), one.layer.direction)
        for one in received
        if one.layer.layer == top
    ]
    inside = within(sequence.lengths, len(sequence.output))
    made, returned = torch.cat(outputs, -1)[inside], sequence.output.double()[inside]
    return bool((made - returned).abs().max() <= _HALF_PRECISION * made.abs().max())


def inputs_of(model: nn.Module, found: RecurrentModule, batch: Any) -> CapturedInputs:
    """What the module runs over.

    Raises:
        CaptureError: names the module and the reason for which that is not known.
        ModuleError: the model gives the module its weights at each call.
    """
    return _joined(found, _calls(model, found, batch))


def _calls(model: nn.Module, found: RecurrentModule, batch: Any) -> list[Call]:
    """The module's calls on a batch; raises as `inputs_of`."""
    with unhindered():
        captured = capture(model, [found], batch, None)
    calls, reason = captured.calls[found.module], captured.refused.get(found.module)
    if reason is not None:
        raise CaptureError(f"{found.name or found.kind}: its input is not known: {reason}")
    if not calls:
        raise CaptureError(f"{found.name or found.kind}: the batch does not reach it")
    if not all(owned_by(found.module, layer) for layer in captured.layers.get(found.module, ())):
        raise ModuleError(
            f"{found.name or found.kind}: it computes with tensors that the model gives it at each call "
            "(torch.func.functional_call), so values written to its parameters are lost"
        )
    return calls


def _joined(found: RecurrentModule, calls: Sequence[Call]) -> CapturedInputs:
    """What several calls ran over; raises as `inputs_of`."""
    try:
        return all_inputs(found, calls)
    except CaptureError as error:
        raise CaptureError(f"{found.name or found.kind}: its input is not known: {error}") from None


@dataclass(frozen=True)
class Received:
    """A layer with its sequence (T, B, D) in its own direction, the input before that, and lengths (B,)."""

    layer: RecurrentLayer
    sequence: Tensor
    previous: Tensor | None
    lengths: Tensor

    def gate_inputs(self) -> Tensor:
        """What the input matrices multiply."""
        return gate_inputs(self.layer, self.sequence, self.previous)


def received_by(found: RecurrentModule, captured: CapturedInputs) -> Iterator[Received]:
    """Every layer from the bottom, each given the output of the one below as it is when the next is asked for."""
    top = max(layer.layer for layer in found.layers)
    for one in upwards(found.layers, captured.sequences):
        received = Received(one.layer, one.inputs, captured.previous, captured.lengths)
        yield received
        if one.layer.layer < top:
            one.output = LayerStep.of(one.layer).run(received.gate_inputs())


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
        _set_without_biases(layer, x, received.lengths, spec, generator)
    return LayerStart(layer.where, length, own, spec)


def _set_features(features: FeatureMap, seen: LayerInput, generator: torch.Generator | None) -> None:
    """Give ``Phi(x)``, which takes a candidate's place, mean 0 and a candidate's size."""
    variance = SEEN_TO_LEARN if features.bounded else WRITTEN
    draws.redraw_features(features, variance / (seen.size or 1.0), seen.means, generator)


def _set_unreached(
    layer: RecurrentLayer, length: float, spec_for: SpecFor, generator: torch.Generator | None
) -> LayerStart:
    spec = spec_for(layer.cell, length, Input())
    check_settable(layer, spec)
    draws.redraw(layer, spec, generator)
    return LayerStart(layer.where, length, None, spec)


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


# ---- layers without biases ----


def _set_without_biases(
    layer: RecurrentLayer, x: Tensor, lengths: Tensor, spec: Spec, generator: torch.Generator | None
) -> None:
    """Let the mean of the input (T, B, D) take the biases' place.

    With w that minimises the variance of ``w x`` where its mean is 1, a gate that should have bias b gets
    ``U (I - mu w^T) + b w^T``: of mean b, where ``U x`` has none. What w x varies adds ``b^2 Var(w x)`` to the gate's
    variance, so a bias of size b is possible where that is at most 1: exactly for a feature that is constant, or
    features that have a constant sum. It is judged on sequences that w was not fitted to: of few rows some combination
    is constant by chance.

    Raises:
        ModuleError: the input has no such mean.
    """
    sequences = [x[:length, number].double().cpu() for number, length in enumerate(lengths.tolist())]
    strength = _strength(sequences)
    unbiased = {name: replace(law, bias_mean=0.0, bias_var=0.0, bias_law=None) for name, law in spec.gates.items()}
    plain = replace(spec, gates=unbiased)
    check_settable(layer, plain)
    wanted = draws.biases((layer.hidden,), spec, generator)
    largest = max(float(bias.abs().max()) for bias in wanted.values())
    rows = torch.cat(sequences)
    if not largest**2 <= strength or any(
        layer.gates[name].input is None and bias.any() for name, bias in wanted.items()
    ):
        raise ModuleError(
            f"{layer.where}: it has bias=False, and gates that need biases up to {largest:.1f}; the mean of its input "
            f"could take their place, but {_why_too_weak(rows, strength, largest)}"
        )
    means, w = rows.mean(0), _steadiest(rows)
    draws.redraw(layer, plain, generator)
    for name, tensors in layer.gates.items():
        if tensors.input is not None:
            offset = wanted[name].cpu() - tensors.input.double().cpu() @ means
            tensors.input.add_(torch.outer(offset, w).to(tensors.input))


def _why_too_weak(rows: Tensor, strength: float, largest: float) -> str:
    """Why the mean of the input cannot take the place of biases up to ``largest``, and what helps."""
    if not largest**2 <= _squared_mean_over_variance(rows, rows):
        return (
            f"no combination of its features has a mean above {strength**0.5:.2g} standard deviations; build it with "
            "bias=True"
        )
    return (
        "the combination of its features that is steadiest in one half of the batch's sequences has in the other half "
        f"a mean of {strength**0.5:.2g} standard deviations, as where symbols occur in one half only; give a larger "
        "batch, or build it with bias=True"
    )


def _strength(sequences: list[Tensor]) -> float:
    """Squared mean over the variance of ``w x``: w of every other sequence, x of the rest; of one sequence, by halves.

    0 where there are no two rows.
    """
    parts = sequences if len(sequences) > 1 else list(sequences[0].tensor_split(2))
    seen, unseen = torch.cat(parts[::2]), torch.cat(parts[1::2])
    return _squared_mean_over_variance(seen, unseen) if len(unseen) else 0.0


def _squared_mean_over_variance(fitted: Tensor, rows: Tensor) -> float:
    """Of ``w x`` over rows x (n, D), with w of the rows ``fitted``."""
    combined = rows @ _steadiest(fitted)
    return float((combined.mean().square() / combined.var(correction=0)).nan_to_num(0.0, posinf=math.inf))


def _steadiest(rows: Tensor) -> Tensor:
    """w (D,) that minimises the variance of ``w x`` where its mean is 1, of rows (n, D): ``C^-1 mu`` but for its scale.

    With fewer rows than features by ``(C + r)^-1 mu = (mu - M^T (M M^T + n r)^-1 M mu) / r`` with the deviations M.
    """
    means = rows.mean(0)
    moved = rows - means
    ridge = len(rows) * (_RIDGE * rows.square().mean() + torch.finfo(torch.float64).tiny)
    few = len(rows) < rows.shape[1]
    gram = moved @ moved.T if few else moved.T @ moved
    gram.diagonal().add_(ridge)
    w = means - moved.T @ torch.linalg.solve(gram, moved @ means) if few else torch.linalg.solve(gram, means)
    return w / (w @ means)
