"""Modules around recurrent modules, and modules that are recurrent and cannot be read."""

from __future__ import annotations

import sys
from types import FunctionType

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize

_RECURRENT = ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell")
_QUANTISED = ("torch.ao.nn.quantized", "torch.nn.quantized", "torch.ao.nn.quantizable", "torch.nn.quantizable")


def unwrapped(model: nn.Module) -> nn.Module:
    """The model within DataParallel, DistributedDataParallel and torch.compile, whose parameters are its own.

    >>> inner = nn.LSTM(3, 4)
    >>> unwrapped(nn.DataParallel(inner)) is inner, unwrapped(inner) is inner
    (True, True)
    """
    while True:
        if isinstance(model, nn.DataParallel | DistributedDataParallel):
            model = model.module
        elif "_orig_mod" in model._modules:  # torch.compile's OptimizedModule
            model = model.get_submodule("_orig_mod")
        else:
            return model


def within(name: str) -> str:
    """The name without those that torch.compile adds to it."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def processes_of(model: nn.Module) -> int:
    """How many processes train copies of it, or of a module within, by DistributedDataParallel."""
    wrapped = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
    return max((distributed.get_world_size(module.process_group) for module in wrapped), default=1)


def is_split(model: nn.Module) -> bool:
    """Whether parts of its parameters are in other processes: by FSDP or tensor parallelism."""
    # Whoever made one has imported these; the import takes seconds.
    tensors, sharded = (sys.modules.get(f"torch.distributed.{name}") for name in ("tensor", "fsdp"))
    if sharded is not None and any(isinstance(one, sharded.FullyShardedDataParallel) for one in model.modules()):
        return True
    return tensors is not None and any(isinstance(one, tensors.DTensor) for one in model.parameters())


def is_compiled(model: nn.Module) -> bool:
    """Whether it, a module within, or a method of one, runs by torch.compile."""
    return any(
        "_orig_mod" in module._modules or module._compiled_call_impl is not None or _has_compiled_function(module)
        for module in model.modules()
    )


def _has_compiled_function(module: nn.Module) -> bool:
    held = [vars(module), *(vars(kind) for kind in type(module).__mro__ if not kind.__module__.startswith("torch."))]
    functions = (value for names in held for value in names.values() if isinstance(value, FunctionType))
    return any("_torchdynamo_orig_callable" in vars(function) for function in functions)


def unreadable(module: nn.Module) -> str | None:
    """Why a recurrent module has no weights that can be read by gate, and what to give instead; else ``None``.

    >>> unreadable(nn.LSTM(3, 4)) is None
    True
    """
    if isinstance(module, torch.jit.ScriptModule):
        if getattr(module, "original_name", "") in _RECURRENT:
            return "it is compiled by torch.jit (script, trace): give the model as it was before"
        return None
    kind = type(module)
    if kind.__module__.startswith(_QUANTISED) and kind.__name__ in _RECURRENT:
        return "it is quantised: give the model as it was before quantisation"
    return None


def missing_weight(module: nn.Module) -> str | None:
    """The first recurrent or input matrix that is no parameter of a torch module; ``None`` where all are."""
    if not isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return None
    names = ["weight_hh", "weight_ih"]
    if isinstance(module, nn.RNNBase):
        ends = [
            f"_l{layer}{way}"
            for layer in range(module.num_layers)
            for way in ("", "_reverse")[: 1 + module.bidirectional]
        ]
        names = [name + end for end in ends for name in names]
    # Not to be computed: in training mode that changes spectral norm's buffers.
    there = (name for name in names if not parametrize.is_parametrized(module, name))
    return next((name for name in there if getattr(module, name, None) is None), None)
