"""What a graph of autograd leads to, when its nodes were made, and gradients along it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.checkpoint import CheckpointFunction

from isornn.capture.batches import tensors_in
from isornn.capture.calls import Call, States, data_of


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
        get_gradient_edge(tensor).node: module
        for module, made in tracked.items()
        for call in made
        for tensor in (data_of(call.output), *call.final)
    }
    wanted |= {
        get_gradient_edge(own).node: module for module in tracked for own in module.parameters() if own.requires_grad
    }
    found = set[nn.Module]()
    for node in _nodes_behind(get_gradient_edge(tensor).node for tensor in ends):
        if node in wanted:
            found.add(wanted[node])
        if len(found) == len(tracked):
            break
    return {module: module in found for module in tracked}


def gradient_is_zero(calls: Sequence[Call], led_to: Set[int]) -> bool:
    """Whether the gradient that was taken leads to all of a module's calls, by their ids, and is exactly 0 with
    respect to all that they returned. It ends at operations that have no derivative, as those of quantised layers.
    """
    if not calls or any(call.recomputed or id(call) not in led_to for call in calls):
        return False
    return not any(bool(data_of(part).any()) for call in calls for part in (call.of_output, *(call.of_final or ())))


def behind_zero(model: nn.Module, module: nn.Module, calls: Sequence[Call]) -> bool:
    """Whether gradients that are 0 may be so at first alone: some parameter of the model, which is no bias and which
    the module's results do not depend on, is 0, as a head's weights or a factor that begin with 0, or is a vector of
    factors of which some are.
    """
    own = {id(parameter) for parameter in module.parameters()}
    others = {id(tensor): tensor for name, tensor in model.named_parameters() if "bias" not in name}
    zeros = others.keys() - own - {key for key, tensor in others.items() if _without_zeros(tensor)}
    return bool(zeros) and bool(zeros - _read_by(calls))


def _without_zeros(factors: Tensor) -> bool:
    """Whether a vector has none, a matrix some number beside them."""
    return bool(factors.all() if factors.squeeze().dim() < 2 or not factors.numel() else factors.any())


def _read_by(calls: Sequence[Call]) -> set[int]:
    """The ids of the parameters that results of these calls depend on."""
    results = [tensor for call in calls for tensor in (data_of(call.output), *call.final) if tensor.requires_grad]
    nodes = _nodes_behind(get_gradient_edge(tensor).node for tensor in results)
    return {id(node.variable) for node in nodes if hasattr(node, "variable")}


def _nodes_behind(ends: Iterable[Any]) -> Iterator[Any]:
    """All nodes of the graph that leads to ``ends``, these included."""
    seen, open_ = set[Any](), list(ends)
    while open_:
        node = open_.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        open_ += [after for after, _ in node.next_functions]


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
