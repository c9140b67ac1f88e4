"""What a model does with its recurrent modules: whether its output depends on them, which states it goes on with."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.checkpoint import CheckpointFunction

if TYPE_CHECKING:
    from isornn.capture.calls import Call, States

_DEPTH = 6  # of containers and objects within an output
_WITHOUT_TENSORS = (nn.Module, ModuleType, type, str, bytes, int, float, type(None))
_LAST = 4  # calls of a run that may have ended in a state that is kept
_FEWEST = 3  # calls that start from 0 one after the other: two may be two sequences
_AXES = 3  # of a batch of sequences
_TRIED = 1024  # places of a batch that begin as a row does


@dataclass(frozen=True)
class Origin:
    """Where in memory an input was: views of one tensor have one storage.

    Args:
        storage: an identifier of the storage.
        offset, shape, strides: as torch has them, in numbers.
        whole: shape of the tensor that it is a view of; its own where it is none.
        contiguous: whether both are, in the order of their axes.
    """

    storage: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    whole: tuple[int, ...]
    contiguous: bool

    @staticmethod
    def of(inputs: Tensor | PackedSequence) -> Origin | None:
        """``None`` of packed sequences and tensors without strides."""
        if isinstance(inputs, PackedSequence) or inputs.layout != torch.strided:
            return None
        base = inputs if inputs._base is None else inputs._base
        return Origin(
            storage=int(inputs.untyped_storage()._cdata),
            offset=int(inputs.storage_offset()),
            shape=tuple(inputs.shape),
            strides=inputs.stride(),
            whole=tuple(base.shape),
            contiguous=base.is_contiguous() and inputs.is_contiguous(),
        )

    def follows(self, before: Origin, time: int) -> bool:
        """Whether it begins where ``before`` ends along the axis ``time`` of a tensor with as many axes.

        Not where both have all of that axis: rows of a batch, whole sequences, lie one behind the other in memory too.
        """
        if (self.storage, self.strides, self.whole) != (before.storage, before.strides, before.whole):
            return False
        if len(self.whole) != len(self.shape) or self.shape[time] == before.shape[time] == self.whole[time]:
            return False
        same = all(a == b for axis, (a, b) in enumerate(zip(self.shape, before.shape, strict=True)) if axis != time)
        return same and self.offset == before.offset + before.shape[time] * self.strides[time]


def reads_batch(inputs: Tensor, batch: Any) -> bool | None:
    """Whether a module's inputs (..., D) are the batch's own numbers, not what the model computes from them.

    Looked for is the largest of their rows (D,), one number behind the other, in the batch's tensors as they are and
    with their last axes swapped. ``None`` where the batch has no tensors, as a function.
    """
    given = list(tensors_in(batch))
    if not given:
        return None
    rows = inputs.reshape(-1, inputs.shape[-1])
    row = rows[rows.square().sum(-1).argmax()]
    return any(_holds(tensor.to(row), row) for tensor in given if tensor.is_floating_point())


def _holds(tensor: Tensor, row: Tensor) -> bool:
    """Whether the tensor has the row (D,)."""
    for values in (tensor, tensor.transpose(-1, -2)) if tensor.dim() > 1 else (tensor,):
        flat = values.flatten()
        starts = (flat[: max(0, len(flat) - len(row) + 1)] == row[0]).nonzero()[:_TRIED]
        places = starts + torch.arange(len(row), device=row.device)
        if bool((flat[places] == row).all(-1).any()):
            return True
    return False


def restarts(module: nn.Module, calls: Sequence[Call]) -> int:
    """How many calls began at state 0 one after the other although they read one sequence; 0 where none did.

    Calls read one sequence where each input begins in memory where the one before ends; of cells, where they are views
    of one tensor at equal distances. Of states that are 0 throughout, as of dead units, those that are passed on count
    as carried, and views of one tensor are the states of several units, as of agents at their first step.
    """
    if len(calls) < _FEWEST or getattr(module, "bidirectional", False) or not all(map(_starts_blank, calls)):
        return 0
    if any(_passed_on(before.final, after.state) for before, after in pairwise(calls)):
        return 0
    places = [call.origin for call in calls if call.origin is not None]
    if len(places) < len(calls):
        return 0
    if isinstance(module, nn.RNNCellBase):
        states = [call.state_origin for call in calls if call.state_origin is not None]
        return len(calls) if _at_equal_distances(places) and not _at_equal_distances(states) else 0
    axes = len(places[0].shape)
    time = int(axes == _AXES and bool(getattr(module, "batch_first", False)))
    if any(len(place.shape) != axes for place in places):
        return 0
    return len(calls) if all(b.follows(a, time) for a, b in pairwise(places)) else 0


def _at_equal_distances(places: Sequence[Origin]) -> bool:
    """Whether they are alike but for where they begin in one tensor, as the steps of a sequence do."""
    alike = {(place.storage, place.shape, place.strides, place.whole) for place in places}
    return len(alike) == 1 and len({b.offset - a.offset for a, b in pairwise(places)} - {0}) == 1


def _passed_on(ended: States, state: States | None) -> bool:
    return state is not None and all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(ended, state, strict=False)
    )


def _starts_blank(call: Call) -> bool:
    return call.lengths is None and (call.state is None or not any(bool(part.any()) for part in call.state))


def reached_by(output: Any, calls: Mapping[nn.Module, Sequence[Call]]) -> dict[nn.Module, bool]:
    """By module, whether the graph of ``output`` has one of its results or parameters: where the output is itself a
    gradient, as a force, the results need not be in it. Modules of which that is unknown are left out.

    Unknown: ``output`` has no tensor with a graph; the module was called without gradients, or not at all.
    """
    ends = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
    tracked = {module: made for module, made in calls.items() if made and all(call.tracked for call in made)}
    if not ends or not tracked:
        return {}
    wanted = {
        _node(tensor): module
        for module, made in tracked.items()
        for call in made
        for tensor in (_data(call.output), *call.final)
    }
    wanted |= {_node(own): module for module in tracked for own in module.parameters() if own.requires_grad}
    found, missing = set[nn.Module](), len(tracked)
    seen, open_ = set[Any](), [_node(tensor) for tensor in ends]
    while open_ and len(found) < missing:
        node = open_.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node in wanted:
            found.add(wanted[node])
        open_ += [after for after, _ in node.next_functions]
    return {module: module in found for module in tracked}


def gradient_is_zero(model: nn.Module, module: nn.Module, calls: Sequence[Call], led_to: Set[int]) -> bool:
    """Whether the gradient that was taken leads to all of the module's calls, by their ids, and is exactly 0 with
    respect to all that they returned. It ends at operations that have no derivative, as those of quantised layers.

    False where it may be so at first alone: some tensor of the model's other parameters, which is no bias, is 0, as a
    head's weights or a factor that begin with 0.
    """
    if not calls or any(call.recomputed or id(call) not in led_to for call in calls):
        return False
    gradients = [_data(part) for call in calls for part in (call.of_output, *(call.of_final or ()))]
    own = {id(parameter) for parameter in module.parameters()}
    others = [tensor for name, tensor in model.named_parameters() if id(tensor) not in own and "bias" not in name]
    return not any(map(torch.any, gradients)) and all(map(torch.any, others))


def random_sum(output: Any) -> Tensor:
    """Of all numbers in an output that have a gradient, with random weights that are the same for equal outputs.

    A weight is that of the row times that of the feature: a vocabulary's logits need no second tensor of their size.
    """
    generator, total = torch.Generator().manual_seed(0), torch.zeros((), dtype=torch.float64)
    for tensor in tensors_in(output):
        if tensor.requires_grad and tensor.is_floating_point():
            rows = tensor.reshape(-1, tensor.shape[-1] if tensor.dim() else 1)
            of_row, of_feature = (torch.randn(size, generator=generator).to(rows) for size in rows.shape)
            total = total.to(rows.device) + ((rows @ of_feature) * of_row).double().sum()
    return total


def within_checkpoint() -> bool:
    """Whether this runs in a forward pass of `torch.utils.checkpoint` with ``use_reentrant=True``."""
    code, frame = CheckpointFunction.forward.__code__, inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def _node(tensor: Tensor) -> Any:
    """The node of the graph that a tensor is the result of; of a leaf, that which accumulates its gradient."""
    return tensor.grad_fn if tensor.grad_fn is not None else tensor.view_as(tensor).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


def _data(value: Any) -> Tensor:
    return value.data if isinstance(value, PackedSequence) else value


def tensors_in(value: Any, depth: int = _DEPTH) -> Iterator[Tensor]:
    """All tensors within containers and the attributes of objects, but for modules of torch and Python, and classes."""
    if isinstance(value, Tensor):
        yield value
    elif depth and not isinstance(value, _WITHOUT_TENSORS):
        if isinstance(value, Mapping):
            parts: Any = value.values()
        elif isinstance(value, tuple | list | set):
            parts = value
        else:
            parts = vars(value).values() if hasattr(value, "__dict__") else ()
        for part in parts:
            yield from tensors_in(part, depth - 1)


def graph_time() -> int:
    """A number that is above those of all graph nodes made before in this thread, and not above those made later.

    >>> before = graph_time()
    >>> made = (2 * torch.ones(1, requires_grad=True),)
    >>> before <= oldest(made) < graph_time()
    True
    """
    with torch.enable_grad():
        node = torch.ones(1, requires_grad=True).clone().grad_fn
    assert node is not None
    return int(node._sequence_nr()) + 1


def oldest(state: States) -> int | None:
    """The lowest `graph_time` of the nodes that the tensors come from; ``None`` where they have no graph."""
    numbers = [int(part.grad_fn._sequence_nr()) for part in state if part.grad_fn is not None]
    return min(numbers, default=None)


def changes_gradient(ended: States, state: States) -> bool:
    """Whether a gradient of ``state`` reaches ``ended``, which has the same values, otherwise than as it is.

    So it is where a part of the state is detached (h-detach), where its gradient is scaled, as by ``h / 2 + h.detach()
    / 2``, or has a hook. False of a state that is detached as a whole, which ends the sequence for gradients.
    """
    alike = len(ended) == len(state) and all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(ended, state, strict=True)
    )
    tracked = [part for part in state if part.requires_grad]
    if not alike or not tracked or not all(part.requires_grad for part in ended):
        return False
    probes = [torch.linspace(1, 2, part.numel()).to(part).view_as(part) for part in state]
    given = [probe for probe, part in zip(probes, state, strict=True) if part.requires_grad]
    try:
        found = torch.autograd.grad(tracked, ended, given, retain_graph=True, allow_unused=True)
    except RuntimeError:  # what the graph has saved was changed in place: the user's own backward pass will say so
        return False
    return not all(grad is not None and torch.equal(grad, probe) for grad, probe in zip(found, probes, strict=True))


def kept_states(model: nn.Module, calls: Mapping[nn.Module, Sequence[Call]]) -> dict[nn.Module, str]:
    """By recurrent module, the attribute or buffer, as ``"encoder.hidden"``, of whatever module holds a state that one
    of its last calls ended in."""
    ends: dict[torch.Size, list[tuple[nn.Module, Tensor]]] = {}
    for own, made in calls.items():
        for part in (part for call in made[-_LAST:] for part in call.final if bool(part.any())):
            ends.setdefault(part.shape, []).append((own, part))
    found: dict[nn.Module, str] = {}
    for place, module in model.named_modules():
        for name, value in {**vars(module), **module._buffers}.items():
            if name in ("_parameters", "_modules", "_buffers"):
                continue
            for tensor in tensors_in(value, 3):
                for own, end in ends.get(tensor.shape, ()):
                    if own not in found and torch.equal(tensor, end):
                        found[own] = f"{place}.{name}".removeprefix(".")
    return found


def carried_to(again: Sequence[Call], before: Sequence[Call]) -> bool:
    """Whether a run's first call starts from a state, not 0, in which a call of the run before ended."""
    if not again or again[0].state is None or _starts_blank(again[0]):
        return False
    state: States = again[0].state
    return any(
        len(call.final) == len(state) and all(torch.equal(a, b) for a, b in zip(call.final, state, strict=True))
        for call in before
    )
