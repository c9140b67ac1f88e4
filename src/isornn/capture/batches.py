"""A batch of any form, the model run on it, and the tensors in what a model is given and gives."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from isornn.capture.preserve import Unmeasurable
from isornn.nn.wrappers import unwrapped

_DEPTH = 6  # of containers and objects within an output
_WITHOUT_TENSORS = (nn.Module, ModuleType, type, str, bytes, int, float, type(None))


def check_batch(batch: Any) -> None:
    given = [] if callable(batch) else list(tensors_in(batch))
    if any(tensor.is_meta for tensor in given):
        raise Unmeasurable("batch: a tensor on the meta device is not allowed, as it has no values")
    # Some of several may be empty: features of a kind that the data does not have.
    if given and all(tensor.numel() == 0 for tensor in given):
        raise Unmeasurable(
            f"batch: shape {tuple(given[0].shape)} is not allowed; it must hold at least one sequence of one step"
        )


def runner(model: nn.Module, batch: Any) -> Callable[[], Any]:
    """What runs the model on the batch; a generator that it returns is run to its end."""
    if callable(batch):
        _check_takes_model(batch)
        return lambda: _iterated(batch(model))
    called = unwrapped(model)
    positional, named = _arguments(called, batch)

    def run() -> Any:
        with _refused_batch(called, batch):
            return _iterated(called(*positional, **named))

    return run


def _iterated(output: Any) -> Any:
    """The output, of a generator the list of what it yields: its forward runs as it is iterated."""
    return list(output) if isinstance(output, Generator) else output


def _check_takes_model(function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some that are not written in Python
        return
    if not _binds(signature, None):
        raise Unmeasurable(
            f"batch: a function of ({', '.join(signature.parameters)}) is not allowed; it is called with the model "
            "alone, as lambda model: model(x)"
        )


def _arguments(model: nn.Module, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(batch, Mapping):
        signature = inspect.signature(model.forward)
        if _binds(signature, **batch) or not _binds(signature, batch):
            return (), dict(batch)
        return (batch,), {}
    # A PackedSequence is a tuple too.
    if isinstance(batch, (tuple, list)) and not isinstance(batch, PackedSequence):
        return tuple(batch), {}
    return (batch,), {}


@contextmanager
def _refused_batch(model: nn.Module, batch: Any) -> Iterator[None]:
    """Name the batch where a call fails that had no tensor, or arguments that forward does not have."""
    try:
        yield
    except (AttributeError, TypeError, KeyError) as error:
        signature = inspect.signature(model.forward)
        if isinstance(batch, Mapping):
            unbound = not _binds(signature, **batch)
        else:
            unbound = not _binds(signature, *_arguments(model, batch)[0])
        if not unbound and _holds_tensor(batch):
            raise
        kind, hint = type(batch).__name__, ""
        if isinstance(batch, Mapping):
            kind += f" of {', '.join(map(str, batch)) or 'nothing'}"
        elif isinstance(batch, tuple | list):
            kind, hint = f"{kind} of {len(batch)}", "; of a loader's (inputs, targets) give the inputs"
        raise Unmeasurable(
            f"batch: {kind} is not allowed; it must be what forward takes ({', '.join(signature.parameters)}): "
            f"a tensor, a tuple of arguments or a dict of them by name{hint} ({type(error).__name__}: {error})"
        ) from error


def _holds_tensor(batch: Any) -> bool:
    return any(True for _ in tensors_in(batch))


def _binds(signature: inspect.Signature, *positional: Any, **named: Any) -> bool:
    try:
        signature.bind(*positional, **named)
    except TypeError:
        return False
    return True


def tensors_in(value: Any, depth: int = _DEPTH) -> Iterator[Tensor]:
    """All tensors within containers and the attributes of objects, but for modules of torch and Python, and classes; of
    a nested tensor those that it holds."""
    if isinstance(value, Tensor):
        yield from value.unbind() if value.is_nested else (value,)
    elif depth and not isinstance(value, _WITHOUT_TENSORS):
        if isinstance(value, Mapping):
            parts: Any = value.values()
        elif isinstance(value, tuple | list | set):
            parts = value
        else:
            parts = vars(value).values() if hasattr(value, "__dict__") else ()
        for part in parts:
            yield from tensors_in(part, depth - 1)
