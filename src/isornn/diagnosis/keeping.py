"""A model that is left as it was found."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


@contextmanager
def kept_as_found(model: nn.Module) -> Iterator[None]:
    """Within the block the model is in eval mode; after it the model is bit by bit what it was before, errors or not.

    Kept: values of parameters and buffers, their ``.grad`` and ``requires_grad``, every module's own attributes
    (``training``, hooks, a state that the model carries from call to call), the random state of torch on the CPU and
    on the model's CUDA devices, of numpy and of Python, and cuDNN's flags.

    Eval mode: dropout is off, so that the run is the one network that the weights describe and can be replayed, and
    batch normalisation uses and keeps its running statistics. cuDNN's recurrent layers cannot be differentiated in
    eval mode, so cuDNN is off within the block.

    Raises:
        ValueError: the model has lazy parameters, which its first run would create.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    >>> with kept_as_found(model):
    ...     _ = torch.randn(3)
    ...     model.training, model[1].training
    (False, False)
    >>> model[1].training
    True
    """
    tensors = [*model.parameters(), *model.buffers()]
    if any(is_lazy(tensor) for tensor in tensors):
        raise ValueError("model: it has lazy parameters that no run has created yet; run it once before")
    copies = [(tensor, tensor.detach().clone(), tensor.grad, tensor.requires_grad) for tensor in tensors]
    modules = [(module, _attributes(module)) for module in model.modules()]
    python, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002 (the global state is what is kept)
    devices = sorted({tensor.get_device() for tensor in tensors if tensor.is_cuda})
    cudnn = torch.backends.cudnn
    flags = {"benchmark": cudnn.benchmark, "deterministic": cudnn.deterministic, "allow_tf32": cudnn.allow_tf32}
    try:
        with torch.random.fork_rng(devices=devices), cudnn.flags(enabled=False, **flags):
            for module in model.modules():
                module.training = False
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)  # noqa: NPY002
        for module, (own, tables) in modules:
            _restore(module.__dict__, own)
            for name, table in tables.items():
                _restore(module.__dict__[name], table)
        for tensor, value, grad, required in copies:
            _write_back(tensor, value)
            tensor.requires_grad_(required)
            tensor.grad = grad


def _attributes(module: nn.Module) -> tuple[dict[str, Any], dict[str, dict[Any, Any]]]:
    """A module's attributes, and the entries of those that are tables: parameters, buffers, hooks, parts."""
    own = dict(module.__dict__)
    return own, {name: dict(value) for name, value in own.items() if isinstance(value, dict)}


def _restore(table: dict[Any, Any], entries: Mapping[Any, Any]) -> None:
    if list(table) != list(entries) or any(table[name] is not entries[name] for name in entries):
        table.clear()
        table.update(entries)


def _write_back(tensor: Tensor, value: Tensor) -> None:
    # Compared as bytes: NaN is not equal to itself, and -0 is equal to 0.
    if not torch.equal(_bytes(tensor.detach()), _bytes(value)):
        with torch.no_grad():
            tensor.copy_(value)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
