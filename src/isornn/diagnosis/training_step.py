"""One training step: record the calls and gradients of each recurrent layer in it, and measure them afterwards."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn.utils import parametrize

from isornn.capture.batches import tensors_in
from isornn.capture.calls import Call, States, as_tuple, data_of, dense, is_result, with_data
from isornn.capture.graph import graph_time
from isornn.capture.modules import RecurrentModule
from isornn.capture.parts import CaptureError
from isornn.capture.recorder import CallRecorder, attach, is_captured
from isornn.capture.sequences import ALTERED, CapturedSequence, longest_sequence
from isornn.diagnosis.denormals import denormals
from isornn.diagnosis.facts import Denormals
from isornn.diagnosis.gradients import LossGradient, by_lag, loss_gradients
from isornn.diagnosis.not_finite import first_step
from isornn.diagnosis.profiles import BEGINS_ANEW, MEASURABLE, separate
from isornn.diagnosis.record import single
from isornn.diagnosis.replay import LayerReplay, Replay, ReplayError, replay_module
from isornn.diagnosis.states import gates_and_memory
from isornn.diagnosis.use_checks import MOST_RETAINING, retaining, truncated
from isornn.nn.gate_tensors import RecurrentLayer, recurrent_layers
from isornn.nn.rnn import suffix
from isornn.nn.spectral import factors, is_spectral
from isornn.theory import Quantity

Hook = Callable[..., Any]
Array = np.ndarray

SEQUENCES = 16
COLUMNS = 256

NOT_CALLED = "not called in this update, or not differentiated through"
NOT_REACHED = "no gradient came to it in this update"
NOT_FINITE = "the gradient that came to it is not finite"
DROPPED = "dropout between its layers: the input of the upper ones is not known; a module for each layer shows it"
UNTIED = "its weights are fresh at every step, so that a step cannot be repeated"
NOT_DETACHED = (
    "It is given a state whose graph is older than the update. Detach the state that is kept from one update to the "
    "next; else backpropagation fails, or grows by a batch with every update."
)
NOT_READ = "the loss does not read the last step"


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
            self._handles += attach(module, _Uncopied(self._before), _Uncopied(self._after))

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


class Spectrum(NamedTuple):
    """Singular values of one recurrent matrix, and the margin m they are kept within, 1 +- m; infinite without one."""

    mean: float
    std: float
    smallest: float
    largest: float
    margin: float


@dataclass(frozen=True)
class Gradients:
    """ln of the root mean square over sequences of the norm of dL/ds_t, by lag: steps from t to the sequence's end.

    Args:
        lags: (c,), from 0, which is the state that the last step gives.
        loss: by state, and of all together: of the whole loss. -inf where it is exactly 0.
        last: likewise, of what enters at the layer's own last step alone.
        xi: time scale fitted to ``last``, as `Profile` has it.
    """

    lags: Array
    loss: Mapping[str, Array]
    last: Mapping[str, Array]
    xi: Quantity


@dataclass(frozen=True)
class StepMeasurement:
    """One layer and direction at one iteration.

    Args:
        spectra: by gate with a recurrent matrix of finite numbers; empty where the layer was not called.
        gradients: ``None`` where there are none.
        reason: why not.
        denormals: of the module's pass, where they were asked for and there are some.
        findings: what was found of the states that it goes on from, by kind.
    """

    spectra: Mapping[str, Spectrum]
    gradients: Gradients | None
    reason: str | None
    denormals: Denormals | None = None
    findings: Mapping[str, str] = field(default_factory=dict)


def measure_step(module: RecurrentModule, recorded: RecordedStep, time_denormals: bool = True) -> list[StepMeasurement]:
    """Of every layer and direction of ``module``, from at most 16 of the sequences, the longest.

    Args:
        time_denormals: whether to time a pass with and without denormal numbers, if there are some.
    """
    known = recorded.module
    if known is None:
        return [StepMeasurement({}, None, recorded.refused or NOT_CALLED) for _ in module.layers]
    spectra = [_spectra(layer) for layer in known.layers]
    found = _gradients(known, recorded, time_denormals)
    kept = {"not_detached": NOT_DETACHED} if recorded.stale else {}
    if isinstance(found, str):
        if found == NOT_FINITE:
            kept |= {"not_finite": _where_not_finite(known, recorded.calls)}
        return [StepMeasurement(one, None, found, findings=kept) for one in spectra]
    gradients, small, cut = found
    rows = zip(spectra, gradients, cut, strict=True)
    return [StepMeasurement(one, own, None, small, kept | of_cuts) for one, own, of_cuts in rows]


@torch.no_grad()
def _spectra(layer: RecurrentLayer) -> dict[str, Spectrum]:
    margin = _margin(layer)
    found = {}
    for name, gate in layer.gates.items():
        if gate.recurrent is not None and bool(gate.recurrent.isfinite().all()):
            values = torch.linalg.svdvals(gate.recurrent.double())
            found[name] = Spectrum(
                mean=float(values.mean()),
                std=float(values.std(correction=0)),
                smallest=float(values.min()),
                largest=float(values.max()),
                margin=margin,
            )
    return found


def _margin(layer: RecurrentLayer) -> float:
    name = "weight_hh" + suffix(layer.layer, layer.direction)
    if not (parametrize.is_parametrized(layer.module) and is_spectral(layer.module, name)):
        return math.inf
    margin = factors(layer.module, name)[0].margin
    return math.inf if margin is None else margin


def _gradients(
    module: RecurrentModule, recorded: RecordedStep, time_denormals: bool
) -> tuple[list[Gradients], Denormals | None, list[dict[str, str]]] | str:
    """By layer, their denormal numbers and what cuts them; or the reason why there are none."""
    if module.untied:
        return UNTIED
    if not recorded.calls:
        return NOT_REACHED
    if len(module.layers) > module.directions and module.module.training and getattr(module.module, "dropout", 0) > 0:
        return DROPPED
    try:
        whole = longest_sequence(module, recorded.calls)
    except CaptureError as error:
        return str(error)
    if whole.altered:
        return ALTERED
    found = _few(whole)
    if not _finite(found):
        return NOT_FINITE
    try:
        replays = replay_module(module, found)
    except ReplayError as error:
        return str(error)
    of_loss = loss_gradients(module, found, replays, at_end=True)
    assert of_loss is not None
    seen = [_seen(one.replay, own, _in_pieces(whole)) for one, own in zip(replays, of_loss, strict=True)]
    small = denormals(module, found, replays, [own.log_norm for own in of_loss]) if time_denormals else None
    cut = [_truncated(found, one) for one in replays]
    return seen, small, cut


def _where_not_finite(module: RecurrentModule, calls: list[Call]) -> str:
    gradient = longest_sequence(module, calls).of_output
    place = "" if gradient is None else first_step(gradient, backwards=True)
    sentence = f"{NOT_FINITE[0].upper()}{NOT_FINITE[1:]}{place}."
    return f"{sentence} A GradScaler, where there is one, may be looking for its scale."


def _truncated(found: CapturedSequence, one: LayerReplay) -> dict[str, str]:
    """Whether backpropagation ends at a detached state before most units have forgotten."""
    if not found.cuts and not found.goes_on:
        return {}
    window = max(found.windows)
    _, memory = gates_and_memory(one.replay, max(window, 2))
    longest = max((memory, *memory.others), key=lambda state: retaining(state, window))
    if retaining(longest, window) <= MOST_RETAINING:
        return {}
    # Whether a given state is the one in which an earlier batch ended, one update does not show.
    given = "" if found.cuts else "It is given a state without a gradient. If that continues an earlier batch: "
    return {"truncated": given + truncated(longest, window)}


def _in_pieces(found: CapturedSequence) -> str | None:
    """Why a time scale is missing where the calls could not be joined to sequences that have one."""
    steps = int(found.lengths.max())
    if found.chains == 1 or steps >= MEASURABLE:
        return None
    return f"{separate(found.calls, found.chains, steps)}; {BEGINS_ANEW}"


def _seen(replay: Replay, gradient: LossGradient, in_pieces: str | None) -> Gradients:
    assert gradient.at_end is not None
    whole, last = by_lag(replay, gradient.log_norm), by_lag(replay, gradient.at_end)
    kept = torch.linspace(0, len(whole.lags) - 1, min(len(whole.lags), COLUMNS)).round().long()
    loss, at_end = ({name: v[kept].numpy() for name, v in one.log_norm.items()} for one in (whole, last))
    unread = bool(last.log_norm["all"].isinf().all())
    reason = in_pieces or (NOT_READ if unread else None)
    xi = last.xi if reason is None else single(math.nan, 0.0, {reason: True})
    return Gradients(whole.lags[kept].numpy(), loss, at_end, xi)


def _few(found: CapturedSequence) -> CapturedSequence:
    """The longest sequences, the first of equals: a sample of the batch, whose order is the user's."""
    lengths = found.lengths
    chosen = lengths.argsort(descending=True, stable=True)[:SEQUENCES]
    steps = int(lengths[chosen[0]])

    def rows(states: States) -> States:
        return tuple(state.index_select(0, chosen) for state in states)

    def in_time(values: Tensor) -> Tensor:
        return values[:steps].index_select(1, chosen)

    assert found.of_output is not None and found.of_ends is not None
    known = found.sequences.lengths
    return replace(
        found,
        sequences=replace(
            found.sequences,
            values=in_time(found.sequences.values),
            lengths=None if known is None else known[chosen],
        ),
        previous=None if found.previous is None else found.previous[chosen],
        initial=None if found.initial is None else [rows(states) for states in found.initial],
        output=in_time(found.output),
        ends={time: [rows(states) for states in layers] for time, layers in found.ends.items()},
        of_output=in_time(found.of_output),
        of_ends={time: [rows(states) for states in layers] for time, layers in found.of_ends.items()},
        of_rows=None if found.of_rows is None else {time: which[chosen] for time, which in found.of_rows.items()},
    )


def _finite(found: CapturedSequence) -> bool:
    assert found.of_output is not None and found.of_ends is not None
    ends = [state for layers in found.of_ends.values() for states in layers for state in states]
    return all(bool(values.isfinite().all()) for values in (found.of_output, *ends))
