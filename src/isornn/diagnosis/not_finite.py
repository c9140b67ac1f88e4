"""Where NaN or infinite numbers come first: in which layer, at which step, in what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from isornn.capture.calls import Call, States, data_of
from isornn.capture.modules import RecurrentModule
from isornn.capture.parts import CaptureError
from isornn.capture.sequences import CapturedSequence, longest_sequence
from isornn.diagnosis.replay import initial_states
from isornn.nn.gate_tensors import RecurrentLayer
from isornn.nn.layer_step import LayerStep, cast
from isornn.nn.stepped import stepped
from isornn.nn.upwards import gate_inputs, upwards


def non_finite(module: RecurrentModule, calls: Sequence[Call], *, of_loss: bool) -> str | None:
    """What is not finite and where it is first: weights, inputs, states, outputs, gradients; ``None`` if all is.

    Args:
        of_loss: whether the calls' gradients are those of a loss; others are not looked at.
    """
    for what, values in _tensors(module, calls, of_loss):
        bad = ~values.isfinite()
        if bool(bad.any()):
            kind = "NaN" if bool(values.isnan().any()) else "infinite"
            counted = f"{int(bad.sum()):,} of the {bad.numel():,} numbers in {what} are {kind}"
            return f"{counted}{_where(what, module, calls)}"
    return None


def numbers_outside(
    model: nn.Module, modules: Sequence[RecurrentModule], output_nan: tuple[int, int] | None
) -> tuple[str, ...]:
    """Parameters beside those of recurrent ``modules`` that are not finite, and the model's output where it has NaN, of
    which ``output_nan`` says how many of how many."""
    known = {id(own) for found in modules for own in found.module.parameters()}
    wrong = []
    for name, parameter in model.named_parameters():
        bad = int((~parameter.detach().isfinite()).sum())
        if bad and id(parameter) not in known:
            wrong.append(f"{bad:,} of the {parameter.numel():,} numbers in {name} are NaN or infinite")
    if output_nan is not None and output_nan[0]:
        wrong.append(f"{output_nan[0]:,} of the {output_nan[1]:,} numbers in the model's output are NaN")
    return tuple(wrong)


_INPUT, _STATE, _OUTPUT = "its input", "its initial state", "its output"
OF_GRADIENT = "the gradient of the loss with respect to its output"


def _tensors(module: RecurrentModule, calls: Sequence[Call], of_loss: bool) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in module.module.named_parameters():
        yield f"its {name}", parameter.detach()
    for call in calls:
        if call.lengths is None:  # what lengths exclude may be anything
            yield _INPUT, data_of(call.inputs)
        for part in call.state or ():
            yield _STATE, part
    for call in calls:
        for part in (data_of(call.output), *call.final):
            yield _OUTPUT, part.detach()
    for call in calls if of_loss else ():
        for grad in (call.of_output, *(call.of_final or ())):
            if grad is not None:
                yield OF_GRADIENT, data_of(grad)


def _where(what: str, module: RecurrentModule, calls: Sequence[Call]) -> str:
    if what not in (_INPUT, _OUTPUT, OF_GRADIENT):
        return ""
    try:
        found = longest_sequence(module, calls)
    except CaptureError:
        return ""
    if what == _INPUT:
        return first_step(found.sequences.values)
    if what == _OUTPUT:
        return _in_layers(module, found)
    return "" if found.of_output is None else first_step(found.of_output, backwards=True)


def first_step(values: Tensor, *, backwards: bool = False) -> str:
    """Where (T, B, .) is not finite first, as a clause; empty where all is, as in another sequence than the longest.

    >>> first_step(torch.tensor([1.0, torch.nan]).reshape(2, 1, 1))
    ', first at step 2 of 2 (sequence 1 of 1)'
    """
    bad = ~values.isfinite().all(-1)
    steps = bad.any(1).nonzero().flatten().tolist()
    if not steps:
        return ""
    step = steps[-1] if backwards else steps[0]
    sequence = int(bad[step].nonzero()[0])
    way = "going back, first" if backwards else "first"
    return f", {way} at step {step + 1:,} of {len(bad):,} (sequence {sequence + 1} of {bad.shape[1]})"


@torch.no_grad()
def _in_layers(module: RecurrentModule, found: CapturedSequence) -> str:
    """The first layer, in the module's dtype, whose states are not finite, and whether float64 would hold them."""
    dtype = found.precision
    for number, one in enumerate(upwards(module.layers, found.sequences)):
        initial = None if found.initial is None else found.initial[number]
        step = LayerStep.of(one.layer)
        states = _states(step, gate_inputs(one.layer, one.inputs.to(dtype), found.previous), initial, dtype)
        broken = _broken(one.layer, states)
        if broken:
            return f"{broken}{_in_double(one.layer, one.inputs, found, initial, dtype)}"
        one.output = step.shown(states)
    return first_step(found.output)


def _states(step: LayerStep, x: Tensor, initial: States | None, dtype: torch.dtype) -> list[Tensor]:
    first = [part.to(dtype) for part in initial_states(step, x, initial)]
    return list(stepped(step.cell, step.layout, x, step.pointwise(x), cast(step.weights, dtype), first))


def _broken(layer: RecurrentLayer, states: Sequence[Tensor]) -> str:
    names = [*layer.cell.states, "the output"]
    places = [
        (int((~values.isfinite().all(-1)).any(1).nonzero()[0]), name, values)
        for name, values in zip(names, states, strict=False)
        if not bool(values.isfinite().all())
    ]
    if not places:
        return ""
    _, name, values = min(places, key=lambda place: place[0])
    return f"{first_step(values)}, in state {name} of layer l{layer.layer}" + ("_reverse" if layer.direction else "")


def _in_double(
    layer: RecurrentLayer, own: Tensor, found: CapturedSequence, initial: States | None, dtype: torch.dtype
) -> str:
    if dtype == torch.float64:
        return ""
    x = gate_inputs(layer, own, found.previous).double()
    double = _states(LayerStep.of(layer), x, initial, torch.float64)
    sizes = torch.stack([values.abs().max() for values in double])
    if not bool(sizes.isfinite().all()):
        return ""
    name = str(dtype).removeprefix("torch.")
    return f"; in float64 it is finite, at most {float(sizes.max()):.2g}: {name} ends at {torch.finfo(dtype).max:.2g}"
