"""One training step overheard: what each recurrent layer was given and gave, and the gradient that came back to it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from isornn.diagnosis.capture import Call, Listener, as_tuple, data_of, dense, with_data
from isornn.diagnosis.layers import RecurrentModule
from isornn.nn.gate_tensors import recurrent_layers

Hook = Callable[..., Any]


@dataclass(frozen=True)
class Overheard:
    """What one recurrent module did in one training step.

    Args:
        module: with a copy of the module and its weights, as they were in the forward pass; ``None`` where it was not
            called, or not differentiated through.
        calls: those that a gradient reached, with that gradient.
        precision: what autocast computed with, ``None`` without it.
    """

    module: RecurrentModule | None
    calls: list[Call]
    precision: torch.dtype | None


class Ear:
    """Hooks on a model's recurrent modules, from `listen` to `hush`; in between the model has them, else it has none.

    Only calls are kept that can be differentiated, and only until the first gradient arrives: of several forward and
    backward passes before one update (gradient accumulation) the first is heard. What is backpropagated twice counts
    twice, as it does in the parameters' gradients. Passes without gradients, as in evaluation, are not heard.

    The model computes what it computes without them, to the bit: what a module gives is handed on as a copy, which
    gathers its gradient from the same consumers in the same order.

    Raises:
        ValueError: a module that cannot be copied.
    """

    def __init__(self, modules: Sequence[RecurrentModule]) -> None:
        for module in modules:
            copied(module)  # what cannot be copied is refused here, not in the middle of a training step
        self._modules = {module.module: module for module in modules}
        self._handles: list[Any] = []
        self._forget()

    def listen(self) -> None:
        """Put the hooks on."""
        self._forget()
        for module in self._modules:
            before, after = _Uncopied(self._before), _Uncopied(self._after)
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            self._handles.append(module.register_forward_hook(after))

    def hush(self) -> dict[str, Overheard]:
        """Take the hooks off, and say what was heard, by module."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        heard = {
            found.name: Overheard(
                self._copies.get(module),
                [waiting.whole() for waiting in self._waiting[module] if waiting.reached],
                self._precision,
            )
            for module, found in self._modules.items()
        }
        self._forget()
        return heard

    def _forget(self) -> None:
        self._listener = Listener({module: [] for module in self._modules}, differentiable=True)
        self._waiting: dict[nn.Module, list[_Waiting]] = {module: [] for module in self._modules}
        self._copies: dict[nn.Module, RecurrentModule] = {}
        self._precision: torch.dtype | None = None
        self._over = False

    def _before(self, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        if torch.is_grad_enabled() and not self._over:
            self._listener.before(module, positional, named)

    def _after(self, module: nn.Module, positional: tuple[Any, ...], result: Any) -> Any:
        if module not in self._listener.heard:
            return None
        if not data_of(as_tuple(result)[0]).requires_grad:
            del self._listener.heard[module]
            return None
        if module not in self._copies:
            # The weights will have been updated when there is time to measure.
            self._copies[module] = copied(self._modules[module])
        device = data_of(as_tuple(result)[0]).device.type
        if torch.is_autocast_enabled(device):
            self._precision = torch.get_autocast_dtype(device)
        handed_on = self._listener.after(module, positional, result)
        self._waiting[module].append(_Waiting(self._listener.calls[module].pop(), self._end))
        return handed_on

    def _end(self) -> None:
        self._over = True


class _Waiting:
    """A call whose gradients are to come."""

    def __init__(self, call: Call, arrived: Callable[[], None]) -> None:
        tensors = [data_of(call.output), *call.final]
        self._gradients: list[Tensor | None] = [None] * len(tensors)
        for place, tensor in enumerate(tensors):
            tensor.register_hook(self._adding(place, arrived))
        # Detached, so that nothing of the graph is kept.
        call.output = with_data(call.output, tensors[0].detach())
        call.final = tuple(tensor.detach() for tensor in call.final)
        self.call = call

    def _adding(self, place: int, arrived: Callable[[], None]) -> Callable[[Tensor], None]:
        gradients = self._gradients

        def add(gradient: Tensor) -> None:
            arrived()
            # A copy: autograd may go on adding to its own.
            before, now = gradients[place], gradient.detach().clone()
            gradients[place] = now if before is None else before + now

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


def copied(found: RecurrentModule) -> RecurrentModule:
    """The same of a copy of the module.

    Raises:
        ValueError: it cannot be copied.
    """
    try:
        module = copy.deepcopy(found.module)
    except RuntimeError as error:
        raise ValueError(f"model: {found.name or found.kind} cannot be copied: {error}") from None
    places = tuple(place for place in recurrent_layers(module) if place.module is module)
    return replace(found, module=module, places=places)


class _Uncopied:
    """A hook of which a copy of the model, pickled or in memory, has no more than one that does nothing."""

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
