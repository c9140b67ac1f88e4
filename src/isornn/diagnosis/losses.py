"""What the user wants of the model as one number, and what its gradient says to each layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from isornn.diagnosis.backward import gradient_norms
from isornn.diagnosis.heard import Heard
from isornn.diagnosis.layers import RecurrentModule, States
from isornn.diagnosis.replaying import Replayed, own_time, part_of, prepared

Target = Callable[[Any], Tensor] | Tensor


def loss_of(target: Target) -> Callable[[Any], Tensor]:
    """A function from the model's output to one number.

    A callable is that function. Integer labels are compared by cross entropy, their shape that of the output without
    its last axis, the classes (or without its second, as torch has them); floating point values by mean squared error,
    their shape the output's. The output is the first tensor of what the model gives.

    Raises:
        ValueError: shapes that do not fit, when the function is called.

    >>> loss_of(torch.ones(2))(torch.zeros(2))
    tensor(1.)
    >>> round(float(loss_of(torch.tensor([0, 1]))(torch.zeros(2, 4))), 4)
    1.3863
    """
    if not isinstance(target, Tensor):
        if not callable(target):
            raise ValueError(
                f"target: {type(target).__name__} is not allowed; it is a tensor or a function of the output"
            )
        return target

    def loss(output: Any) -> Tensor:
        values = _first_tensor(output)
        if target.is_floating_point():
            if values.shape != target.shape:
                raise ValueError(_misfit(target, values, "the output's"))
            return functional.mse_loss(values, target)
        if values.shape[:-1] == target.shape:
            return functional.cross_entropy(values.reshape(-1, values.shape[-1]), target.reshape(-1).long())
        if values.dim() > 2 and (values.shape[0], *values.shape[2:]) == tuple(target.shape):
            return functional.cross_entropy(values, target.long())
        raise ValueError(_misfit(target, values, "the output's without its axis of classes"))

    return loss


@dataclass(frozen=True)
class LossCotangent:
    """A loss's gradients with respect to a layer's outputs (T, B, .), and to its states at the ends of its calls."""

    outputs: Tensor
    ends: Mapping[int, tuple[States, Tensor]]

    def of_output(self, start: int, stop: int) -> Tensor:
        return self.outputs[start:stop]


def loss_gradient_norms(
    module: RecurrentModule, found: Heard, places: Sequence[Replayed]
) -> list[dict[str, Tensor]] | None:
    """ln of the norms of d loss / d s_t for every place of a module, as `gradient_norms`; ``None`` without a loss."""
    if found.of_output is None or found.of_ends is None:
        return None
    logs: list[dict[str, Tensor]] = [{} for _ in places]
    above = found.of_output
    for layer in range(max(place.place.layer for place in places), -1, -1):
        numbers = [number for number, place in enumerate(places) if place.place.layer == layer]
        below: Tensor | None = None
        for number in numbers:
            replayed = places[number]
            direction = replayed.place.direction
            outputs = own_time(found.sequences, part_of(above, replayed.place, len(numbers)), direction)
            cotangent = LossCotangent(outputs, _ends(found, number, replayed))
            at_inputs = _Collected(replayed)
            logs[number] = gradient_norms(replayed.replay, cotangent, at_inputs if layer else None)
            if layer:
                passed = own_time(
                    found.sequences, _before_preparing(module, found, replayed, at_inputs.values), direction
                )
                below = passed if below is None else below + passed
        above = above if below is None else below
    return logs


class _Collected:
    """Gradients of a layer's inputs, chunk by chunk."""

    def __init__(self, replayed: Replayed) -> None:
        self.values = replayed.replay.inputs.new_zeros(replayed.replay.inputs.shape, dtype=torch.float64)

    def __call__(self, start: int, stop: int, values: Tensor) -> None:
        self.values[start:stop] = values


def _before_preparing(module: RecurrentModule, found: Heard, replayed: Replayed, gradient: Tensor) -> Tensor:
    """The gradient of a layer's input, from that of what its matrix multiplies."""
    with torch.enable_grad():
        x = replayed.heard.detach().requires_grad_(True)
        ready = prepared(module, replayed.place, x, found.previous)
        return gradient if ready is x else torch.autograd.grad(ready, x, gradient.to(ready.dtype))[0]


def _ends(found: Heard, number: int, replayed: Replayed) -> dict[int, tuple[States, Tensor]]:
    """A call's end is the end of each of its sequences: with lengths, that is a time of each sequence's own."""
    assert found.of_ends is not None
    lengths, ends = replayed.replay.lengths, {}
    for time, states in found.of_ends.items():
        last = lengths.clamp(max=time)
        for own in last.unique().tolist():
            ends[own] = (states[number], last == own)
    return ends


def _first_tensor(output: Any) -> Tensor:
    while isinstance(output, (tuple, list)) and len(output) > 0:
        output = output[0]
    if not isinstance(output, Tensor):
        raise ValueError(
            f"target: the model gives {type(output).__name__}, so labels or values do not fit; give a function of it"
        )
    return output


def _misfit(target: Tensor, values: Tensor, allowed: str) -> str:
    return (
        f"target: shape {tuple(target.shape)} does not fit the output's, {tuple(values.shape)}; it is {allowed}, or "
        f"give a function of the output"
    )
