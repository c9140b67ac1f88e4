"""Draw a module by a start's name."""

from __future__ import annotations

import torch

from isornn.cells import Spec
from isornn.cells.starts import start
from isornn.init.writing import Module, check_settable, set_layers
from isornn.modes import usual_modes
from isornn.nn import draws
from isornn.nn.gate_tensors import RecurrentLayer

_UNIFORM = ("glorot", "forget_bias_3", "forget_bias_3_to_6", "doubled_chrono")  # recurrent entries too


def draw_named(name: str, module: Module, generator: torch.Generator | None, length: float | None = None) -> Module:
    """Every layer by the spec that `isornn.cells.starts.start` has for its cell and sizes."""
    return set_layers(
        module,
        lambda layer: _baseline(name, layer, length),
        generator,
        input_entries="uniform",
        recurrent_entries=_recurrent_entries(name),
    )


@usual_modes()
@torch.no_grad()
def redraw_named(name: str, layer: RecurrentLayer, generator: torch.Generator | None) -> None:
    """One layer as `draw_named` draws all of a module."""
    spec = _baseline(name, layer, None)
    check_settable(layer, spec)
    draws.redraw(layer, spec, generator, "uniform", _recurrent_entries(name))


def _recurrent_entries(name: str) -> draws.Entries:
    return "uniform" if name in _UNIFORM else "normal"


def _baseline(name: str, layer: RecurrentLayer, length: float | None) -> Spec:
    spec = start(name, layer.cell, layer.hidden, layer.inputs, length)
    if name == "glorot" and layer.projection is not None:
        # Glorot's variance counts both fans, which only for square matrices is 1 over the fan-in.
        size = layer.projection.shape[0]
        for gate in spec.gates:
            spec = spec.replace(f"{gate}.weight_var", 2.0 * size / (size + layer.hidden))
    return spec
