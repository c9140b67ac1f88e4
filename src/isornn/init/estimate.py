"""Hyper-parameters estimated from a module's tensors."""

from __future__ import annotations

from torch import Tensor, nn

from isornn.cells import Input, Spec
from isornn.modes import usual_modes
from isornn.nn.gate_tensors import ModuleError, RecurrentLayer, recurrent_layers, weights_of_next_call
from isornn.nn.measured_law import check_parameters_at_start, measured_gate
from isornn.nn.wrappers import missing_weight

_UNIT_INPUT = Input()


@usual_modes()
def spec_of(
    module: nn.Module,
    layer: int | None = None,
    direction: int | None = None,
    input: Input = _UNIT_INPUT,
    *,
    means: Tensor | None = None,
) -> Spec:
    """The hyper-parameters estimated from a module's tensors, trained or not.

    Per gate: ``weight_var = N mean(W_ij^2)``, ``input_var = D mean(U_ij^2)`` (weights are taken to have mean 0),
    ``bias_mean`` the mean over units of the sum of the gate's biases. ``ensemble`` is "orthogonal" or "identity" where
    the matrix is, to 1 %, else "gaussian". Where biases vary over units, ``bias_law`` is the empirical law of what
    differs from the mean, unit by unit, and ``biases`` is "fixed", as in any real network; else it is "redrawn", which
    is then the same.

    Args:
        module: holds one recurrent module.
        layer, direction: which of its layers, counted from 0, and whether forward (0) or reverse (1); each may be left
            out where the module has one.
        input: the law of the input sequences, which cannot be derived from tensors.
        means: (D,), of each feature of the layer's input, where they are known: what they add to a gate, ``U means``,
            then counts as its biases, and ``input`` is the law of the rest. Where the layer has a feature map Phi, both
            are of ``Phi(x)``, with D = N. A mean in ``input`` is taken to be independent of the biases instead, which
            it is not in a module that `critical_` has set for a batch.

    Raises:
        ModuleError: no or several recurrent modules; no such layer, or several and none named; ``proj_size``, a cell
            that the theory lacks; a module on the meta device; the cell's own `parameters` have been trained: a spec
            has their start only, and `isornn.diagnose` measures the module itself. Where the start is a law, small
            changes pass that the number of units cannot show. ``means`` of another shape, or not finite.
        SpecError: the tensors hold NaN or infinity; names the field.

    >>> from isornn.init import standard_
    >>> gates = spec_of(standard_(nn.LSTM(49, 128))).gates
    >>> gates["f"].bias_mean, gates["f"].ensemble, round(gates["f"].weight_var, 4)
    (1.0, 'orthogonal', 1.0)
    """
    with weights_of_next_call(module):
        chosen = _chosen(recurrent_layers(module), layer, direction)
    if chosen.projection is not None:
        raise ModuleError(f"{chosen.where}: an LSTM with proj_size is a cell of its own, for which there is no spec")
    if any(parameter.is_meta for parameter in chosen.module.parameters()):
        raise ModuleError(f"{chosen.where}: it is on the meta device and has no values; call to_empty and set it first")
    absent = missing_weight(chosen.module)
    if absent is not None:
        raise ModuleError(
            f"{chosen.where}: its {absent} is set by another module before each forward; call it once before"
        )
    check_parameters_at_start(chosen)
    if means is not None:
        _check_means(chosen, means)
    gates = {name: measured_gate(tensors, means) for name, tensors in chosen.gates.items()}
    varies = any(gate.bias_law is not None for gate in gates.values())
    return Spec(chosen.cell, gates, input, "fixed" if varies else "redrawn")


def _check_means(layer: RecurrentLayer, means: Tensor) -> None:
    # U multiplies what a feature map gives, not what the layer is called with
    receives = "receives" if layer.features is None else "has gates that read Phi(x):"
    allowed = f"is not allowed; {layer.where} {receives} {layer.inputs} features, each with a finite mean"
    if tuple(means.shape) != (layer.inputs,):
        raise ModuleError(f"means: shape {tuple(means.shape)} {allowed}")
    if not bool(means.isfinite().all()):
        raise ModuleError(f"means: {float(means[~means.isfinite()][0])} {allowed}")


def _chosen(layers: list[RecurrentLayer], layer: int | None, direction: int | None) -> RecurrentLayer:
    places = ", ".join(found.where for found in layers)
    if len({id(found.module) for found in layers}) > 1:
        raise ModuleError(f"module: it holds several recurrent modules, name one: {places}")
    if layer is None and len(numbers := {found.layer for found in layers}) == 1:
        (layer,) = numbers
    if direction is None and len(directions := {found.direction for found in layers}) == 1:
        (direction,) = directions
    for found in layers:
        if (found.layer, found.direction) == (layer, direction):
            return found
    raise ModuleError(f"layer, direction: {layer}, {direction} are not allowed; the module has {places}")
