"""Where each gate's weights are in the tensors of a recurrent module, torch's or ours, and what law they have."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from isornn.cells import GRU, LSTM, BiasLaw, Cell, Gate, ParameterLaw, Vanilla
from isornn.cells.spec import Ensemble
from isornn.nn.layout import GateTensors
from isornn.nn.rnn import RNN, suffix
from isornn.nn.wrappers import missing_weight, unreadable

# W W^T = s^2 I and W = s I are recognised to this part of s^2 and s: half precision rounds to 4e-3.
_TOLERANCE = 1e-2
_MODELS = ("model", "policy", "network", "net", "module")  # where hosts keep what they make when they are fitted
_PRECISIONS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)  # that a module may have been in
_GRID, _RARE = 4096, 1e-6  # of a law's distribution function; the probability at which draws are no longer its own


class ModuleError(ValueError):
    """A module that cannot be read or set; the message names it and gives the reason.

    >>> from isornn.init import critical_
    >>> critical_(torch.nn.Linear(2, 2), length=10)
    Traceback (most recent call last):
    ...
    isornn.nn.gate_tensors.ModuleError: ...
    """


@dataclass(frozen=True)
class FeatureMap:
    """``Phi(x) = W x + b``, or its tanh: what an isornn layer makes of its input where the cell takes it pointwise.

    Args:
        weight: W (N, D).
        bias: b (N,), if the layer has biases.
        bounded: whether tanh follows.
    """

    weight: Tensor
    bias: Tensor | None
    bounded: bool


@dataclass(frozen=True)
class RecurrentLayer:
    """One layer and direction of a recurrent module.

    Args:
        where: what error messages call it.
        module: the module that owns it.
        cell: what one step of it is.
        layer, direction: its place in the module, from 0; direction 1 is the reverse.
        gates: tensors by the cell's gate names, in the cell's order.
        projection: ``weight_hr`` (P, N) of an LSTM with ``proj_size``.
        parameters: the cell's own by name, each (N,).
        features: the map of its input, if it has one.
    """

    where: str
    module: nn.Module
    cell: Cell
    layer: int
    direction: int
    gates: Mapping[str, GateTensors]
    projection: Tensor | None = None
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    features: FeatureMap | None = None

    @property
    def hidden(self) -> int:
        """N."""
        first = next(iter(self.gates.values()))
        return next(t.shape[-2] for t in (first.recurrent, first.input, first.previous_input) if t is not None)

    @property
    def inputs(self) -> int:
        """D of this layer, which for a deeper one is N of the one below, or 2N if that has two directions."""
        matrices = (matrix for gate in self.gates.values() for matrix in (gate.input, gate.previous_input))
        return next(matrix.shape[-1] for matrix in matrices if matrix is not None)


def recurrent_layers(module: nn.Module) -> list[RecurrentLayer]:
    """Every layer and direction of every recurrent module in ``module``, itself included.

    Raises:
        ModuleError: there is none; ``module`` is no `torch.nn.Module`, though an attribute of it may be.

    >>> [layer.where for layer in recurrent_layers(nn.GRU(3, 5, num_layers=2, bidirectional=True))]
    ['GRU l0', 'GRU l0_reverse', 'GRU l1', 'GRU l1_reverse']
    """
    if not isinstance(module, nn.Module):
        raise ModuleError(f"module: {type(module).__name__} is no torch.nn.Module{_module_within(module)}")
    with _parametrisations_in_eval_mode(module):
        found = [
            layer
            for name, child in module.named_modules()
            for layer in _layers_of(child, f"{name} ({kind_of(child)})" if name else kind_of(child))
        ]
    if not found:
        closed = next((f" ({_named(name, child)}: {why})" for name, child, why in unreadable_modules(module)), "")
        closed += _unregistered(module)
        raise ModuleError(
            f"module: {type(module).__name__} holds no recurrent layer; those are torch.nn.RNN, LSTM, GRU, their "
            f"...Cell forms, and isornn's layers{closed}. The update of a cell of your own, as an isornn.cells.Cell, "
            "becomes one by isornn.nn.RNN"
        )
    return found


@contextmanager
def _parametrisations_in_eval_mode(module: nn.Module) -> Iterator[None]:
    """In training mode reading a weight changes spectral norm's buffers."""
    own = [getattr(one, "parametrizations", None) for one in module.modules() if parametrize.is_parametrized(one)]
    parts = [part for one in own if isinstance(one, nn.Module) for part in one.modules()]
    modes = [(part, part.training) for part in parts]
    try:
        for part in parts:
            part.training = False
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def unreadable_modules(module: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Name, module and reason of those that are recurrent and cannot be read: scripted, traced or quantised ones."""
    for name, child in module.named_modules():
        reason = unreadable(child)
        if reason is not None:
            yield name, child, reason


def _named(name: str, module: nn.Module) -> str:
    kind = getattr(module, "original_name", type(module).__name__)
    return f"{name} is {kind}" if name else kind


def _unregistered(module: nn.Module) -> str:
    """A list or dict of the model that holds a module with recurrent layers, for the error message."""
    for place, own in module.named_modules():
        held = {name: value for name, value in vars(own).items() if name not in ("_modules", "_parameters", "_buffers")}
        for path, part in _with_recurrent_layers(held):
            name = f"{place}.{path}".removeprefix(".")
            return (
                f" ({name} is {kind_of(part)}, where torch does not look, so that the model's parameters() lack its "
                "own: use nn.ModuleList or nn.ModuleDict)"
            )
    return ""


def _with_recurrent_layers(attributes: Mapping[str, Any]) -> Iterator[tuple[str, nn.Module]]:
    """Modules with recurrent layers among attributes, and what lists, tuples and dicts among them hold, by path."""
    for name, value in attributes.items():
        if isinstance(value, dict):
            parts = {f"{name}[{key!r}]": part for key, part in value.items()}
        elif isinstance(value, list | tuple):
            parts = {f"{name}[{place}]": part for place, part in enumerate(value)}
        else:
            parts = {name: value}
        for path, part in parts.items():
            if isinstance(part, nn.Module) and any(next(_layers_of(m, ""), None) for m in part.modules()):
                yield path, part


def _module_within(wrapper: object) -> str:
    """The attribute of a non-module that is a module with recurrent layers, for the error message."""
    for path, part in _with_recurrent_layers(getattr(wrapper, "__dict__", {})):
        return f"; its attribute {path} ({kind_of(part)}) is one with recurrent layers: give that"
    empty = next((name for name in _MODELS if getattr(wrapper, name, ...) is None), None)
    return "" if empty is None else f"; its attribute {empty} is None: fit it first, then give that"


def check_writable(layer: RecurrentLayer) -> None:
    """Refuse a module whose weights are computed from other parameters, as values written to them would be lost.

    Raises:
        ModuleError: with the reason; so too for weights made in inference mode, which torch does not let change.
    """
    parameters = list(layer.module.parameters(recurse=False))
    if any(parameter.is_inference() for parameter in parameters):
        raise ModuleError(
            f"{layer.where}: its weights were made in torch.inference_mode, outside of which they cannot be changed; "
            f"make the module outside of it"
        )
    absent = missing_weight(layer.module)
    if absent is not None:
        raise ModuleError(
            f"{layer.where}: its {absent} is set by another module before each forward (weight drop), so values "
            f"written to it are lost; set the module before it is wrapped"
        )
    # What a hook or wrapper computes is a plain tensor, which may share memory with what it was computed from.
    computed = {_storage(value) for value in vars(layer.module).values() if isinstance(value, Tensor)}
    owned = {_storage(parameter) for parameter in parameters if parameter.is_leaf} - computed
    for name, tensors in _written(layer):
        if any(tensor is not None and _storage(tensor) not in owned for tensor in tensors):
            raise ModuleError(
                f"{layer.where}: {name} is not a parameter of the module but computed from others (parametrised, "
                f"weight norm, spectral norm, weight drop), so values written to it are lost; set the module first"
            )


def is_computed(layer: RecurrentLayer) -> bool:
    """Whether its weights are computed from other parameters: by a parametrisation, a hook, as weight norm has it, or a
    wrapper, as weight drop."""
    return missing_weight(layer.module) is not None or not owned_by(layer.module, layer)


def owned_by(module: nn.Module, layer: RecurrentLayer) -> bool:
    """Whether all tensors that a start may write to, as a run had them, are parameters of the module."""
    owned = {_storage(parameter) for parameter in module.parameters()}
    return all(tensor is None or _storage(tensor) in owned for _, tensors in _written(layer) for tensor in tensors)


def _written(layer: RecurrentLayer) -> Iterator[tuple[str, tuple[Tensor | None, ...]]]:
    """By what messages call them, all tensors that a start may write to."""
    for name, gate in layer.gates.items():
        yield f"a weight or bias of gate {name}", (gate.recurrent, gate.input, gate.previous_input, *gate.biases)
    yield "its projection", (layer.projection,)
    if layer.features is not None:
        yield "a weight or bias of its feature map", (layer.features.weight, layer.features.bias)
    for name, own in layer.parameters.items():
        yield f"its {name}", (own,)


def check_parameters_at_start(layer: RecurrentLayer) -> None:
    """Refuse a layer whose cell's own parameters are not those that the cell starts with.

    A number must be the start in all units, but for rounding. Values of a law are refused where their empirical
    distribution is so far from the law's that N draws would come as far with a probability below 1e-6, by
    ``P(sup |F_N - F| > d) <= 2 exp(-2 N d^2)``: small changes pass.

    Raises:
        ModuleError: names the parameter.

    Source: Massart 1990 (the constant of the Dvoretzky-Kiefer-Wolfowitz inequality).
    """
    for name, start in layer.cell.parameters.items():
        values = _double(layer.parameters[name]).flatten()
        if isinstance(start, ParameterLaw):
            grid = start.quantile((torch.arange(_GRID, dtype=torch.float64) + 0.5) / _GRID).sort().values
            ranks = torch.arange(len(values), dtype=torch.float64)
            expected = torch.searchsorted(grid, values.sort().values) / _GRID
            distance = torch.maximum(expected - ranks / len(values), (ranks + 1) / len(values) - expected).max()
            at_start = bool(values.isfinite().all()) and 2 * math.exp(-2 * len(values) * float(distance) ** 2) > _RARE
            wanted = "drawn from its law"
        else:
            rounded = [torch.tensor(start, dtype=dtype).double() for dtype in _PRECISIONS]
            at_start = any(bool((values == value).all()) for value in rounded)
            wanted = f"{start:g}"
        if not at_start:
            low, high = float(values.min()), float(values.max())
            raise ModuleError(
                f"{layer.where}: parameter {name} of {layer.cell.name} starts {wanted}, and is now from {low:g} to "
                f"{high:g}; a spec has the start only, so measure the module with isornn.diagnose"
            )


def measured_gate(tensors: GateTensors, means: Tensor | None = None) -> Gate:
    """The law that a gate's tensors look drawn from, for input less its ``means`` (D,), whose effect counts as bias.

    ``weight_var = P mean(W_ij^2)``, ``input_var = D mean(U_ij^2)``, ``previous_input_var`` likewise; the mean over
    units of the biases' sum and, where it is not the same in all, the empirical law of what differs from the mean;
    "orthogonal" or "identity" where W is, to 1 %, else "gaussian".

    >>> gate = measured_gate(GateTensors(2 * torch.eye(3), None, None, (torch.tensor([0.0, 1.0, 5.0]), torch.zeros(3))))
    >>> gate.weight_var, gate.ensemble, gate.bias_mean, gate.bias_law.values
    (4.0, 'identity', 2.0, (-2.0, -1.0, 3.0))
    """
    total = sum((_double(bias) for bias in tensors.biases), torch.zeros((), dtype=torch.float64))
    if means is not None:
        read = (weight for weight in (tensors.input, tensors.previous_input) if weight is not None)
        total = sum((_double(weight) @ means.to(weight.device).double() for weight in read), total)
    # Equal biases would otherwise differ from their mean by rounding errors.
    constant = bool(total.max() == total.min())
    mean = float(total.max() if constant else total.mean())
    return Gate(
        weight_var=fan_in_variance(tensors.recurrent),
        input_var=fan_in_variance(tensors.input),
        previous_input_var=fan_in_variance(tensors.previous_input),
        bias_mean=mean,
        bias_law=None if constant else BiasLaw("empirical", values=tuple((total - mean).tolist())),
        ensemble=_ensemble(tensors.recurrent),
    )


def fan_in_variance(weight: Tensor | None) -> float:
    """``P mean(W_ij^2)`` of (M, P); 0 without a matrix."""
    return 0.0 if weight is None else weight.shape[-1] * float(_double(weight).square().mean())


def _ensemble(weight: Tensor | None) -> Ensemble:
    square = fan_in_variance(weight)
    # A 1 x 1 matrix is orthogonal whatever its law.
    if weight is None or weight.shape[-1] != weight.shape[-2] or weight.shape[-1] < 2 or not square > 0:
        return "gaussian"
    w, eye = _double(weight), torch.eye(weight.shape[-1], dtype=torch.float64)
    if bool(((w @ w.transpose(-2, -1) - square * eye).abs() > _TOLERANCE * square).any()):
        return "gaussian"
    is_identity = bool(((w - square**0.5 * eye).abs() <= _TOLERANCE * square**0.5).all())
    return "identity" if is_identity else "orthogonal"


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float64)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def kind_of(module: nn.Module) -> str:
    """The class that the user named: a parametrised module's own is one that torch made up."""
    return parametrize.type_before_parametrizations(module).__name__


def _layers_of(module: nn.Module, where: str) -> Iterator[RecurrentLayer]:
    if isinstance(module, RNN):
        for layer, direction in module.places():
            name = suffix(layer, direction)
            gates = {gate: module.gate_parameters(gate, layer, direction) for gate in module.cell.gates}
            projection = getattr(module, f"weight_hr{name}", None)
            own = {parameter: getattr(module, parameter + name) for parameter in module.cell.parameters}
            weight = getattr(module, f"weight_phi{name}", None)
            bias = getattr(module, f"bias_phi{name}", None)
            features = None if weight is None else FeatureMap(weight, bias, module.features == "tanh")
            yield RecurrentLayer(
                f"{where} {name[1:]}", module, module.cell, layer, direction, gates, projection, own, features
            )
    elif isinstance(module, nn.RNNCellBase):
        yield RecurrentLayer(where, module, _torch_cell(module), 0, 0, _torch_gates(module, ""))
    elif isinstance(module, nn.RNNBase):
        for layer in range(module.num_layers):
            for direction in range(2 if module.bidirectional else 1):
                name = suffix(layer, direction)
                gates = _torch_gates(module, name)
                projection = getattr(module, f"weight_hr{name}", None)
                yield RecurrentLayer(
                    f"{where} {name[1:]}", module, _torch_cell(module), layer, direction, gates, projection
                )


def _torch_cell(module: nn.RNNBase | nn.RNNCellBase) -> Cell:
    if isinstance(module, nn.LSTM | nn.LSTMCell):
        return LSTM()
    if isinstance(module, nn.GRU | nn.GRUCell):
        return GRU()
    return Vanilla(nonlinearity=str(module.nonlinearity))


def _torch_gates(module: nn.RNNBase | nn.RNNCellBase, suffix: str) -> dict[str, GateTensors]:
    """The stacked tensors cut by gate: LSTM i, f, g, o; GRU r, z, n, the last of which is our nx and nh."""
    cell = _torch_cell(module)
    order = ("r", "z", "n") if isinstance(cell, GRU) else tuple(cell.gates)

    def cut(name: str) -> dict[str, Tensor | None]:
        stack: Tensor | None = getattr(module, name + suffix, None)
        return dict.fromkeys(order) if stack is None else dict(zip(order, stack.chunk(len(order)), strict=True))

    hh, ih, bias_ih, bias_hh = cut("weight_hh"), cut("weight_ih"), cut("bias_ih"), cut("bias_hh")
    gates = {
        gate: GateTensors(hh[gate], ih[gate], None, tuple(b for b in (bias_ih[gate], bias_hh[gate]) if b is not None))
        for gate in order
    }
    if isinstance(cell, GRU):
        n = gates.pop("n")
        gates["nx"] = GateTensors(None, n.input, None, n.biases[:1])
        gates["nh"] = GateTensors(n.recurrent, None, None, n.biases[1:])
    return gates
