"""Initialise a torch module from hyper-parameters, and estimate hyper-parameters from a module's tensors.

Every function that ends in ``_`` sets, in place and without recording gradients, all recurrent layers of a module:
``torch.nn.RNN``, ``LSTM`` and ``GRU`` (each layer, direction and gate on its own), their ``...Cell`` forms, the layers
of `isornn.nn`, and any module that contains such. Everything else in the module is left alone.

- Convention: ``weight_var = N Var(W_ij)``, ``input_var = D Var(U_ij)`` with D of the layer itself.
- torch's two biases add: the whole bias goes to ``bias_ih`` and ``bias_hh`` is 0. The GRU's candidate keeps the two
  apart: nx is in ``bias_ih``, nh in ``bias_hh``.
- Values are drawn in float64 from ``generator`` (torch's global one if ``None``) and rounded to the module's dtype.
- Nothing is written unless every layer can be set, and every number fits the module's dtype.
- ``proj_size`` of an LSTM: the recurrent matrices are (N, P) and read P values, so the convention is per fan-in,
  ``weight_var = P Var(W_ij)``; orthogonal means orthogonal columns. ``weight_hr`` gets orthonormal rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from isornn.cells import Cell, Gate, Input, Spec, SpecError
from isornn.cells.starts import start
from isornn.nn import draws
from isornn.nn.gate_tensors import (
    ModuleError,
    RecurrentLayer,
    check_parameters_at_start,
    check_writable,
    measured_gate,
    recurrent_layers,
)
from isornn.nn.layout import GateTensors
from isornn.theory.critical_points.point import critical, isometric

__all__ = [
    "ModuleError",
    "apply_",
    "chrono_",
    "critical_",
    "glorot_",
    "identity_",
    "isometric_",
    "orthogonal_",
    "spec_of",
    "standard_",
    "uniform_gate_",
]

Module = TypeVar("Module", bound=nn.Module)
_UNIT_INPUT = Input()
_WIDEST = 10.0  # standard deviations beyond which no draw comes, even where singular values have a margin
_LARGEST_LAW = 1000.0  # above ln r of every law of time scales


def apply_(module: Module, spec: Spec, *, generator: torch.Generator | None = None) -> Module:
    """Draw every recurrent layer's weights and biases by the law of ``spec``, in place.

    For each gate k: ``W_k,ij ~ N(0, weight_var/N)`` or the gate's ensemble (``"orthogonal"``: Haar times
    sqrt(weight_var); ``{"margin": m}``: singular values sqrt(weight_var) U(1-m, 1+m) between Haar bases;
    ``"identity"``), ``U_k,ij ~ N(0, input_var/D)``, ``V_k,ij ~ N(0, previous_input_var/D)``,
    ``b_k,i ~ N(bias_mean, bias_var)`` plus the gate's bias law. All laws of a layer share one uniform variate per unit,
    so that a law with sign -1 mirrors its partner unit by unit. ``uniform_gate`` takes the variate from
    (1/N, 1 - 1/N), as its authors do, and so stays finite.

    Args:
        module: a recurrent module or one that contains some; (N, D) of each layer are its own.
        spec: plain numbers, no batch; its cell is that of every recurrent layer in the module.
        generator: source of all draws.

    Returns:
        ``module``.

    Raises:
        SpecError: the spec's cell is not the module's; the spec holds a batch of numbers, or one that the module's
            dtype cannot hold (half precision ends at 65504).
        ModuleError: no recurrent layer; a bias asked for where there is none (``bias=False``); a parametrised weight;
            identity matrices for an LSTM with ``proj_size``.

    >>> from isornn.cells import LSTM, Gate
    >>> spec = Spec(LSTM(), {"f": Gate(weight_var=1.0, bias_mean=5.0, ensemble="orthogonal")})
    >>> lstm = apply_(nn.LSTM(3, 4), spec, generator=torch.Generator().manual_seed(0))
    >>> (lstm.bias_ih_l0 + lstm.bias_hh_l0)[4:8].tolist()
    [5.0, 5.0, 5.0, 5.0]
    """
    return _set(module, lambda _: spec, generator)


def critical_(
    module: Module,
    length: float,
    *,
    fixed: Mapping[str, Any] | None = None,
    input: Input = _UNIT_INPUT,
    generator: torch.Generator | None = None,
) -> Module:
    """Initialise every recurrent layer for sequences of ``length`` steps: `apply_` of `isornn.critical`'s spec.

    ``weight_var`` 1e-5 but on a gate that only shapes the output (1); candidates get the input with variance 4, the
    write gate with 1, as does an output gate that is 0 at ``u = 0`` (tanh); the remember gate's bias is ``ln r`` per
    unit (an LSTM's b_i = -b_f), with ``ln r ~ U(0, ln high)`` for a third of the units and ``r = high`` for the others.

    The meaning of ``length``: with no input to the remember gate and no recurrent weights, the mean square of a small
    perturbation of the state is 1/e of its first value exactly T steps later; this gives high, 2.5 to 3 T. On inputs
    of the law ``input`` the reach is between T/2 and 2 T: 1.03 T for an LSTM, 0.61 T for a GRU; `isornn.critical`
    gives it. Where the gates alone do not determine it, as with ``fixed`` fields and for a cell without a remember
    gate, the theory is computed, with a warning for a condition that does not hold.

    Args:
        module: as `apply_`; a cell without a remember gate is set by orthogonal weights instead.
        length: T from 2 to 1e6, the number of steps to bridge.
        fixed: as `isornn.critical`.
        input: law of every layer's input. `Input.of` a batch of the data where they are not standardised: of symbols,
            or of pixels from 0 to 1, whose mean square is small, gates and candidates otherwise learn later.
        generator: source of all draws.

    Raises:
        SpecError: length; an argument of another type; a field of ``fixed`` that does not exist or is what sets the
            length; a cell that is not pointwise; a cell whose memory no bias or recurrent matrix sets, as ``rg_lru``,
            whose own start is the one to use.
        ModuleError: as `apply_`; among others ``bias=False``.

    >>> lstm = critical_(nn.LSTM(3, 4), 100, generator=torch.Generator().manual_seed(0))
    >>> i, f, _, _ = (lstm.bias_ih_l0 + lstm.bias_hh_l0).chunk(4)
    >>> bool((f > 0).all() and (i == -f).all())
    True
    >>> symbols = nn.functional.one_hot(torch.arange(10))
    >>> gru = critical_(nn.GRU(10, 4), 100, input=Input.of(symbols))
    """

    def solved(cell: Cell) -> Spec:
        point = critical(cell, length, fixed=fixed, input=input)
        if fixed or not point.holds_by_gates():
            point.warn_of_unmet_conditions()
        return point.spec

    return _by_cell(module, solved, generator)


def isometric_(
    module: Module,
    length: float,
    *,
    fixed: Mapping[str, Any] | None = None,
    input: Input = _UNIT_INPUT,
    biases: Literal["redrawn", "fixed"] = "fixed",
    generator: torch.Generator | None = None,
) -> Module:
    """Initialise every recurrent layer near isometry, with reach ``length``: `apply_` of `isornn.isometric`'s spec.

    Every unit is slow: the remember gate's bias is ``ln r``, ``r ~ U(low, high)``. `critical_` trains better. The spec
    is solved for with the full theory, which takes some seconds for an LSTM or GRU; there is a warning for conditions
    that it does not meet.

    Args:
        module, length, input, generator: as `critical_`.
        fixed, biases: as `isornn.isometric`.

    Raises:
        SpecError, ModuleError: as `critical_`; a cell whose units differ by more than their biases.

    >>> from isornn.cells import Minimal
    >>> from isornn.nn import RNN
    >>> layer = isometric_(RNN(Minimal(), 3, 4), 100, biases="redrawn")
    >>> len(layer.gate_parameters("u").biases[0].unique())  # one bias for all units
    1
    """

    def solved(cell: Cell) -> Spec:
        point = isometric(cell, length, fixed=fixed, input=input, biases=biases)
        point.warn_of_unmet_conditions()
        return point.spec

    return _by_cell(module, solved, generator)


def standard_(module: Module, *, generator: torch.Generator | None = None) -> Module:
    """The usual start: recurrent matrices orthogonal gate by gate, input matrices Glorot uniform, forget gate's bias 1.

    ``W_k W_k^T = I``; ``U_k,ij ~ U(-a, a)``, ``a^2 = 6/(D+N)``; biases 0 but 1, once, on the remember gate (LSTM f,
    GRU z, minimal u, typed f; a vanilla network has none). In the spec's convention: weight_var 1,
    input_var 2D/(D+N).

    Raises:
        ModuleError: as `apply_`; among others gated modules with ``bias=False``.

    Sources: Glorot & Bengio 2010; Saxe et al. 2014; Jozefowicz et al. 2015 (forget bias 1).

    >>> gru = standard_(nn.GRU(3, 4, num_layers=2, bidirectional=True))
    >>> (gru.bias_ih_l1_reverse + gru.bias_hh_l1_reverse)[4:8].tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    return _named("standard", module, generator)


def orthogonal_(module: Module, *, generator: torch.Generator | None = None) -> Module:
    """`standard_` without the remember gate's bias: ``W_k W_k^T = I``, Glorot uniform ``U_k``, biases 0.

    Raises:
        ModuleError: no recurrent layer, or a parametrised one.

    Source: Saxe et al. 2014.

    >>> rnn = orthogonal_(nn.RNN(3, 4, bias=False))
    >>> torch.allclose(rnn.weight_hh_l0 @ rnn.weight_hh_l0.T, torch.eye(4), atol=1e-6)
    True
    """
    return _named("orthogonal", module, generator)


def glorot_(module: Module, *, generator: torch.Generator | None = None) -> Module:
    """Glorot uniform for each gate's own matrices: ``W_k,ij ~ U(-a, a)``, ``a^2 = 6/(2N)``; ``U_k`` with 6/(D+N).

    In the spec's convention weight_var 1 and input_var 2D/(D+N). Biases 0. With ``proj_size`` P the recurrent matrices
    and ``weight_hr`` have 6/(N+P).

    Raises:
        ModuleError: no recurrent layer, or a parametrised one.

    Source: Glorot & Bengio 2010, eq. 16.

    >>> rnn = glorot_(nn.RNN(3, 4))
    >>> bool(rnn.weight_hh_l0.abs().max() <= (6 / 8) ** 0.5)
    True
    """
    return _named("glorot", module, generator)


def identity_(module: Module, *, generator: torch.Generator | None = None) -> Module:
    """Every recurrent matrix the identity, input matrices Glorot uniform, biases 0.

    Raises:
        ModuleError: no recurrent layer, a parametrised one, or ``proj_size``, where no matrix is square.

    Source: Le, Jaitly & Hinton 2015 (for ReLU networks; their input matrices are N(0, 1e-6)).

    >>> identity_(nn.RNN(3, 2, nonlinearity="relu")).weight_hh_l0.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return _named("identity", module, generator)


def chrono_(module: Module, length: float, *, generator: torch.Generator | None = None) -> Module:
    """`standard_` with the remember gate's bias ``ln r``, ``r ~ U(1, T-1)`` for each unit; an LSTM's b_i = -b_f.

    Unit by unit the gate then forgets with a time constant spread over 1 to T - 1 steps.

    Args:
        module: as `apply_`.
        length: T, the number of steps to bridge, above 2.
        generator: source of all draws.

    Raises:
        SpecError: length, or a cell without a remember gate (vanilla).
        ModuleError: as `apply_`; among others ``bias=False``.

    Source: Tallec & Ollivier 2018.

    >>> lstm = chrono_(nn.LSTM(3, 4), 100)
    >>> i, f, _, _ = (lstm.bias_ih_l0 + lstm.bias_hh_l0).chunk(4)
    >>> bool((0 <= f).all() and (f.exp() <= 99.001).all() and (i == -f).all())
    True
    """
    return _named("chrono", module, generator, length)


def uniform_gate_(module: Module, *, generator: torch.Generator | None = None) -> Module:
    """`standard_` with the remember gate's bias ``ln(v/(1-v))``, ``v ~ U(1/N, 1 - 1/N)``; an LSTM's b_i = -b_f.

    The gate's value is then uniform over the units. A gate that only modulates the remember gate, as the refine gate of
    ``ur_lstm`` and ``ur_gru``, has the mirrored bias too.

    Raises:
        SpecError: a cell without a remember gate (vanilla).
        ModuleError: as `apply_`; among others ``bias=False``.

    Source: Gu, Gulcehre, Paine, Hoffman & Pascanu 2020 (uniform gate initialisation).

    >>> gate = uniform_gate_(nn.GRU(3, 8)).bias_ih_l0[8:16].sigmoid()
    >>> bool((gate >= 1 / 8).all() and (gate <= 7 / 8).all())
    True
    """
    return _named("uniform_gate", module, generator)


def spec_of(
    module: nn.Module, layer: int | None = None, direction: int | None = None, input: Input = _UNIT_INPUT
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

    Raises:
        ModuleError: no or several recurrent modules; no such layer, or several and none named; ``proj_size``, a cell
            that the theory lacks; a module on the meta device; the cell's own `parameters` have been trained: a spec
            has their start only, and `isornn.diagnose` measures the module itself. Where the start is a law, small
            changes pass that the number of units cannot show.
        SpecError: the tensors hold NaN or infinity; names the field.

    >>> gates = spec_of(standard_(nn.LSTM(49, 128))).gates
    >>> gates["f"].bias_mean, gates["f"].ensemble, round(gates["f"].weight_var, 4)
    (1.0, 'orthogonal', 1.0)
    """
    chosen = _chosen(recurrent_layers(module), layer, direction)
    if chosen.projection is not None:
        raise ModuleError(f"{chosen.where}: an LSTM with proj_size is a cell of its own, for which there is no spec")
    if any(parameter.is_meta for parameter in chosen.module.parameters()):
        raise ModuleError(f"{chosen.where}: it is on the meta device and has no values; call to_empty and set it first")
    check_parameters_at_start(chosen)
    gates = {name: measured_gate(tensors) for name, tensors in chosen.gates.items()}
    varies = any(gate.bias_law is not None for gate in gates.values())
    return Spec(chosen.cell, gates, input, "fixed" if varies else "redrawn")


def _by_cell(module: Module, spec_of_cell: Callable[[Cell], Spec], generator: torch.Generator | None) -> Module:
    specs: dict[Cell, Spec] = {}

    def spec_for(layer: RecurrentLayer) -> Spec:
        if layer.cell not in specs:
            specs[layer.cell] = spec_of_cell(layer.cell)
        return specs[layer.cell]

    return _set(module, spec_for, generator)


def _named(name: str, module: Module, generator: torch.Generator | None, length: float | None = None) -> Module:
    return _set(
        module,
        lambda layer: _baseline(name, layer, length),
        generator,
        input_entries="uniform",
        recurrent_entries="uniform" if name == "glorot" else "normal",
    )


def _baseline(name: str, layer: RecurrentLayer, length: float | None) -> Spec:
    spec = start(name, layer.cell, layer.hidden, layer.inputs, length)
    if name == "glorot" and layer.projection is not None:
        # Glorot's variance counts both fans, which only for square matrices is 1 over the fan-in.
        size = layer.projection.shape[0]
        for gate in spec.gates:
            spec = spec.replace(f"{gate}.weight_var", 2.0 * size / (size + layer.hidden))
    return spec


def _set(
    module: Module,
    spec_of_layer: Callable[[RecurrentLayer], Spec],
    generator: torch.Generator | None,
    *,
    input_entries: draws.Entries = "normal",
    recurrent_entries: draws.Entries = "normal",
) -> Module:
    """Check all layers, then write all."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise SpecError("generator", generator, "it is a torch.Generator or None")
    plan = [(layer, spec_of_layer(layer)) for layer in recurrent_layers(module)]
    for layer, spec in plan:
        _check(layer, spec)
    with torch.no_grad():
        for layer, spec in plan:
            draws.redraw(layer, spec, generator, input_entries, recurrent_entries)
    return module


def _check(layer: RecurrentLayer, spec: Spec) -> None:
    if not isinstance(spec, Spec):
        raise SpecError("spec", spec, "it is an isornn.Spec")
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
