"""Whether a layer's tensors are parameters of its module, so that values written to them stay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from torch import Tensor, nn
from torch.nn.utils import parametrize

from isornn.nn.gate_tensors import ModuleError, RecurrentLayer
from isornn.nn.rnn import suffix
from isornn.nn.wrappers import missing_weight, processes_of


def check_alone(model: nn.Module) -> None:
    """Refuse a model that DistributedDataParallel trains in several processes.

    It sends the parameters to the other processes when it is made, and later their gradients alone: copies that differ,
    as by the random state or the batch of each process, would never agree again.

    Raises:
        ModuleError: says when to set it.
    """
    processes = processes_of(model)
    if processes > 1:
        raise ModuleError(
            f"module: DistributedDataParallel in {processes} processes is not allowed, as what is written in one is "
            "not sent to the others; set the module before it is wrapped"
        )


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
    wrapper, as weight drop. Those of its module's other layers may be none the less."""
    absent = missing_weight(layer.module) is not None
    return absent or _is_parametrised(layer) or not owned_by(layer.module, layer)


def _is_parametrised(layer: RecurrentLayer) -> bool:
    if not parametrize.is_parametrized(layer.module):
        return False
    ending = "" if isinstance(layer.module, nn.RNNCellBase) else suffix(layer.layer, layer.direction)
    names = cast(nn.ModuleDict, layer.module.parametrizations)
    return any(name.endswith(ending) for name in names)


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


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
