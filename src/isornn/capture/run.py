"""Run a model once: what its recurrent modules were called with and returned, and what the model does with that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from isornn.capture.axes import Reshaped, reshaped, steps_are_rows
from isornn.capture.batches import check_batch, runner, tensors_in
from isornn.capture.calls import Call, data_of, dense, with_data
from isornn.capture.graph import behind_zero, gradient_is_zero, random_sum, reached_by
from isornn.capture.modules import RecurrentModule
from isornn.capture.preserve import preserve_state
from isornn.capture.recorder import CallRecorder
from isornn.capture.use import carried_to, kept_states
from isornn.nn.gate_tensors import RecurrentLayer
from isornn.nn.wrappers import is_compiled, unwrapped

Loss = Callable[[Any], Tensor]


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
            `isornn.capture.graph.gradient_is_zero`. Not looked at where there is a loss.
        behind_zero: modules of which gradients may be 0 at first alone: see `isornn.capture.graph.behind_zero`.
        reshaped: by module, which of its input and results is reshaped where axes were to be exchanged.
        output_nan: how many numbers in the model's output are NaN, of how many.
    """

    calls: dict[nn.Module, list[Call]]
    refused: dict[nn.Module, str]
    order: list[nn.Module]
    loss: float | None = None
    reached: Mapping[nn.Module, bool] = field(default_factory=dict)
    carried: Mapping[nn.Module, bool] = field(default_factory=dict)
    layers: Mapping[nn.Module, tuple[RecurrentLayer, ...]] = field(default_factory=dict)
    held: Mapping[nn.Module, str] = field(default_factory=dict)
    along_batch: frozenset[nn.Module] = frozenset()
    zero_gradient: frozenset[nn.Module] = frozenset()
    behind_zero: frozenset[nn.Module] = frozenset()
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
    hooks: bool = True,
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
        hooks: whether forward hooks run (those before a forward always do).

    Raises:
        ValueError: the batch is empty, on the meta device, complex where a recurrent layer reads it, or not what
            forward takes; the loss is not one number that depends on a recurrent layer.
    """
    check_batch(batch)
    run = runner(model, batch)
    model = unwrapped(model)
    recorded = partial(_recorded, model, modules, batch, run, loss, training=training, hooks=hooks)
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
    hooks: bool,
) -> Captured:
    recorder = CallRecorder({found.module: [] for found in modules}, differentiable)
    # A compiled module calls no hooks.
    eager = torch.compiler.set_stance("force_eager") if is_compiled(model) else nullcontext()
    with eager, preserve_state(model, batch), torch.set_grad_enabled(differentiable):
        for module in model.modules() if training else ():
            module.training = is_users(module)
        for module in () if hooks else model.modules():
            module._forward_hooks.clear()  # which are there again afterwards
        with recorder.attached():
            output = run()
        calls = recorder.calls
        found = Captured(
            calls=calls,
            refused=recorder.refused,
            order=recorder.order,
            layers=recorder.layers,
            along_batch=frozenset(own for own, made in calls.items() if steps_are_rows(own, made, output)),
            reshaped=reshaped(calls, batch, output),
            output_nan=_nan_in(output),
        )
        if not differentiable:
            return found
        found = replace(
            found, behind_zero=frozenset(own for own, made in calls.items() if behind_zero(model, own, made))
        )
        if loss is None:
            zero = _with_zero_gradient(output, calls) - found.behind_zero
            found = replace(found, reached=reached_by(output, calls), zero_gradient=zero)
        else:
            value = loss(output)
            reached = _reached_by_loss(value, calls)
            found = replace(found, reached=reached, loss=float(value.detach()))
        held = kept_states(model, calls)
        return replace(found, held=held, carried=_carried(run, calls) if held else {})


def is_users(module: nn.Module) -> bool:
    """Whether its class is neither torch's nor isornn's."""
    return not type(module).__module__.startswith(("torch.", "isornn."))


def _nan_in(output: Any) -> tuple[int, int]:
    numbers = [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]
    return sum(int(one.isnan().sum()) for one in numbers), sum(one.numel() for one in numbers)


def _reached_by_loss(value: Any, calls: Mapping[nn.Module, Sequence[Call]]) -> dict[nn.Module, bool]:
    led_to = _differentiate(value, calls)
    judged = {module: made for module, made in calls.items() if not any(call.recomputed for call in made)}
    return {module: any(id(call) in led_to for call in made) for module, made in judged.items() if made}


def _with_zero_gradient(output: Any, calls: Mapping[nn.Module, Sequence[Call]]) -> frozenset[nn.Module]:
    with suppress(Exception):  # of a gradient that nobody asked for
        led_to = _differentiate(random_sum(output), calls)
        return frozenset(own for own, made in calls.items() if gradient_is_zero(made, led_to))
    return frozenset()


def _carried(run: Callable[[], Any], calls: Mapping[nn.Module, Sequence[Call]]) -> dict[nn.Module, bool]:
    """`Captured.carried`, by a second run."""
    again = CallRecorder({module: [] for module in calls}, differentiable=True)
    with again.attached(), suppress(Exception):  # of a run that nobody asked for
        run()
    return {module: not made[0].detached for module, made in again.calls.items() if carried_to(made, calls[module])}


def _differentiate(value: Any, calls: Mapping[nn.Module, Sequence[Call]]) -> set[int]:
    """Note the gradients of ``value``, and return the ids of the calls that its graph leads to.

    These include calls whose gradient is 0: behind a head that begins with weights of 0 only the first update has none.
    """
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"target: it gave {shape}; a loss is a tensor of one number")
    if not value.requires_grad:
        raise ValueError("target: the loss does not depend on any recurrent layer's output")
    every = [call for made in calls.values() for call in made]
    tensors = [tensor for call in every for tensor in (data_of(call.output), *call.final)]
    found = iter(torch.autograd.grad(value.reshape(()), tensors, allow_unused=True))
    led_to = set()
    for call in every:
        data, gradients = data_of(call.output), [next(found) for _ in range(1 + len(call.final))]
        if any(gradient is not None for gradient in gradients):
            led_to.add(id(call))
        call.of_output = with_data(call.output, dense(gradients[0], data))
        call.of_final = tuple(map(dense, gradients[1:], call.final))
    return led_to
