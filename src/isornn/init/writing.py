"""Draw recurrent layers by specs: all of a module's, or none where one cannot be set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from isornn.cells import Gate, Spec, SpecError
from isornn.cells.arguments import check_generator
from isornn.modes import usual_modes
from isornn.nn import draws
from isornn.nn.gate_tensors import ModuleError, RecurrentLayer, recurrent_layers, unreadable_modules
from isornn.nn.layout import GateTensors
from isornn.nn.ownership import check_alone, check_writable
from isornn.nn.wrappers import unwrapped
from isornn.warn import warn

Module = TypeVar("Module", bound=nn.Module)
_WIDEST = 10.0  # standard deviations beyond which no draw comes, even where singular values have a margin
_LARGEST_LAW = 1000.0  # above ln r of every law of time scales


@usual_modes()
def set_layers(
    module: Module,
    spec_of_layer: Callable[[RecurrentLayer], Spec],
    generator: torch.Generator | None,
    *,
    input_entries: draws.Entries = "normal",
    recurrent_entries: draws.Entries = "normal",
) -> Module:
    """Check all layers, then write all."""
    check_generator(generator)
    layers = recurrent_layers(module)
    check_alone(module)
    plan = [(layer, spec_of_layer(layer)) for layer in layers]
    for layer, spec in plan:
        check_settable(layer, spec)
    with torch.no_grad():
        for layer, spec in plan:
            draws.redraw(layer, spec, generator, input_entries, recurrent_entries)
    warn_of_unreadable(module)
    return module


def warn_of_unreadable(model: nn.Module) -> None:
    """Name the recurrent modules that keep their weights although all others are set."""
    for name, module, reason in unreadable_modules(unwrapped(model)):
        warn(f"{name or type(module).__name__}: left as it was; {reason}")


@contextmanager
@torch.no_grad()
def all_or_nothing(layers: Sequence[RecurrentLayer], generator: torch.Generator | None) -> Iterator[None]:
    """Layers that are set one after the other within the block; an error gives all of them back what they had, and the
    generator (torch's own unless given) its state."""
    for layer in layers:
        check_writable(layer)
    parameters = {id(p): p for layer in layers for p in layer.module.parameters(recurse=False)}.values()
    kept = [(parameter, parameter.detach().clone()) for parameter in parameters]
    source = torch.default_generator if generator is None else generator
    drawn = source.get_state()
    try:
        yield
    except BaseException:
        for parameter, before in kept:
            parameter.copy_(before)
        source.set_state(drawn)
        raise


def check_settable(layer: RecurrentLayer, spec: Spec) -> None:
    if not isinstance(spec, Spec):
        raise SpecError("spec", spec, "it must be an isornn.Spec")
    if layer.cell != spec.cell:
        raise SpecError("cell", spec.cell, f"{layer.where} has {layer.cell}")
    if spec.batch_shape:
        raise SpecError("spec", tuple(spec.batch_shape), "a module is set by plain numbers, not by a batch of them")
    check_writable(layer)
    for name, gate in spec.gates.items():
        tensors = layer.gates[name]
        _check_range(layer.where, name, gate, tensors)
        wants_bias = gate.bias_law is not None or gate.bias_mean != 0 or gate.bias_var != 0
        if wants_bias and not tensors.biases:
            raise ModuleError(f"{layer.where}: gate {name} needs a bias by this start; the module has bias=False")
        if gate.ensemble == "identity" and layer.projection is not None:
            raise ModuleError(
                f"{layer.where}: with proj_size gate {name}'s recurrent matrix is not square, so no identity"
            )


def _check_range(where: str, name: str, gate: Gate, tensors: GateTensors) -> None:
    """Refuse numbers that the tensors' dtype cannot hold: half precision ends at 65504."""
    law = 0.0 if gate.bias_law is None else max(map(abs, gate.bias_law.values), default=_LARGEST_LAW)
    sizes = {
        "weight_var": (tensors.recurrent, _WIDEST * math.sqrt(float(gate.recurrent_var))),
        "input_var": (tensors.input, _WIDEST * math.sqrt(float(gate.input_var))),
        "previous_input_var": (tensors.previous_input, _WIDEST * math.sqrt(float(gate.previous_input_var))),
        "bias_mean": (
            next(iter(tensors.biases), None),
            abs(float(gate.bias_mean)) + _WIDEST * math.sqrt(float(gate.bias_var)) + law,
        ),
    }
    for field, (tensor, size) in sizes.items():
        if tensor is not None and size > torch.finfo(tensor.dtype).max:
            own = "" if field != "bias_mean" or not gate.bias_var else f", with bias_var {float(gate.bias_var):g}"
            held = f"{where} is {str(tensor.dtype).removeprefix('torch.')}, whose largest number is"
            raise SpecError(
                f"gates.{name}.{field}", getattr(gate, field), f"{held} {torch.finfo(tensor.dtype).max:g}{own}"
            )
