"""One run of a model on a batch, and what its recurrent modules heard and said in it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from isornn.diagnosis.keeping import kept_as_found
from isornn.diagnosis.layers import RecurrentModule

States = tuple[Tensor, ...]
Loss = Callable[[Any], Tensor]


@dataclass
class Call:
    """One call of a recurrent module.

    Args:
        inputs: a copy of what it was given.
        state, lengths, previous: as it was given them; ``None`` where not.
        output, final: what it gave, before anything else could write to it.
        of_output, of_final: gradients of the loss, total derivatives; ``None`` where there is no loss.
    """

    inputs: Tensor | PackedSequence
    state: States | None
    lengths: Tensor | Sequence[int] | None
    previous: Tensor | None
    output: Tensor | PackedSequence
    final: States
    of_output: Tensor | PackedSequence | None = None
    of_final: States | None = None


@dataclass(frozen=True)
class Captured:
    """What a run left behind.

    Args:
        calls: by module, in the order of the calls; empty where it was never called.
        loss: the value of the loss, where one was asked for.
    """

    calls: dict[nn.Module, list[Call]]
    loss: float | None


def run(model: nn.Module, modules: Sequence[RecurrentModule], batch: Any, loss: Loss | None) -> Captured:
    """Run ``model`` once on ``batch`` and leave it as it was: see `kept_as_found`.

    Args:
        modules: those of the model whose calls are captured.
        batch: a tensor or PackedSequence is the only argument, a tuple or list the positional ones, a dict the keyword
            arguments.
        loss: of the model's output; gradients are then taken with respect to every captured output and state.

    Raises:
        ValueError: the loss is not one number that depends on a recurrent layer.
    """
    positional, named = _arguments(batch)
    with kept_as_found(model), _listening(modules, loss is not None) as calls, torch.set_grad_enabled(loss is not None):
        output = model(*positional, **named)
        if loss is None:
            return Captured(calls, None)
        value = loss(output)
        _differentiate(value, [call for made in calls.values() for call in made])
        return Captured(calls, float(value.detach()))


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(batch, Mapping):
        return (), dict(batch)
    # A PackedSequence is a tuple too.
    if isinstance(batch, (tuple, list)) and not isinstance(batch, PackedSequence):
        return tuple(batch), {}
    return (batch,), {}


@contextmanager
def _listening(modules: Sequence[RecurrentModule], differentiable: bool) -> Iterator[dict[nn.Module, list[Call]]]:
    calls: dict[nn.Module, list[Call]] = {found.module: [] for found in modules}
    listener = Listener(calls, differentiable)
    handles: list[Any] = []
    try:
        for module in calls:
            handles.append(module.register_forward_pre_hook(listener.before, with_kwargs=True))
            handles.append(module.register_forward_hook(listener.after))
        yield calls
    finally:
        for handle in handles:
            handle.remove()


@dataclass
class Listener:
    """Hooks before and after a recurrent module's forward, which keep its calls; the model goes on with copies.

    Args:
        calls: by module, to which each call is added.
        differentiable: whether what is kept stays in the graph, so that gradients can be asked for.
        heard: what modules were given whose call is not over.
    """

    calls: dict[nn.Module, list[Call]]
    differentiable: bool
    heard: dict[nn.Module, tuple[Any, Any, Any, Any]] = field(default_factory=dict)

    def before(self, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        arguments = inspect.signature(module.forward).bind(*positional, **named).arguments
        state = arguments.get("hx", arguments.get("state"))
        self.heard[module] = (
            _copied(next(iter(arguments.values()))),
            None if state is None else tuple(part.detach().clone() for part in as_tuple(state)),
            arguments.get("lengths"),
            arguments.get("previous"),
        )

    def after(self, module: nn.Module, _: tuple[Any, ...], result: Any) -> Any:
        stepped = isinstance(module, nn.RNNCellBase)
        output, final = (as_tuple(result)[0], result) if stepped else result
        kept_output, kept_final = self._kept(output), tuple(self._kept(part) for part in as_tuple(final))
        if stepped:
            kept_output = kept_final[0]
        self.calls[module].append(Call(*self.heard.pop(module), kept_output, kept_final))
        # The model goes on with copies: what it does to them in place does not touch what was kept.
        states = tuple(part.clone() for part in kept_final)
        final = states if isinstance(final, tuple) else states[0]
        if stepped:
            return final
        return (with_data(kept_output, data_of(kept_output).clone()), final)

    def _kept(self, value: Any) -> Any:
        data = data_of(value)
        if self.differentiable:
            # A name of its own: a module may form one of its results from another, as h from c, and what is asked for
            # is what the rest of the model makes of each.
            data = data.view_as(data) if data.requires_grad else data.detach().requires_grad_(True)
        return with_data(value, data)


def _differentiate(value: Any, calls: Sequence[Call]) -> None:
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"target: it gave {shape}; a loss is a tensor of one number")
    if not value.requires_grad:
        raise ValueError("target: the loss does not depend on any recurrent layer's output")
    tensors = [tensor for call in calls for tensor in (data_of(call.output), *call.final)]
    found = iter(torch.autograd.grad(value.reshape(()), tensors, allow_unused=True))
    for call in calls:
        data = data_of(call.output)
        call.of_output = with_data(call.output, dense(next(found), data))
        call.of_final = tuple(dense(next(found), part) for part in call.final)


def dense(grad: Tensor | None, like: Tensor) -> Tensor:
    """A gradient, 0 where autograd has none."""
    return torch.zeros_like(like) if grad is None else grad.detach()


def as_tuple(state: Any) -> States:
    """A state of one tensor or of several."""
    return (state,) if isinstance(state, Tensor) else tuple(state)


def data_of(value: Any) -> Tensor:
    """The tensor itself, or that of a PackedSequence."""
    return value.data if isinstance(value, PackedSequence) else value


def with_data(value: Any, data: Tensor) -> Any:
    """``data`` in the form of ``value``."""
    return value._replace(data=data) if isinstance(value, PackedSequence) else data


def _copied(value: Any) -> Any:
    return with_data(value, data_of(value).detach().clone())
