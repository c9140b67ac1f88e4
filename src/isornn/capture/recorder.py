"""Record the calls of recurrent modules."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from isornn.capture.calls import Call, Given, States, as_tuple, data_of, is_result, with_data
from isornn.capture.graph import changes_gradient, oldest, within_checkpoint
from isornn.capture.origin import Origin
from isornn.capture.preserve import Unmeasurable
from isornn.nn.autocast import autocast_dtype
from isornn.nn.gate_tensors import RecurrentLayer, recurrent_layers

_MARK = "_isornn_captures"


@dataclass
class CallRecorder:
    """Keeps the calls of recurrent modules, before and after their forward; the model continues with copies.

    Args:
        calls: by module, to which each call is added.
        differentiable: whether recorded tensors stay in the graph, so that gradients can be computed.
        refused: by module, why a call could not be read.
        rejected: what no layer can be measured on, in a call's input.
        order: modules whose calls have ended, each once.
        layers: by module, its layers as they were at its first call: a wrapper may set its weights before each.
        open: arguments of calls that have not returned yet, by module.
        ended: the states in which a module's last call ended, with their graph.
    """

    calls: dict[nn.Module, list[Call]]
    differentiable: bool
    refused: dict[nn.Module, str] = field(default_factory=dict)
    rejected: str | None = None
    order: list[nn.Module] = field(default_factory=list)
    layers: dict[nn.Module, tuple[RecurrentLayer, ...]] = field(default_factory=dict)
    open: dict[nn.Module, Given] = field(default_factory=dict)
    ended: dict[nn.Module, States] = field(default_factory=dict)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Within the block every forward of the modules is recorded, whether as ``layer(x)`` or ``layer.forward(x)``,
        which runs no hooks; and they are marked, so that a `Monitor` ignores these calls.

        Raises:
            ValueError: a recurrent module was given inputs that hold no step, or complex ones.
        """
        try:
            with marked(self.calls), ExitStack() as forwards:
                for module in self.calls:
                    forwards.enter_context(_replaced_forward(module, _RecordedForward(module, self)))
                yield
        except Exception as error:
            if self.rejected is not None:  # which a model need not survive
                raise Unmeasurable(self.rejected) from error
            raise
        if self.rejected is not None:
            raise Unmeasurable(self.rejected)

    def before(self, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Keep the arguments of a call."""
        arguments = inspect.signature(module.forward).bind(*positional, **named).arguments
        state = arguments.get("hx", arguments.get("state"))
        inputs = next(iter(arguments.values()), None)
        if not isinstance(inputs, Tensor | PackedSequence):
            self.refused[module] = f"its input is {type(inputs).__name__}, not a tensor or PackedSequence"
            return
        if any(map(_is_transformed, (data_of(inputs), *module.parameters(recurse=False)))):
            self.refused[module] = "it is called within torch.func (vmap, grad), where tensors have no values"
            return
        if data_of(inputs).is_nested:
            self._reject(module, "a nested tensor is not allowed as input of a recurrent layer; pad or pack it")
            return
        if data_of(inputs).numel() == 0:
            shape = tuple(data_of(inputs).shape)
            self._reject(module, f"a recurrent layer receives shape {shape} from it; that holds no step to measure")
            return
        if data_of(inputs).is_complex():
            self._reject(module, "complex numbers are not allowed as input of a recurrent layer")
            return
        if module not in self.layers:
            self.layers[module] = tuple(layer for layer in recurrent_layers(module) if layer.module is module)
        tracked, parts = torch.is_grad_enabled(), None if state is None else as_tuple(state)
        self.open[module] = Given(
            inputs=with_data(inputs, data_of(inputs).detach().clone()),
            state=None if parts is None else tuple(part.detach().clone() for part in parts),
            lengths=arguments.get("lengths"),
            previous=arguments.get("previous"),
            origin=Origin.of(inputs),
            state_origin=None if parts is None else Origin.of(parts[0]),
            tracked=tracked,
            recomputed=not tracked and within_checkpoint(),
            detached=tracked and parts is not None and not any(part.requires_grad for part in parts),
            altered=tracked and parts is not None and self._altered(module, parts),
            made=None if parts is None else oldest(parts),
        )

    def _altered(self, module: nn.Module, state: States) -> bool:
        before = self.ended.get(module)
        return self.differentiable and before is not None and changes_gradient(before, state)

    def _reject(self, module: nn.Module, reason: str) -> None:
        self.refused[module] = self.rejected = f"batch: {reason}"

    def after(self, module: nn.Module, _: tuple[Any, ...], result: Any) -> Any:
        """Keep what a call returned, and return copies of it to the model."""
        given = self.open.pop(module, None)
        if given is None:
            return None
        if not is_result(module, result):
            self.refused[module] = f"it returns {type(result).__name__}, not an output and a state as its class does"
            return None
        stepped = isinstance(module, nn.RNNCellBase)
        state = result if stepped else result[1]
        output = None if stepped else self._kept(result[0])
        final = tuple(self._kept(part) for part in as_tuple(state))
        output = final[0] if output is None else output
        self.ended[module] = final
        precision = _precision(data_of(output))
        self.calls[module].append(Call(**vars(given), output=output, final=final, precision=precision))
        if module not in self.order:
            self.order.append(module)
        # The model continues with copies: what it does to them in place does not touch what was kept.
        copies = tuple(part.clone() for part in final)
        state = copies if isinstance(state, tuple) else copies[0]
        return state if stepped else (with_data(output, data_of(output).clone()), state)

    def _kept(self, value: Any) -> Any:
        data = data_of(value)
        if self.differentiable:
            # A tensor of its own: a module may compute one of its results from another, as h from c, and the gradient
            # wanted is that of the rest of the model with respect to each.
            data = data.view_as(data) if data.requires_grad else data.detach().requires_grad_(True)
        return with_data(value, data)


class _RecordedForward:
    """A module's forward, as long as its calls are recorded; copies and pickles of the module have its own."""

    def __init__(self, module: nn.Module, recorder: CallRecorder) -> None:
        self._module, self._recorder, self._own = module, recorder, module.forward
        update_wrapper(self, module.forward)

    def __call__(self, *positional: Any, **named: Any) -> Any:
        self._recorder.before(self._module, positional, named)
        result = self._own(*positional, **named)
        replaced = self._recorder.after(self._module, positional, result)
        return result if replaced is None else replaced

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        return copy.deepcopy(self._own, memo)

    def __reduce__(self) -> Any:
        return self._own.__reduce__()


@contextmanager
def _replaced_forward(module: nn.Module, forward: _RecordedForward) -> Iterator[None]:
    held = module.__dict__
    before = {name: held[name] for name in ("forward",) if name in held}
    held["forward"] = forward
    try:
        yield
    finally:
        held.pop("forward", None)
        held.update(before)


def _precision(output: Tensor) -> torch.dtype:
    """Of the products behind ``output``, whose dtype may be wider: autocast's, and float16 for the 10 bits of TF32."""
    autocast = autocast_dtype(output.device.type)
    if autocast is not None and output.dtype != torch.float64:
        return autocast
    return torch.float16 if _computed_in_tf32(output) else output.dtype


def _computed_in_tf32(output: Tensor) -> bool:
    """Whether products of float32 numbers may have been rounded as TF32."""
    if not output.is_cuda or output.dtype != torch.float32:
        return False
    try:
        return torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
    except RuntimeError:  # of operators with precisions of their own torch does not say it; some have TF32's
        return True


def _is_transformed(tensor: Tensor) -> bool:
    """Whether it is what `torch.func` hands to the function that it transforms."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


@contextmanager
def marked(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Within the block calls of these modules are a measurement's own, which a `Monitor` ignores."""
    own = list(modules)
    for module in own:
        module.__dict__[_MARK] = True
    try:
        yield
    finally:
        for module in own:
            module.__dict__.pop(_MARK, None)


def is_captured(module: nn.Module) -> bool:
    """Whether the call is one that a measurement makes, not the user's own."""
    return _MARK in module.__dict__
