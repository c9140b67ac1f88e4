"""Record the calls of recurrent modules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, update_wrapper
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from isornn.capture.calls import Call, Given, States, as_tuple, data_of, is_result, with_data
from isornn.capture.graph import changes_gradient, oldest, within_checkpoint
from isornn.capture.modules import has_own_forward
from isornn.capture.origin import Origin
from isornn.capture.preserve import Unmeasurable
from isornn.capture.torch_functions import FunctionCall, Replacement, replaced, seen_calls
from isornn.nn.autocast import autocast_dtype
from isornn.nn.gate_tensors import RecurrentLayer, recurrent_layers
from isornn.nn.rnn import RNN

_MARK = "_isornn_captures"


@dataclass(frozen=True)
class Refusal:
    """Why a call cannot be read; ``of_batch`` where that is a fault of the batch, on which no layer can be measured."""

    reason: str
    of_batch: bool = False


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

        A forward that is the user's own and calls its class's, ``super().forward(x)``, is recorded where it does, as
        one that is called by its class, ``nn.GRU.forward(layer, x)``: what it adds is the model's, not the layer's.

        Raises:
            ValueError: a recurrent module was given inputs that hold no step, or complex ones.
        """
        try:
            with marked(self.calls), ExitStack() as forwards:
                for module in self.calls:
                    forwards.enter_context(replaced(module, "forward", _RecordedForward(module, self)))
                with seen_calls(self.calls, self.function):
                    yield
        except Exception as error:
            if self.rejected is not None:  # which a model need not survive
                raise Unmeasurable(self.rejected) from error
            raise
        if self.rejected is not None:
            raise Unmeasurable(self.rejected)

    def begin(self, module: nn.Module, given: Given | Refusal) -> None:
        """Keep what a call is given, or why it cannot be read."""
        if isinstance(given, Given):
            if module not in self.layers:
                self.layers[module] = tuple(layer for layer in recurrent_layers(module) if layer.module is module)
            self.open[module] = given
            return
        self.refused[module] = given.reason
        if given.of_batch:
            self.rejected = given.reason

    def given(self, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Given | Refusal:
        """What a call of the module's forward is given."""
        arguments = inspect.signature(module.forward).bind(*positional, **named).arguments
        state = arguments.get("hx", arguments.get("state"))
        inputs = next(iter(arguments.values()), None)
        return self._given(module, inputs, state, arguments.get("lengths"), arguments.get("previous"))

    def _given(
        self,
        module: nn.Module,
        inputs: Any,
        state: Any,
        lengths: Tensor | Sequence[int] | None = None,
        previous: Tensor | None = None,
    ) -> Given | Refusal:
        refusal = _refusal_of(module, inputs, state)
        if refusal is not None:
            return refusal
        tracked, parts = torch.is_grad_enabled(), None if state is None else as_tuple(state)
        return Given(
            inputs=with_data(inputs, data_of(inputs).detach().clone()),
            state=None if parts is None else tuple(part.detach().clone() for part in parts),
            lengths=lengths,
            previous=previous,
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

    def given_function(self, call: FunctionCall) -> Given | Refusal:
        """What a call of the function that computes a module is given."""
        given = self._given(call.module, call.inputs, call.state, call.lengths, call.previous)
        of_torch = not isinstance(call.module, RNN)
        # As torch's forward makes it where it is given none.
        if isinstance(given, Given) and of_torch and _is_blank(call.state):
            given = replace(given, state=None, state_origin=None, detached=False, altered=False)
        return given

    def function(self, call: FunctionCall, run: Callable[[], Any]) -> Any:
        """Keep a call of the function that computes a module, unless that module's forward is being recorded."""
        module = call.module
        if module in self.open:
            return run()
        self.begin(module, self.given_function(call))
        return call.as_function_returns(self.end(module, call.as_module_returns(run())))

    def after(self, module: nn.Module, _: tuple[Any, ...], result: Any) -> Any:
        """Keep what a call returned, and return copies of it to the model."""
        given = self.open.pop(module, None)
        if given is None:
            return None
        if not is_result(module, result):
            self.refuse_result(module, result)
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

    def end(self, module: nn.Module, result: Any) -> Any:
        """Keep what a call returned; what the model is to go on with."""
        replaced = self.after(module, (), result)
        return result if replaced is None else replaced

    def refuse_result(self, module: nn.Module, result: Any) -> None:
        """Note that a call returned what none of the module's class does."""
        self.refused[module] = f"it returns {type(result).__name__}, not an output and a state as its class does"

    def _kept(self, value: Any) -> Any:
        data = data_of(value)
        if self.differentiable:
            # A tensor of its own: a module may compute one of its results from another, as h from c, and the gradient
            # wanted is that of the rest of the model with respect to each.
            data = data.view_as(data) if data.requires_grad else data.detach().requires_grad_(True)
        return with_data(value, data)


class _RecordedForward(Replacement):
    """A module's forward, as long as its calls are recorded."""

    def __init__(self, module: nn.Module, recorder: CallRecorder) -> None:
        super().__init__(module.forward)
        self._module, self._recorder = module, recorder
        update_wrapper(self, module.forward)

    def __call__(self, *positional: Any, **named: Any) -> Any:
        recorder, module = self._recorder, self._module
        given = recorder.given(module, positional, named)
        if has_own_forward(module):
            return self._recorded_within(given, partial(self._own, *positional, **named))
        recorder.begin(module, given)
        return recorder.end(module, self._own(*positional, **named))

    def _recorded_within(self, given: Given | Refusal, run: Callable[[], Any]) -> Any:
        """The result of the user's own forward, recorded as a whole if none of its class's functions was."""
        recorder, module = self._recorder, self._module
        before = len(recorder.calls[module])
        try:
            result = run()
        except Exception:
            if isinstance(given, Refusal):  # which may be the reason
                recorder.begin(module, given)
            raise
        if isinstance(result, Generator):
            return self._iterated(result, before)
        if len(recorder.calls[module]) > before:
            return result
        recorder.begin(module, given)
        return recorder.end(module, result)

    def _iterated(self, result: Generator[Any, Any, Any], before: int) -> Generator[Any, Any, Any]:
        """The same; a generator's forward runs as it is iterated."""
        returned = yield from result
        if len(self._recorder.calls[self._module]) == before:
            self._recorder.refuse_result(self._module, result)
        return returned


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


def _refusal_of(module: nn.Module, inputs: Any, state: Any) -> Refusal | None:
    """Why a call of the module on ``inputs``, from ``state``, cannot be read; ``None`` where it can."""
    if not isinstance(inputs, Tensor | PackedSequence):
        return Refusal(f"its input is {type(inputs).__name__}, not a tensor or PackedSequence")
    if not (state is None or isinstance(state, Tensor) or _are_tensors(state)):
        return Refusal(f"its state is {type(state).__name__}, not a tensor or a tuple of tensors")
    data = data_of(inputs)
    if any(map(_is_transformed, (data, *module.parameters(recurse=False)))):
        return Refusal("it is called within torch.func (vmap, grad), where tensors have no values")
    wrong = None
    if data.is_nested:
        wrong = "a nested tensor is not allowed as input of a recurrent layer; pad or pack it"
    elif data.numel() == 0:
        wrong = f"a recurrent layer receives shape {tuple(data.shape)} from it; that holds no step to measure"
    elif data.is_complex():
        wrong = "complex numbers are not allowed as input of a recurrent layer"
    return None if wrong is None else Refusal(f"batch: {wrong}", of_batch=True)


def _are_tensors(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(part, Tensor) for part in value)


def _is_blank(state: States) -> bool:
    """Whether it is 0 and has no gradient."""
    return not any(part.requires_grad or bool(part.any()) for part in state)


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
