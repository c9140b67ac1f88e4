"""A model that a run leaves bit by bit as it was."""

from __future__ import annotations

import random
from collections import UserDict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy
from torch.nn.utils.spectral_norm import SpectralNorm


class Unmeasurable(ValueError):
    """A model or a batch that cannot be run and measured: names which of the two, and says why."""


@contextmanager
def preserve_state(model: nn.Module, batch: Any = None) -> Iterator[None]:
    """Within the block the model is in eval mode; after it the model is bit by bit what it was before, errors or not.

    So is the batch, to which a forward may write, and from whose dicts it may take entries.

    Restored: values of parameters and buffers, their ``.grad`` and ``requires_grad``, every module's own attributes
    (``training``, hooks, a state carried from call to call) with the contents of tensors, arrays, lists, dicts, sets
    and deques in them and the states of generators, the random state of torch on the CPU and on the model's CUDA
    devices, of numpy and of Python, and whether cuDNN is used. Not restored: what other objects hold that a module's
    attributes refer to.

    Eval mode: dropout is off, so that the run is the one network that the weights describe and can be replayed, and
    batch normalisation uses and keeps its running statistics. Where these are of no data yet, it normalises the batch,
    as it will in training: what comes behind a fresh one would else have another size and mean. Spectral norm by
    `torch.nn.utils.spectral_norm` updates its estimates once, as a training step would: before the first one they are
    random. cuDNN's recurrent layers cannot be differentiated in eval mode, so cuDNN is off within the block.

    Raises:
        ValueError: the model has lazy parameters, which its first run would create, or is on the meta device.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    >>> with preserve_state(model):
    ...     _ = torch.randn(3)
    ...     model.training, model[1].training
    (False, False)
    >>> model[1].training
    True
    """
    tensors = [*model.parameters(), *model.buffers()]
    if any(is_lazy(tensor) for tensor in tensors):
        raise Unmeasurable("model: it has lazy parameters that no run has created yet; run it once before")
    if any(tensor.is_meta for tensor in tensors):
        raise Unmeasurable(
            "model: it is on the meta device, so it has no values; model.to_empty(...) makes room for them, and "
            "load_state_dict or each module's reset_parameters gives them"
        )
    restore: dict[int, Callable[[], object]] = {}
    for module in model.modules():
        _snapshot(module.__dict__, restore)
        if "training" not in module.__dict__:  # a scripted module has it elsewhere
            restore[id(module)] = partial(setattr, module, "training", module.training)
    _snapshot(batch, restore)
    python, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002 (the global state is what is kept)
    devices = sorted({tensor.get_device() for tensor in tensors if tensor.is_cuda})
    try:
        with torch.random.fork_rng(devices=devices), _without_cudnn():
            for module in model.modules():
                module.training = False
                _estimate_spectral_norms(module)
            for module in filter(_is_fresh_norm, model.modules()):
                module.register_forward_pre_hook(_normalise_the_batch, with_kwargs=True)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)  # noqa: NPY002
        with ExitStack() as undone:  # each of them, even if another fails
            for undo in reversed(restore.values()):
                undone.callback(undo)


@contextmanager
def _without_cudnn() -> Iterator[None]:
    # Not by `torch.backends.cudnn.flags`: it asks whether TF32 is allowed, which torch refuses to say where the user
    # has given convolutions and recurrent layers precisions of their own.
    before = torch._C._get_cudnn_enabled()
    torch._C._set_cudnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_cudnn_enabled(before)


@torch.no_grad()
def _estimate_spectral_norms(module: nn.Module) -> None:
    """One power iteration of each weight's norm."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, SpectralNorm):
            hook.compute_weight(module, do_power_iteration=True)


def _is_fresh_norm(module: nn.Module) -> bool:
    """Whether its running statistics are of no data yet."""
    fresh = isinstance(module, _NormBase) and module.running_mean is not None and not module.num_batches_tracked
    return fresh and not isinstance(module, nn.SyncBatchNorm)  # which needs other processes


def _normalise_the_batch(module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
    x = next(iter((*positional, *named.values())))
    module.training = x.numel() > x.shape[1]  # one number has no variance


def _snapshot(value: Any, restore: dict[int, Callable[[], object]]) -> None:
    """Add to ``restore``, by identity, what writes the present content of a value and of all within back in place."""
    if id(value) in restore:
        return
    if isinstance(value, Tensor):
        _snapshot_tensor(value, restore)
    elif isinstance(value, np.ndarray) and value.flags.writeable:
        content = value.copy()
        restore[id(value)] = lambda: np.copyto(value, content)
    elif isinstance(value, dict | list | set | deque):
        before = value.copy()
        restore[id(value)] = lambda: _refill(value, before)
        for one in value.values() if isinstance(value, dict) else value:
            _snapshot(one, restore)
    elif isinstance(value, UserDict):  # transformers' BatchEncoding
        _snapshot(value.data, restore)
    elif isinstance(value, tuple):
        for one in value:
            _snapshot(one, restore)
    elif isinstance(value, torch.Generator):
        drawn = value.get_state()
        restore[id(value)] = lambda: value.set_state(drawn)
    elif isinstance(value, random.Random):
        at = value.getstate()
        restore[id(value)] = lambda: value.setstate(at)
    elif isinstance(value, np.random.RandomState):
        old = value.get_state()
        restore[id(value)] = lambda: value.set_state(old)
    elif isinstance(value, np.random.Generator):
        bits, now = value.bit_generator, value.bit_generator.state
        restore[id(value)] = lambda: setattr(bits, "state", now)


def _refill(container: Any, before: Any) -> None:
    same = len(container) == len(before) and all(a is b for a, b in zip(container, before, strict=True))
    if isinstance(container, dict):
        same = same and all(container[name] is before[name] for name in before)
    if not same:
        container.clear()
        (container.extend if isinstance(container, list | deque) else container.update)(before)


def _snapshot_tensor(tensor: Tensor, restore: dict[int, Callable[[], object]]) -> None:
    if tensor.is_nested:
        for one in tensor.detach().unbind():  # views, which have shapes
            _snapshot_tensor(one, restore)
        return
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        return
    place, required = tensor.detach(), tensor.requires_grad
    value = place.clone()
    gradient = tensor.grad if tensor.is_leaf else None

    def undo() -> None:
        if not _same_place(tensor, place):
            if tensor.is_leaf:
                tensor.grad = None  # it may be of another dtype
            tensor.data = place
        # Compared as bytes: NaN is not equal to itself, and -0 is equal to 0.
        if not torch.equal(_bytes(tensor.detach()), _bytes(value)):
            with torch.no_grad():
                tensor.copy_(value)
        if tensor.requires_grad != required:
            tensor.requires_grad_(required)
        if tensor.is_leaf:
            tensor.grad = gradient

    restore[id(tensor)] = undo
    if gradient is not None:
        _snapshot(gradient, restore)


def _same_place(one: Tensor, other: Tensor) -> bool:
    """Whether they are the same numbers in memory: a forward may resize a buffer, or assign its ``data``."""
    layout = one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()
    return layout and one.device == other.device and one.data_ptr() == other.data_ptr()


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
