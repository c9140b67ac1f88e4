"""The recurrent modules of a model, by the names that they go by."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import nn

from isornn.nn.gate_tensors import RecurrentLayer, kind_of, recurrent_layers
from isornn.nn.wrappers import unwrapped, within


@dataclass(frozen=True)
class RecurrentModule:
    """A recurrent module of a model.

    Args:
        name: dotted, as ``model.named_modules`` has it; empty where the model itself is the module.
        module: the module.
        layers: its layers and directions, in the order of its state's first axis.
    """

    name: str
    module: nn.Module
    layers: tuple[RecurrentLayer, ...]

    @property
    def kind(self) -> str:
        """The class that the user named: ``LSTM``, ``GRUCell``."""
        return kind_of(self.module)

    @property
    def library_kind(self) -> str:
        """The class of torch or isornn that it is an instance of: ``torch.nn.LSTM``."""
        packages = {"torch.nn.modules.rnn": "torch.nn", "isornn.nn.rnn": "isornn.nn"}
        own = next(kind for kind in type(self.module).__mro__ if kind.__module__ in packages)
        return f"{packages[own.__module__]}.{own.__name__}"

    @property
    def label(self) -> str:
        """What messages call it: its name, or its class where the model itself is the module."""
        return self.name or self.kind

    @property
    def steps_by_hand(self) -> bool:
        """Whether the user's own loop calls it, step by step."""
        return isinstance(self.module, nn.RNNCellBase)

    @property
    def directions(self) -> int:
        """1, or 2 where it is bidirectional."""
        return 1 + max(layer.direction for layer in self.layers)

    @property
    def untied(self) -> bool:
        """Whether its weights are fresh at every step, so that a run cannot be repeated."""
        return bool(getattr(self.module, "untied", False))


def recurrent_modules(model: nn.Module) -> list[RecurrentModule]:
    """Every recurrent module of ``model``, itself included; by the names within DataParallel, DDP and torch.compile.

    Raises:
        ModuleError: there is none.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.LSTM(3, 4, bidirectional=True))
    >>> [(found.name, found.kind, len(found.layers)) for found in recurrent_modules(model)]
    [('1', 'LSTM', 2)]
    """
    model = unwrapped(model) if isinstance(model, nn.Module) else model
    grouped: dict[nn.Module, list[RecurrentLayer]] = {}
    for layer in recurrent_layers(model):
        grouped.setdefault(layer.module, []).append(layer)
    names = {module: name for name, module in model.named_modules()}
    return [RecurrentModule(within(names[module]), module, tuple(layers)) for module, layers in grouped.items()]


def has_own_forward(module: nn.Module) -> bool:
    """Whether its forward is neither torch's nor isornn's."""
    package = getattr(inspect.unwrap(module.forward), "__module__", "") or ""
    return package.partition(".")[0] not in ("torch", "isornn")


def as_called(found: RecurrentModule, layers: Mapping[nn.Module, tuple[RecurrentLayer, ...]]) -> RecurrentModule:
    """The module with the weights that it was called with, where it was; with the names that it goes by."""
    own = layers.get(found.module)
    if own is None:
        return found
    named = zip(found.layers, own, strict=True)
    return replace(found, layers=tuple(replace(now, where=before.where) for before, now in named))
