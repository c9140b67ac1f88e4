"""What each recurrent layer of a model receives from a batch, by a run of the model that leaves it as it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from isornn.capture.calls import Call
from isornn.capture.modules import RecurrentModule, recurrent_modules
from isornn.capture.parts import CaptureError
from isornn.capture.run import capture
from isornn.capture.sequences import CapturedInputs, all_inputs
from isornn.modes import unhindered, usual_modes
from isornn.nn.gate_tensors import ModuleError, RecurrentLayer
from isornn.nn.layer_step import LayerStep
from isornn.nn.ownership import owned_by
from isornn.nn.upwards import gate_inputs, upwards


def in_forward_order(model: nn.Module, batch: Any) -> list[RecurrentModule]:
    """The recurrent modules of a model by their first calls on a batch; those that it does not reach come last."""
    modules = recurrent_modules(model)
    with unhindered():
        order = capture(model, modules, batch, None).order
    place = {module: number for number, module in enumerate(order)}
    return sorted(modules, key=lambda found: place.get(found.module, len(place)))


def inputs_of(model: nn.Module, found: RecurrentModule, batch: Any) -> CapturedInputs:
    """What the module runs over.

    Raises:
        CaptureError: names the module and the reason for which that is not known.
        ModuleError: the model gives the module its weights at each call.
    """
    return joined(found, calls_of(model, found, batch))


def calls_of(model: nn.Module, found: RecurrentModule, batch: Any) -> list[Call]:
    """The module's calls on a batch; raises as `inputs_of`."""
    with unhindered():
        captured = capture(model, [found], batch, None)
    calls, reason = captured.calls[found.module], captured.refused.get(found.module)
    if reason is not None:
        raise CaptureError(f"{found.label}: its input is not known: {reason}")
    if not calls:
        raise CaptureError(f"{found.label}: the batch does not reach it")
    as_run = captured.layers.get(found.module, found.layers)
    # A layer whose weights are computed outside of the run too is refused where it is itself to be set.
    if any(_is_replaced(found.module, *both) for both in zip(found.layers, as_run, strict=True)):
        raise ModuleError(
            f"{found.label}: it computes with tensors that the model gives it at each call "
            "(torch.func.functional_call, the target_parameters of peft) in place of its own; draw those before that"
        )
    return calls


def _is_replaced(module: nn.Module, layer: RecurrentLayer, as_run: RecurrentLayer) -> bool:
    """Whether a run had other tensors in place of the parameters that the layer consists of."""
    return owned_by(module, layer) and not owned_by(module, as_run)


@usual_modes()
def joined(found: RecurrentModule, calls: Sequence[Call]) -> CapturedInputs:
    """What several calls ran over; raises as `inputs_of`."""
    try:
        return all_inputs(found, calls)
    except CaptureError as error:
        raise CaptureError(f"{found.label}: its input is not known: {error}") from None


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
