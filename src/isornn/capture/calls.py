"""Run a model once and record what its recurrent modules were called with and what they returned."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from isornn.capture.axes import Reshaped, reshaped_results, steps_are_rows
from isornn.capture.batches import check_batch, runner
from isornn.capture.preserve import Unmeasurable, preserve_state
from isornn.capture.use import (
    Origin,
    carried_to,
    changes_gradient,
    gradient_is_zero,
    kept_states,
    oldest,
    random_sum,
    reached_by,
    tensors_in,
    within_checkpoint,
)
from isornn.nn.autocast import autocast_dtype
from isornn.nn.gate_tensors import RecurrentLayer, kind_of, recurrent_layers
from isornn.nn.wrappers import is_compiled, unwrapped

States = tuple[Tensor, ...]
Loss = Callable[[Any], Tensor]

_MARK = "_isornn_captures"


@dataclass(frozen=True)
class RecurrentModule:
    """A recurrent module of a model.

    Args:
        name: dotted, as ``model.named_modules`` has it; empty where the model itself is the module.
        module: the module.
        layers: its layers and directions, in the order of its state's first axis.
    """

    name: str
    module: nn.Module
    layers: tuple[RecurrentLayer, ...]

    @property
    def kind(self) -> str:
        """The class that the user named: ``LSTM``, ``GRUCell``."""
        return kind_of(self.module)

    @property
    def label(self) -> str:
        """What messages call it: its name, or its class where the model itself is the module."""
        return self.name or self.kind

    @property
    def steps_by_hand(self) -> bool:
        """Whether the user's own loop calls it, step by step."""
        return isinstance(self.module, nn.RNNCellBase)

    @property
    def directions(self) -> int:
        """1, or 2 where it is bidirectional."""
        return 1 + max(layer.direction for layer in self.layers)

    @property
    def untied(self) -> bool:
        """Whether its weights are fresh at every step, so that a run cannot be repeated."""
        return bool(getattr(self.module, "untied", False))


def recurrent_modules(model: nn.Module) -> list[RecurrentModule]:
    """Every recurrent module of ``model``, itself included; by the names within DataParallel, DDP and torch.compile.

    Raises:
        ModuleError: there is none.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.LSTM(3, 4, bidirectional=True))
    >>> [(found.name, found.kind, len(found.layers)) for found in recurrent_modules(model)]
    [('1', 'LSTM', 2)]
    """
    model = unwrapped(model) if isinstance(model, nn.Module) else model
    grouped: dict[nn.Module, list[RecurrentLayer]] = {}
    for layer in recurrent_layers(model):
        grouped.setdefault(layer.module, []).append(layer)
    names = {module: name for name, module in model.named_modules()}
    return [RecurrentModule(_within(names[module]), module, tuple(layers)) for module, layers in grouped.items()]


def _within(name: str) -> str:
    """The name without those that torch.compile adds to it."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def as_called(found: RecurrentModule, layers: Mapping[nn.Module, tuple[RecurrentLayer, ...]]) -> RecurrentModule:
    """The module with the weights that it was called with, where it was; with the names that it goes by."""
    own = layers.get(found.module)
    if own is None:
        return found
    named = zip(found.layers, own, strict=True)
    return replace(found, layers=tuple(replace(now, where=before.where) for before, now in named))


@dataclass
class Given:
    """What a recurrent module is called with.

    Args:
        inputs: a copy of its input.
        state, lengths, previous: its further arguments; ``None`` where not given.
        origin, state_origin: where its input was in memory; the first part of its state.
        tracked: whether the call is made with gradients enabled.
        recomputed: whether it is made without, by `torch.utils.checkpoint`, which makes it again with them.
        detached: whether it is, and given a state without a gradient.
        altered: whether its state is that in which the call before ended, and has another gradient: see
            `isornn.capture.use.changes_gradient`.
        made: when the graph node of its state was made, as `graph_time`; ``None`` without one.
    """

    inputs: Tensor | PackedSequence
    state: States | None
    lengths: Tensor | Sequence[int] | None
    previous: Tensor | None
    origin: Origin | None
    state_origin: Origin | None
    tracked: bool
    recomputed: bool
    detached: bool
    altered: bool
    made: int | None


@dataclass
class Call(Given):
    """One call of a recurrent module.

    Args:
        output, final: what it returned, before anything else could write to it.
        precision: what its products are computed in.
        of_output, of_final: gradients of the loss, total derivatives. Without a loss, of a random sum of the model's
            outputs where use is looked at, else ``None``.
    """

    output: Tensor | PackedSequence
    final: States
    precision: torch.dtype
    of_output: Tensor | PackedSequence | None = None
    of_final: States | None = None


@dataclass(frozen=True)
class Captured:
    """Result of one run.

    Args:
        calls: by module, in the order of the calls; empty where it was never called.
        refused: by module, why its calls could not be read.
        order: modules in the order in which their first calls ended.
        loss: the value of the loss, where one was given.
        reached: by module, whether the loss, or without one the model's output, depends on its results; modules of
            which that is not known are left out.
        layers: by module, its layers with the weights that its first call had.
        carried: modules that a second run on the same batch starts from the state in which the first ended, with
            whether that state still has the first run's graph.
        held: by module, the attribute of the model that holds a state in which it ended.
        along_batch: modules whose steps are the rows of the model's output: see `isornn.capture.axes.steps_are_rows`.
        zero_gradient: modules that a gradient of the model's output leads to, and is exactly 0: see
            `isornn.capture.use.gradient_is_zero`. Not looked at where there is a loss.
        reshaped: by module, which of its results is reshaped where its axes were to be exchanged.
        output_nan: how many numbers in the model's output are NaN, of how many.
    """

    calls: dict[nn.Module, list[Call]]
    refused: dict[nn.Module, str]
    order: list[nn.Module]
    loss: float | None
    reached: Mapping[nn.Module, bool] = field(default_factory=dict)
    carried: Mapping[nn.Module, bool] = field(default_factory=dict)
    layers: Mapping[nn.Module, tuple[RecurrentLayer, ...]] = field(default_factory=dict)
    held: Mapping[nn.Module, str] = field(default_factory=dict)
    along_batch: frozenset[nn.Module] = frozenset()
    zero_gradient: frozenset[nn.Module] = frozenset()
    reshaped: Mapping[nn.Module, Reshaped] = field(default_factory=dict)
    output_nan: tuple[int, int] = (0, 0)


def capture(
    model: nn.Module,
    modules: Sequence[RecurrentModule],
    batch: Any,
    loss: Loss | None,
    *,
    use: bool = False,
    training: bool = False,
) -> Captured:
    """Run ``model`` once on ``batch`` and leave both as they were: see `preserve_state`.

    Args:
        modules: those of the model whose calls are captured.
        batch: a tensor or PackedSequence is the only argument, a tuple or list the positional ones. A dict holds the
            keyword arguments, or is itself the only argument where forward has no such keywords. A function is called
            with the model and runs it, where that is not by forward: ``lambda model: model.training_step(batch, 0)``.
        loss: of the model's output; gradients are then taken with respect to every captured output and state.
        use: whether to find out what the model does with its modules' results, by a run with gradients enabled; else
            they are not. Where such a run fails, as of a model that computes forces as gradients, one the other way is
            made. A model that keeps a state is run a second time.
        training: whether modules of the user's own classes are in training mode. Dropout and normalisation never are.

    Raises:
        ValueError: the batch is empty, on the meta device, complex where a recurrent layer reads it, or not what
            forward takes; the loss is not one number that depends on a recurrent layer.
    """
    check_batch(batch)
    run = runner(model, batch)
    model = unwrapped(model)
    recorded = partial(_recorded, model, modules, batch, run, loss, training=training)
    if loss is not None:
        return recorded(differentiable=True)
    # A forward may hand its output to numpy, or compute gradients; if it fails anyway, the second run says why.
    with suppress(Exception):
        return recorded(differentiable=use)
    return recorded(differentiable=not use)


def _recorded(
    model: nn.Module,
    modules: Sequence[RecurrentModule],
    batch: Any,
    run: Callable[[], Any],
    loss: Loss | None,
    *,
    differentiable: bool,
    training: bool,
) -> Captured:
    recorder, again = (CallRecorder({found.module: [] for found in modules}, differentiable) for _ in range(2))
    # A compiled module calls no hooks.
    eager = torch.compiler.set_stance("force_eager") if is_compiled(model) else nullcontext()
    with eager, preserve_state(model, batch), torch.set_grad_enabled(differentiable):
        for module in model.modules() if training else ():
            module.training = not type(module).__module__.startswith(("torch.", "isornn."))
        with recorder.attached():
            output = run()
        calls, value, reached = recorder.calls, None, dict[nn.Module, bool]()
        zero_gradient = frozenset[nn.Module]()
        along_batch = frozenset(own for own, made in calls.items() if steps_are_rows(own, made, output))
        reshaped = reshaped_results(calls, output)
        if loss is not None:
            value = loss(output)
            led_to = _differentiate(value, [call for made in calls.values() for call in made])
            judged = {module: made for module, made in calls.items() if not any(call.recomputed for call in made)}
            reached = {module: any(id(call) in led_to for call in made) for module, made in judged.items() if made}
        elif differentiable:
            reached = reached_by(output, calls)
            with suppress(Exception):  # of a gradient that nobody asked for
                led_to = _differentiate(random_sum(output), [call for made in calls.values() for call in made])
                zero_gradient = frozenset(
                    own for own, made in calls.items() if gradient_is_zero(model, own, made, led_to)
                )
        held = kept_states(model, calls) if differentiable else {}
        if held:
            with again.attached(), suppress(Exception):  # of a run that nobody asked for
                run()
        carried = {
            module: not made[0].detached for module, made in again.calls.items() if carried_to(made, calls[module])
        }
        known = None if value is None else float(value.detach())
        refused, order, layers = recorder.refused, recorder.order, recorder.layers
        numbers = [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]
        output_nan = sum(int(one.isnan().sum()) for one in numbers), sum(one.numel() for one in numbers)
        return Captured(
            calls=calls,
            refused=refused,
            order=order,
            loss=known,
            reached=reached,
            carried=carried,
            layers=layers,
            held=held,
            along_batch=along_batch,
            zero_gradient=zero_gradient,
            reshaped=reshaped,
            output_nan=output_nan,
        )


@dataclass
class CallRecorder:
    """Hooks before and after a recurrent module's forward that keep its calls; the model continues with copies.

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
        """Within the block the modules have the hooks, and are marked, so that a `Monitor` ignores these calls.

        Raises:
            ValueError: a recurrent module was given inputs that hold no step, or complex ones.
        """
        handles: list[Any] = []
        try:
            with marked(self.calls):
                for module in self.calls:
                    handles += attach(module, self.before, self.after)
                yield
        except Exception as error:
            if self.rejected is not None:  # which a model need not survive
                raise Unmeasurable(self.rejected) from error
            raise
        finally:
            for handle in handles:
                handle.remove()
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
        if data_of(inputs).numel() == 0:
            shape = tuple(data_of(inputs).shape)
            self._reject(module, f"a recurrent layer receives shape {shape} from it; that holds no step to measure")
            return
        if data_of(inputs).is_complex():
            self._reject(module, "complex numbers are not allowed as input of a recurrent layer")
            return
        if module not in self.layers:
            self.layers[module] = tuple(layer for layer in recurrent_layers(module) if layer.module is module)
        tracked = torch.is_grad_enabled()
        self.open[module] = Given(
            with_data(inputs, data_of(inputs).detach().clone()),
            None if state is None else tuple(part.detach().clone() for part in as_tuple(state)),
            arguments.get("lengths"),
            arguments.get("previous"),
            Origin.of(inputs),
            None if state is None else Origin.of(as_tuple(state)[0]),
            tracked,
            not tracked and within_checkpoint(),
            tracked and state is not None and not any(part.requires_grad for part in as_tuple(state)),
            tracked and state is not None and self._altered(module, as_tuple(state)),
            None if state is None else oldest(as_tuple(state)),
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
        stepped = isinstance(module, nn.RNNCellBase)
        if not is_result(module, result):
            self.refused[module] = f"it returns {type(result).__name__}, not an output and a state as its class does"
            return None
        output, final = (as_tuple(result)[0], result) if stepped else result
        kept_output, kept_final = self._kept(output), tuple(self._kept(part) for part in as_tuple(final))
        self.ended[module] = kept_final
        if stepped:
            kept_output = kept_final[0]
        precision = _precision(data_of(kept_output))
        self.calls[module].append(Call(**vars(given), output=kept_output, final=kept_final, precision=precision))
        if module not in self.order:
            self.order.append(module)
        # The model continues with copies: what it does to them in place does not touch what was kept.
        states = tuple(part.clone() for part in kept_final)
        final = states if isinstance(final, tuple) else states[0]
        if stepped:
            return final
        return (with_data(kept_output, data_of(kept_output).clone()), final)

    def _kept(self, value: Any) -> Any:
        data = data_of(value)
        if self.differentiable:
            # A tensor of its own: a module may compute one of its results from another, as h from c, and the gradient
            # wanted is that of the rest of the model with respect to each.
            data = data.view_as(data) if data.requires_grad else data.detach().requires_grad_(True)
        return with_data(value, data)


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


def attach(module: nn.Module, before: Callable[..., Any], after: Callable[..., Any]) -> list[Any]:
    """Handles of two hooks: ``before`` gets forward's arguments, ``after`` forward's own return value."""
    return [
        module.register_forward_pre_hook(before, with_kwargs=True),
        # Ahead of the user's own hooks, which may return something else.
        module.register_forward_hook(after, prepend=True),
    ]


def is_result(module: nn.Module, result: Any) -> bool:
    """Whether it is what a module of its class returns: an output and a state, of a cell the state alone."""
    if isinstance(module, nn.RNNCellBase):
        return _is_state(result)
    return (
        isinstance(result, tuple | list)
        and len(result) == 2
        and isinstance(result[0], Tensor | PackedSequence)
        and _is_state(result[1])
    )


def _is_state(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, tuple) and all(isinstance(part, Tensor) for part in value))


def _differentiate(value: Any, calls: Sequence[Call]) -> set[int]:
    """Note the gradients of ``value``, and return the ids of the calls that its graph leads to.

    These include calls whose gradient is 0: behind a head that begins with weights of 0 only the first update has none.
    """
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"target: it gave {shape}; a loss is a tensor of one number")
    if not value.requires_grad:
        raise ValueError("target: the loss does not depend on any recurrent layer's output")
    tensors = [tensor for call in calls for tensor in (data_of(call.output), *call.final)]
    found = iter(torch.autograd.grad(value.reshape(()), tensors, allow_unused=True))
    led_to = set()
    for call in calls:
        data, gradients = data_of(call.output), [next(found) for _ in range(1 + len(call.final))]
        if any(gradient is not None for gradient in gradients):
            led_to.add(id(call))
        call.of_output = with_data(call.output, dense(gradients[0], data))
        call.of_final = tuple(map(dense, gradients[1:], call.final))
    return led_to


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
