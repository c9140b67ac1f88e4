"""Record the calls of recurrent modules in a training step, with the gradients that its backward pass brings them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn.utils import parametrize

from isornn.capture.batches import tensors_in
from isornn.capture.calls import Call, Given, as_tuple, data_of, dense, is_result, with_data
from isornn.capture.graph import graph_time
from isornn.capture.modules import RecurrentModule, has_own_forward
from isornn.capture.recorder import CallRecorder, Refusal, is_captured
from isornn.capture.torch_functions import FunctionCall, seen_calls
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

    A forward that is the user's own is recorded where it calls its class's, as in a diagnosis.

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
            hooks = self._before, self._leave, self._after
            self._handles += _attached(module, *map(_Uncopied, hooks))

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
        self._within: list[_OwnForward] = []

    def _is_watched(self, module: nn.Module) -> bool:
        # A replica of data parallel training is none of the model's modules.
        known = module in self._modules and module not in self._ended
        return known and torch.is_grad_enabled() and not is_captured(module)

    def _before(self, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not self._is_watched(module):
            return
        self._recorder.open.pop(module, None)  # of a call that ended with an error
        given = self._given(partial(self._recorder.given, module, positional, named))
        if has_own_forward(module):
            seen = seen_calls([module], self._function)
            self._within.append(_OwnForward(module, given, len(self._pending[module]), seen))
            seen.__enter__()
        else:
            self._begin(module, given)

    def _given(self, ask: Callable[[], Given | Refusal]) -> Given | Refusal:
        self._probing = True
        try:
            return ask()
        finally:
            self._probing = False

    def _begin(self, module: nn.Module, given: Given | Refusal) -> None:
        self._recorder.begin(module, given)
        if isinstance(given, Given) and given.made is not None and given.made < self._began:
            self._stale.add(module)

    def _function(self, call: FunctionCall, run: Callable[[], Any]) -> Any:
        """A call of what computes a module, in the user's own forward."""
        module = call.module
        if not self._is_watched(module) or module in self._recorder.open:
            return run()
        self._begin(module, self._given(partial(self._recorder.given_function, call)))
        result = run()
        kept = self._keep(module, call.as_module_returns(result))
        return result if kept is None else call.as_function_returns(kept)

    def _leave(self, module: nn.Module, _: tuple[Any, ...], result: Any) -> None:
        """The end of a user's own forward, also by an error."""
        if self._within and self._within[-1].module is module:
            own = self._within.pop()
            own.seen.__exit__(None, None, None)
            if len(self._pending[module]) == own.before:  # of its class's functions it called none
                self._begin(module, own.given)

    def _after(self, module: nn.Module, _: tuple[Any, ...], result: Any) -> Any:
        return self._keep(module, result)

    def _keep(self, module: nn.Module, result: Any) -> Any:
        """Keep what a call returned; copies of it for the model, ``None`` where it is not kept."""
        if module not in self._recorder.open:
            return None
        if not is_result(module, result):
            return self._recorder.after(module, (), result)  # which keeps the reason
        output = data_of(as_tuple(result)[0])
        if not output.requires_grad:
            del self._recorder.open[module]
            return None
        if module not in self._copies:
            # The weights will have been updated by the time of the measurement.
            self._copies[module] = copied(self._modules[module])
        copies = self._recorder.after(module, (), result)
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


@dataclass(frozen=True)
class _OwnForward:
    """A call of a user's own forward that has not ended.

    Args:
        module: whose it is.
        given: what it was given, for one that calls none of its class's functions.
        before: how many calls of the module were kept before.
        seen: the block in which calls of its class's functions are seen.
    """

    module: nn.Module
    given: Given | Refusal
    before: int
    seen: AbstractContextManager[None]


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
    _keep_as_called(module)
    layers = tuple(layer for layer in recurrent_layers(module) if layer.module is module)
    return replace(found, module=module, layers=layers)


def _keep_as_called(module: nn.Module) -> None:
    """Give a layer of torch the parametrised weights of its last call as plain tensors.

    Those that are drawn whenever they are read, as by weight drop, would else be others than the call's.
    """
    used = vars(module).get("_flat_weights", ())
    # isornn's own parametrisations leave no tensors there, and are the same whenever they are read.
    if not parametrize.is_parametrized(module) or not used or not all(isinstance(one, Tensor) for one in used):
        return
    weights = dict(zip(vars(module)["_flat_weights_names"], used, strict=True))
    computed = [name for name in weights if parametrize.is_parametrized(module, name)]
    module.__class__ = parametrize.type_before_parametrizations(module)
    del module.parametrizations
    vars(module).update({name: weights[name] for name in computed})


def _held(module: nn.Module) -> list[dict[str, Any]]:
    return [vars(part) for part in module.modules()]


def _attached(module: nn.Module, before: Hook, leave: Hook, after: Hook) -> list[Any]:
    """Handles of three hooks: ``before`` gets forward's arguments, ``leave``, which an error calls as well, and then
    ``after`` forward's own return value."""
    return [
        module.register_forward_pre_hook(before, with_kwargs=True),
        # Ahead of the user's own hooks, which may return something else.
        module.register_forward_hook(after, prepend=True),
        module.register_forward_hook(leave, prepend=True, always_call=True),
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
