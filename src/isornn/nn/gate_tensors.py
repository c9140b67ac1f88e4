"""Where each gate's weights are in the tensors of a recurrent module, torch's or ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from isornn.cells import GRU, LSTM, Cell, Vanilla
from isornn.nn.layout import GateTensors
from isornn.nn.rnn import RNN, suffix
from isornn.nn.wrappers import is_split, unreadable, unwrapped, within

_HOOKS = (BasePruningMethod, SpectralNorm, WeightNorm)
_MODELS = ("model", "policy", "network", "net", "module")  # where hosts keep what they make when they are fitted


class ModuleError(ValueError):
    """A module that cannot be read or set; the message names it and gives the reason.

    >>> from isornn.init import critical_
    >>> critical_(nn.Linear(2, 2), length=10)
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

    By the names within DataParallel, DistributedDataParallel and torch.compile.

    Raises:
        ModuleError: there is none; ``module`` is no `torch.nn.Module`, though an attribute of it may be; its parameters
            are split between processes.

    >>> [layer.where for layer in recurrent_layers(nn.GRU(3, 5, num_layers=2, bidirectional=True))]
    ['GRU l0', 'GRU l0_reverse', 'GRU l1', 'GRU l1_reverse']
    """
    if not isinstance(module, nn.Module):
        raise ModuleError(f"module: {type(module).__name__} is no torch.nn.Module{_module_within(module)}")
    if is_split(module):
        raise ModuleError(
            f"module: {kind_of(module)} has parameters that are split between processes (FSDP, tensor parallelism), "
            "which can be neither read nor set; do it before they are split"
        )
    module = unwrapped(module)
    with _parametrisations_in_eval_mode(module):
        found = [
            layer
            for name, child in module.named_modules()
            for layer in _layers_of(child, _named_kind(within(name), child))
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


@contextmanager
@torch.no_grad()
def weights_of_next_call(module: nn.Module) -> Iterator[None]:
    """Within the block, weights that hooks of `torch.nn.utils` compute (pruning, weight and spectral norm) are current.

    Else they are of the module's last call, before an optimiser's step or a loaded state dict; before its first call,
    of the hook's making.
    """
    modules = module.modules() if isinstance(module, nn.Module) else ()
    found = [(one, hook) for one in modules for hook in one._forward_pre_hooks.values() if isinstance(hook, _HOOKS)]
    names = [(one, hook._tensor_name if isinstance(hook, BasePruningMethod) else hook.name) for one, hook in found]
    before = [(one, name, getattr(one, name)) for one, name in names]
    # A call in training mode takes a step of spectral norm's estimates.
    buffers = [(buffer, buffer.clone()) for one, _ in found for buffer in one.buffers(recurse=False)]
    try:
        for one, hook in found:
            hook(one, ())
        yield
    finally:
        for one, name, weight in reversed(before):
            setattr(one, name, weight)
        for buffer, value in buffers:
            buffer.copy_(value)


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


def kind_of(module: nn.Module) -> str:
    """The class that the user named: a parametrised module's own is one that torch made up."""
    return parametrize.type_before_parametrizations(module).__name__


def _named_kind(name: str, module: nn.Module) -> str:
    return f"{name} ({kind_of(module)})" if name else kind_of(module)


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
