"""Record the calls of recurrent modules in a training step, with the gradients that its backward pass brings them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from isornn.capture.batches import tensors_in
from isornn.capture.calls import Call, as_tuple, data_of, dense, is_result, with_data
from isornn.capture.graph import graph_time
from isornn.capture.modules import RecurrentModule
from isornn.capture.recorder import CallRecorder, is_captured
from isornn.nn.gate_tensors import recurrent_layers

Hook = Callable[..., Any]


@dataclass(frozen=True)
class RecordedStep:
    """Calls and gradients of one recurrent module in one training step.

    Args:
        module: with a copy of the module and its weights, as they were in the forward pass; ``None`` where it was not
            called, or not differentiated through.
        calls: those that a gradient reached, with that gradient.
        refused: why its calls could not be read; ``None`` where they were.
        stale: whether a call was given a state whose graph is older than the step.
    """

    module: RecurrentModule | None
    calls: list[Call]
    refused: str | None = None
    stale: bool = False


class StepRecorder:
    """Hooks on a model's recurrent modules, from `attach` to `detach`; otherwise the model has none.

    Only calls are kept that can be differentiated, and only until the module's first gradient arrives: of several
    forward and backward passes before one update (gradient accumulation, or a loss for each of several networks) the
    first that reaches the module is recorded. What is backpropagated twice counts twice, as it does in the parameters'
    gradients. Passes without gradients, as in evaluation, are not recorded, nor gradients that do not go on to the
    module's parameters, as `torch.autograd.grad` has them with respect to inputs (gradient penalties, saliency).

    The model computes the same as without them, to the bit: the rest of the model gets a copy of what a module
    returns, which gathers its gradient from the same consumers in the same order.

    Raises:
        ValueError: a module that cannot be copied.
    """

    def __init__(self, modules: Sequence[RecurrentModule]) -> None:
        for module in modules:
            copied(module)  # what cannot be copied is refused here, not in the middle of a training step
        self._modules = {module.module: module for module in modules}
        self._handles: list[Any] = []
        self._forget()

    def attach(self) -> None:
        """Register the hooks."""
        self._forget()
        self._began = graph_time()
        for module in self._modules:
            self._handles += _attached(module, _Uncopied(self._before), _Uncopied(self._after))

    def detach(self) -> dict[str, RecordedStep]:
        """Remove the hooks; what was recorded, by the module's name."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        recorded = {
            found.name: RecordedStep(
                self._copies.get(module),
                [pending.whole() for pending in self._pending[module] if pending.reached],
                self._recorder.refused.get(module),
                module in self._stale,
            )
            for module, found in self._modules.items()
        }
        self._forget()
        return recorded

    def _forget(self) -> None:
        self._recorder = CallRecorder({module: [] for module in self._modules}, differentiable=True)
        self._pending: dict[nn.Module, list[_PendingCall]] = {module: [] for module in self._modules}
        self._copies: dict[nn.Module, RecurrentModule] = {}
        self._ended: set[nn.Module] = set()
        self._probing = False
        self._began = 0
        self._stale: set[nn.Module] = set()

    def _before(self, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        if torch.is_grad_enabled() and module not in self._ended and not is_captured(module):
            self._probing = True
            try:
                self._recorder.before(module, positional, named)
            finally:
                self._probing = False
            given = self._recorder.open.get(module)
            if given is not None and given.made is not None and given.made < self._began:
                self._stale.add(module)

    def _after(self, module: nn.Module, positional: tuple[Any, ...], result: Any) -> Any:
        if module not in self._recorder.open:
            return None
        if not is_result(module, result):
            return self._recorder.after(module, positional, result)  # which keeps the reason
        output = data_of(as_tuple(result)[0])
        if not output.requires_grad:
            del self._recorder.open[module]
            return None
        if module not in self._copies:
            # The weights will have been updated by the time of the measurement.
            self._copies[module] = copied(self._modules[module])
        copies = self._recorder.after(module, positional, result)
        weights = [get_gradient_edge(weight).node for weight in module.parameters() if weight.requires_grad]
        arrived = partial(self._arrived, module, weights)
        self._pending[module].append(_PendingCall(self._recorder.calls[module].pop(), arrived))
        return copies

    def _arrived(self, module: nn.Module, weights: Sequence[Node]) -> bool:
        """Whether a gradient counts: it is not the recorder's own probe between two calls, and its backward pass
        reaches the weights, if any is trained."""
        counts = not self._probing and (not weights or any(map(_is_reached, weights)))
        if counts:
            self._ended.add(module)
        return counts


class _PendingCall:
    """A call whose gradients are to come."""

    def __init__(self, call: Call, arrived: Callable[[], bool]) -> None:
        tensors = [data_of(call.output), *call.final]
        self._gradients: list[Tensor | None] = [None] * len(tensors)
        for number, tensor in enumerate(tensors):
            tensor.register_hook(self._adding(number, arrived))
        # Detached, so that nothing of the graph is kept.
        call.output = with_data(call.output, tensors[0].detach())
        call.final = tuple(tensor.detach() for tensor in call.final)
        self.call = call

    def _adding(self, number: int, arrived: Callable[[], bool]) -> Callable[[Tensor], None]:
        gradients = self._gradients

        def add(gradient: Tensor) -> None:
            if not arrived():
                return
            # A copy: autograd may go on adding to its own.
            before, now = gradients[number], gradient.detach().clone()
            gradients[number] = now if before is None else before + now

        return add

    @property
    def reached(self) -> bool:
        """Whether a gradient came."""
        return any(gradient is not None for gradient in self._gradients)

    def whole(self) -> Call:
        """The call with its gradients, 0 where none came."""
        of_output, *of_final = self._gradients
        output, final = self.call.output, self.call.final
        return replace(
            self.call,
            of_output=with_data(output, dense(of_output, data_of(output))),
            of_final=tuple(dense(one, state) for one, state in zip(of_final, final, strict=True)),
        )


def _is_reached(node: Node) -> bool:
    """Whether the backward pass in which this is called computes the node's gradient."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # what `torch.autograd.grad` is asked for, of a weight itself
        return True


def copied(found: RecurrentModule) -> RecurrentModule:
    """The same of a copy of the module.

    Raises:
        ValueError: it cannot be copied.
    """
    # Weights that were computed, as by weight norm, are copied as the numbers that they were.
    numbers = {id(tensor): tensor.detach().clone() for tensor in tensors_in(_held(found.module)) if not tensor.is_leaf}
    try:
        module = copy.deepcopy(found.module, numbers)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"model: {found.label} cannot be copied: {error}") from None
    layers = tuple(layer for layer in recurrent_layers(module) if layer.module is module)
    return replace(found, module=module, layers=layers)


def _held(module: nn.Module) -> list[dict[str, Any]]:
    return [vars(part) for part in module.modules()]


def _attached(module: nn.Module, before: Hook, after: Hook) -> list[Any]:
    """Handles of two hooks: ``before`` gets forward's arguments, ``after`` forward's own return value."""
    return [
        module.register_forward_pre_hook(before, with_kwargs=True),
        # Ahead of the user's own hooks, which may return something else.
        module.register_forward_hook(after, prepend=True),
    ]


class _Uncopied:
    """A hook that a copy of the model, pickled or in memory, has replaced by one that does nothing."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook

    def __call__(self, *arguments: Any) -> Any:
        return self._hook(*arguments)

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        return _silent

    def __reduce__(self) -> tuple[Callable[[], Hook], tuple[()]]:
        return _silence, ()


def _silent(*_: Any) -> None:
    return None


def _silence() -> Hook:
    return _silent
