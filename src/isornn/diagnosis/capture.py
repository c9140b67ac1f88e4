"""Run a model once and record the inputs and outputs of its recurrent modules; the model is restored afterwards."""

from __future__ import annotations

import inspect
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence

from isornn.nn.gate_tensors import RecurrentLayer, recurrent_layers
from isornn.nn.sequences import Sequences

States = tuple[Tensor, ...]
Loss = Callable[[Any], Tensor]

# How many unfinished sequences a call may continue: a loop may alternate between a few.
_OPEN = 4


class CaptureError(ValueError):
    """A recurrent module whose calls are not those of its class: says why."""


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
        # `where` has a parametrised module's own class, not the one that torch made up.
        return self.layers[0].where.rpartition("(")[2].split()[0].rstrip(")")

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
    """Every recurrent module of ``model``, itself included.

    Raises:
        ModuleError: there is none.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.LSTM(3, 4, bidirectional=True))
    >>> [(found.name, found.kind, len(found.layers)) for found in recurrent_modules(model)]
    [('1', 'LSTM', 2)]
    """
    grouped: dict[nn.Module, list[RecurrentLayer]] = {}
    for layer in recurrent_layers(model):
        grouped.setdefault(layer.module, []).append(layer)
    names = {module: name for name, module in model.named_modules()}
    return [RecurrentModule(names[module], module, tuple(layers)) for module, layers in grouped.items()]


# ---- a model left as it was ----


@contextmanager
def preserve_state(model: nn.Module) -> Iterator[None]:
    """Within the block the model is in eval mode; after it the model is bit by bit what it was before, errors or not.

    Restored: values of parameters and buffers, their ``.grad`` and ``requires_grad``, every module's own attributes
    (``training``, hooks, a state carried from call to call) with the contents of tensors, arrays, lists, dicts, sets
    and deques in them, the random state of torch on the CPU and on the model's CUDA devices, of numpy and of Python,
    and cuDNN's flags. Not restored: what other objects hold that a module's attributes refer to.

    Eval mode: dropout is off, so that the run is the one network that the weights describe and can be replayed, and
    batch normalisation uses and keeps its running statistics. cuDNN's recurrent layers cannot be differentiated in
    eval mode, so cuDNN is off within the block.

    Raises:
        ValueError: the model has lazy parameters, which its first run would create, or is on the meta device.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    >>> with preserve_state(model):
    ...     _ = torch.randn(3)
    ...     model.training, model[1].training
    (False, False)
    >>> model[1].training
    True
    """
    tensors = [*model.parameters(), *model.buffers()]
    if any(is_lazy(tensor) for tensor in tensors):
        raise ValueError("model: it has lazy parameters that no run has created yet; run it once before")
    if any(tensor.is_meta for tensor in tensors):
        raise ValueError("model: it is on the meta device, so it has no values; give it some with model.to_empty(...)")
    restore: dict[int, Callable[[], None]] = {}
    for module in model.modules():
        _snapshot(module.__dict__, restore)
    python, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002 (the global state is what is kept)
    devices = sorted({tensor.get_device() for tensor in tensors if tensor.is_cuda})
    cudnn = torch.backends.cudnn
    flags = {"benchmark": cudnn.benchmark, "deterministic": cudnn.deterministic, "allow_tf32": cudnn.allow_tf32}
    try:
        with torch.random.fork_rng(devices=devices), cudnn.flags(enabled=False, **flags):
            for module in model.modules():
                module.training = False
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)  # noqa: NPY002
        for undo in restore.values():
            undo()


def _snapshot(value: Any, restore: dict[int, Callable[[], None]]) -> None:
    """Add to ``restore``, by identity, what writes the present content of a value and of all within back in place."""
    if id(value) in restore:
        return
    if isinstance(value, Tensor):
        _snapshot_tensor(value, restore)
    elif isinstance(value, np.ndarray):
        content = value.copy()
        restore[id(value)] = lambda: np.copyto(value, content)
    elif isinstance(value, dict | list | set | deque):
        before = value.copy()
        restore[id(value)] = lambda: _refill(value, before)
        for one in value.values() if isinstance(value, dict) else value:
            _snapshot(one, restore)
    elif isinstance(value, tuple):
        for one in value:
            _snapshot(one, restore)


def _refill(container: Any, before: Any) -> None:
    same = len(container) == len(before) and all(a is b for a, b in zip(container, before, strict=True))
    if isinstance(container, dict):
        same = same and all(container[name] is before[name] for name in before)
    if not same:
        container.clear()
        (container.extend if isinstance(container, list | deque) else container.update)(before)


def _snapshot_tensor(tensor: Tensor, restore: dict[int, Callable[[], None]]) -> None:
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        return
    value, required = tensor.detach().clone(), tensor.requires_grad
    gradient = tensor.grad if tensor.is_leaf else None

    def undo() -> None:
        # Compared as bytes: NaN is not equal to itself, and -0 is equal to 0.
        if not torch.equal(_bytes(tensor.detach()), _bytes(value)):
            with torch.no_grad():
                tensor.copy_(value)
        if tensor.requires_grad != required:
            tensor.requires_grad_(required)
        if tensor.is_leaf:
            tensor.grad = gradient

    restore[id(tensor)] = undo
    if gradient is not None:
        _snapshot(gradient, restore)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


# ---- calls of recurrent modules ----


@dataclass
class Call:
    """One call of a recurrent module.

    Args:
        inputs: a copy of its input.
        state, lengths, previous: its further arguments; ``None`` where not given.
        output, final: what it returned, before anything else could write to it.
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
    """Result of one run.

    Args:
        calls: by module, in the order of the calls; empty where it was never called.
        refused: by module, why its calls could not be read.
        order: modules in the order in which their first calls ended.
        loss: the value of the loss, where one was given.
    """

    calls: dict[nn.Module, list[Call]]
    refused: dict[nn.Module, str]
    order: list[nn.Module]
    loss: float | None


def capture(model: nn.Module, modules: Sequence[RecurrentModule], batch: Any, loss: Loss | None) -> Captured:
    """Run ``model`` once on ``batch`` and leave it as it was: see `preserve_state`.

    Args:
        modules: those of the model whose calls are captured.
        batch: a tensor or PackedSequence is the only argument, a tuple or list the positional ones. A dict holds the
            keyword arguments, or is itself the only argument where forward has no such keywords.
        loss: of the model's output; gradients are then taken with respect to every captured output and state.

    Raises:
        ValueError: the batch is empty, on the meta device, or complex where a recurrent layer reads it; the loss is not
            one number that depends on a recurrent layer.
    """
    _check_batch(batch)
    positional, named = _arguments(model, batch)
    recorder = CallRecorder({found.module: [] for found in modules}, differentiable=loss is not None)
    with preserve_state(model), recorder.attached(), torch.set_grad_enabled(loss is not None):
        output = model(*positional, **named)
        value = None
        if loss is not None:
            value = loss(output)
            _differentiate(value, [call for made in recorder.calls.values() for call in made])
        return Captured(
            recorder.calls, recorder.refused, recorder.order, None if value is None else float(value.detach())
        )


def _check_batch(batch: Any) -> None:
    if isinstance(batch, Tensor):
        if batch.is_meta:
            raise ValueError("batch: a tensor on the meta device is not allowed, as it has no values")
        if batch.numel() == 0:
            raise ValueError(f"batch: shape {tuple(batch.shape)} is not allowed; it holds at least one sequence")
    elif isinstance(batch, Mapping | tuple | list):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            _check_batch(part)


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


def _binds(signature: inspect.Signature, *positional: Any, **named: Any) -> bool:
    try:
        signature.bind(*positional, **named)
    except TypeError:
        return False
    return True


@dataclass
class CallRecorder:
    """Hooks before and after a recurrent module's forward that keep its calls; the model continues with copies.

    Args:
        calls: by module, to which each call is added.
        differentiable: whether recorded tensors stay in the graph, so that gradients can be computed.
        refused: by module, why a call could not be read.
        order: modules whose calls have ended, each once.
        open: arguments of calls that have not returned yet, by module.
    """

    calls: dict[nn.Module, list[Call]]
    differentiable: bool
    refused: dict[nn.Module, str] = field(default_factory=dict)
    order: list[nn.Module] = field(default_factory=list)
    open: dict[nn.Module, tuple[Any, Any, Any, Any]] = field(default_factory=dict)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Within the block the modules have the hooks."""
        handles: list[Any] = []
        try:
            for module in self.calls:
                handles += attach(module, self.before, self.after)
            yield
        finally:
            for handle in handles:
                handle.remove()

    def before(self, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Keep the arguments of a call."""
        arguments = inspect.signature(module.forward).bind(*positional, **named).arguments
        state = arguments.get("hx", arguments.get("state"))
        inputs = next(iter(arguments.values()), None)
        if not isinstance(inputs, Tensor | PackedSequence):
            self.refused[module] = f"its input is {type(inputs).__name__}, not a tensor or PackedSequence"
            return
        if data_of(inputs).is_complex():
            raise ValueError("batch: complex numbers are not allowed as input of a recurrent layer")
        self.open[module] = (
            with_data(inputs, data_of(inputs).detach().clone()),
            None if state is None else tuple(part.detach().clone() for part in as_tuple(state)),
            arguments.get("lengths"),
            arguments.get("previous"),
        )

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
        if stepped:
            kept_output = kept_final[0]
        self.calls[module].append(Call(*given, kept_output, kept_final))
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


# ---- calls joined into sequences ----


@dataclass(frozen=True)
class CapturedSequence:
    """One module's run over one batch of sequences, time first, in the module's own order of steps.

    Args:
        sequences: its inputs (T, B, D) and their lengths.
        previous: x_0, (B, D), where it was given.
        initial: states before the first step, for every layer (B, .) each; ``None`` where they are 0.
        output: (T, B, .), directions side by side.
        ends: states at the ends of its calls, by time: for every layer (B, .) each.
        of_output, of_ends: gradients of the loss with respect to these; ``None`` where there is no loss.
        calls: how often the module was called in all.
        chains: how many separate sequences those calls make.
    """

    sequences: Sequences
    previous: Tensor | None
    initial: Sequence[States] | None
    output: Tensor
    ends: Mapping[int, Sequence[States]]
    of_output: Tensor | None
    of_ends: Mapping[int, Sequence[States]] | None
    calls: int
    chains: int

    @property
    def lengths(self) -> Tensor:
        """(B,)."""
        known = self.sequences.lengths
        steps, batch = self.sequences.values.shape[:2]
        return torch.full((batch,), steps, device=self.output.device) if known is None else known


def longest_sequence(module: RecurrentModule, calls: Sequence[Call]) -> CapturedSequence:
    """The longest sequence among a module's calls.

    A call that starts from the very state in which an earlier one ended continues its sequence: a cell in the
    user's loop over time, or a layer that is fed in pieces. Of sequences without such a connection, as the two sides of
    a shared encoder, the longest is taken, the first of equals; ``chains`` says how many there were.
    Calls of a bidirectional module and those with lengths are sequences of their own.

    Raises:
        CaptureError: shapes that a module of this class would not return.
    """
    chains: list[list[Call]] = []
    for call in calls:
        chain = None if _is_whole(module, call) else _continued(module, chains[-_OPEN:], call)
        if chain is None:
            chains.append([call])
        else:
            chain.append(call)
    parts = [[_read(module, call) for call in chain] for chain in chains]
    longest = max(parts, key=lambda chain: sum(len(part.output) for part in chain))
    return _joined(longest, len(calls), len(chains))


@dataclass(frozen=True)
class _Part:
    sequences: Sequences
    previous: Tensor | None
    initial: Sequence[States] | None
    output: Tensor
    final: Sequence[States]
    of_output: Tensor | None
    of_final: Sequence[States] | None


def _is_whole(module: RecurrentModule, call: Call) -> bool:
    return module.directions > 1 or call.lengths is not None or isinstance(call.inputs, PackedSequence)


def _continued(module: RecurrentModule, chains: Sequence[list[Call]], call: Call) -> list[Call] | None:
    if call.state is None:
        return None
    for chain in reversed(chains):
        # Sequences with lengths of their own end at different steps, so none of them goes on in step with the others.
        if not _is_whole(module, chain[-1]):
            if all(torch.equal(a, b) for a, b in zip(chain[-1].final, call.state, strict=True)):
                return chain
    return None


def _read(module: RecurrentModule, call: Call) -> _Part:
    if len(call.final) != len(module.layers[0].cell.states):
        raise CaptureError(f"it returns {len(call.final)} states, where {module.kind} has another number")
    if module.steps_by_hand:
        return _read_step(call)
    kind: Any = module.module
    sequences = Sequences.of(call.inputs, call.lengths, kind.batch_first, kind.input_size)

    def in_time(value: Tensor | PackedSequence) -> Tensor:
        features = data_of(value).shape[-1]
        return Sequences.of(value, None, kind.batch_first, features).values.detach()

    def by_layer(states: States | None) -> Sequence[States] | None:
        if states is None:
            return None
        batched = [part.detach() if sequences.batched else part.detach().unsqueeze(1) for part in states]
        return list(zip(*(part.unbind(0) for part in batched), strict=True))

    output = in_time(call.output)
    if sequences.lengths is not None and len(output) == int(sequences.lengths.max()):
        # A subclass may return the steps of the longest sequence only.
        sequences = sequences.with_values(sequences.values[: len(output)])
    first = call.final[0]
    batch = first.shape[1] if sequences.batched and first.dim() == 3 else 1
    if output.shape[:2] != sequences.values.shape[:2] or (len(first), batch) != (len(module.layers), output.shape[1]):
        raise CaptureError(
            f"of inputs (T, B, D) {tuple(sequences.values.shape)} it returns outputs {tuple(output.shape)} and states "
            f"{tuple(first.shape)}, which {module.kind} would not"
        )
    final = by_layer(call.final)
    assert final is not None
    return _Part(
        sequences,
        call.previous if call.previous is None or sequences.batched else call.previous.unsqueeze(0),
        by_layer(call.state),
        output,
        final,
        None if call.of_output is None else in_time(call.of_output),
        by_layer(call.of_final),
    )


def _read_step(call: Call) -> _Part:
    """A cell's call: one step. Its output is its first state, so the states' gradients are all there is."""
    assert isinstance(call.inputs, Tensor)
    batched = call.inputs.dim() == 2

    def rows(states: States | None) -> Sequence[States] | None:
        if states is None:
            return None
        return [tuple(part.detach() if batched else part.detach().unsqueeze(0) for part in states)]

    final = rows(call.final)
    assert final is not None
    output = final[0][0].unsqueeze(0)
    inputs = call.inputs if batched else call.inputs.unsqueeze(0)
    return _Part(
        Sequences(inputs.unsqueeze(0), None, batched),
        None,
        rows(call.state),
        output,
        final,
        None if call.of_output is None else torch.zeros_like(output),
        rows(call.of_final),
    )


def _joined(parts: Sequence[_Part], calls: int, chains: int) -> CapturedSequence:
    first, times, total = parts[0], [], 0
    for part in parts:
        total += len(part.output)
        times.append(total)
    of_ends = {time: part.of_final for time, part in zip(times, parts, strict=True) if part.of_final is not None}
    of_output = [part.of_output for part in parts if part.of_output is not None]
    return CapturedSequence(
        first.sequences.with_values(torch.cat([part.sequences.values for part in parts])),
        first.previous,
        first.initial,
        torch.cat([part.output for part in parts]),
        {time: part.final for time, part in zip(times, parts, strict=True)},
        torch.cat(of_output) if of_output else None,
        of_ends or None,
        calls,
        chains,
    )
