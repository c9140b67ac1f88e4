"""A stack's answer to a change of its input at one step: the layers' own answers, one after the other.

What layer l does to a change of ``E[x_a x_b]`` at one step is a kernel G_l over the steps after it (before it, for a
backward layer); a stack's is the convolution of its layers', and falls in the end like the slowest of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.theory.depth.driven_layer import DrivenLayer
from isornn.theory.depth.input_law import Shift
from isornn.theory.depth.layerwise import Solved
from isornn.theory.depth.stack import NOT_REACHED, UNSURE, ImpulseResponse
from isornn.theory.quantity import Quantity, jackknife, time_scale
from isornn.theory.reasons import BEYOND, UNENDING

# Kernels are followed over so many of the longest time scale, and so many more for each layer; but no further.
_SCALES, _SCALES_A_LAYER, _LONGEST = 6, 2, 2048
_TINY = 1e-280


def impulse_responses(
    layers: Sequence[Sequence[Solved]], length: int
) -> tuple[ImpulseResponse, ImpulseResponse | None]:
    """The stack's answer at later steps and, where a layer is bidirectional, at earlier ones.

    Args:
        layers: every layer's directions.
        length: steps wanted of the profiles.
    """
    two_sided = any(len(directions) == 2 for directions in layers)
    steps = _steps(layers, 2 * length if two_sided else length)
    kernels = [[_Kernel.of(layer, steps) for layer in directions] for directions in layers]
    stack = _Stack(kernels, steps if two_sided else 0)
    forward = _response(stack, [directions[0] for directions in layers], layers, length, 1)
    if not two_sided:
        return forward, None
    turned = [directions[1] for directions in layers if len(directions) == 2]
    return forward, _response(stack, turned, layers, length, -1)


@dataclass(frozen=True)
class _Kernel:
    """G of one direction: rows of the jackknife ``(R + 1, *batch, T + 1)``, and at shifted inputs ``(2, ...)``."""

    rows: Tensor
    shifted: tuple[tuple[Shift, Tensor], ...]

    @staticmethod
    def of(layer: Solved, steps: int) -> _Kernel:
        shifted = tuple((shift, _where_known(driven, driven.response(steps)[0])) for shift, driven in layer.nearby)
        return _Kernel(layer.driven.response(steps), shifted)


def _where_known(driven: DrivenLayer, response: Tensor) -> Tensor:
    """``response``, NaN where copies have not settled."""
    missing = torch.stack([torch.as_tensor(where) for where in driven.missing.values()]).any(0)
    return torch.where(missing[..., None], torch.nan, response)


class _Stack:
    """The convolution of all layers' kernels, in which any direction's may be replaced.

    Args:
        kernels: by layer and direction.
        before: earlier steps that are kept.
    """

    def __init__(self, kernels: Sequence[Sequence[_Kernel]], before: int) -> None:
        self.kernels, self.before = kernels, before
        layers = [self._layer([kernel.rows[:1] for kernel in directions]) for directions in kernels]
        self._others = [self._through(layers[:place] + layers[place + 1 :]) for place in range(len(layers))]

    def places(self) -> list[tuple[int, int]]:
        """Every layer and direction."""
        return [(layer, side) for layer, directions in enumerate(self.kernels) for side in range(len(directions))]

    def with_kernel(self, place: tuple[int, int], rows: Tensor) -> Tensor:
        """The stack's kernel ``(..., before + T + 1)`` with ``rows`` as that of one direction."""
        layer, side = place
        parts = [kernel.rows[:1] for kernel in self.kernels[layer]]
        parts[side] = rows
        own, others = self._layer(parts), self._others[layer]
        return own if others is None else _convolved(own, others, self.before)

    def _layer(self, sides: Sequence[Tensor]) -> Tensor:
        """Both directions as one kernel, earlier steps first; concatenated outputs average."""
        if len(sides) == 1:
            return torch.nn.functional.pad(sides[0], (self.before, 0))
        forward, backward = torch.broadcast_tensors(*sides)
        size = forward.shape[-1] - 1
        return (torch.nn.functional.pad(forward, (size, 0)) + torch.nn.functional.pad(backward.flip(-1), (0, size))) / 2

    def _through(self, layers: Sequence[Tensor]) -> Tensor | None:
        total: Tensor | None = None
        for layer in layers:
            total = layer if total is None else _convolved(total, layer, self.before)
        return total


def _convolved(one: Tensor, other: Tensor, before: int) -> Tensor:
    """The convolution of two kernels over steps ``-before .. T``, cut to those steps.

    Summed term by term: what has fallen far keeps its relative precision, which a Fourier transform would take from it.
    """
    one, other = torch.broadcast_tensors(one, other)
    size = one.shape[-1]
    total = one.new_zeros(*one.shape[:-1], 2 * size - 1)
    for lag in range(size):
        total[..., lag : lag + size] += one[..., lag : lag + 1] * other
    return total[..., before : before + size]


def _steps(layers: Sequence[Sequence[Solved]], length: int) -> int:
    """How far kernels are followed: so far that the reach is likely in it."""
    scales = [layer.analysis.xi for directions in layers for layer in directions]
    longest = max(float(torch.where(xi.defined, xi.value.detach(), 0.0).max()) for xi in scales)
    wanted = math.ceil((_SCALES + _SCALES_A_LAYER * len(layers)) * longest)
    return max(length, min(_LONGEST, wanted))


def _response(
    stack: _Stack, sides: Sequence[Solved], layers: Sequence[Sequence[Solved]], length: int, sign: int
) -> ImpulseResponse:
    """The side of the stack's kernel that lies after (``sign`` 1) or before (-1) the change."""
    chi = _largest([layer.analysis.chi for layer in sides])

    def side(kernel: Tensor) -> tuple[Tensor, Tensor]:
        half = kernel[..., stack.before :] if sign == 1 else kernel[..., : stack.before + 1].flip(-1)
        return half[..., : length + 1], _reach(half, chi)

    profile, profile_error = _with_error(stack, lambda kernel: side(kernel)[0])
    reach, reach_error = _with_error(stack, lambda kernel: side(kernel)[1])
    shape = torch.broadcast_shapes(chi.value.shape, reach.shape)
    profile, profile_error = (value.expand(*shape, length + 1) for value in (profile, profile_error))
    reach, reach_error = reach.expand(shape), reach_error.expand(shape)
    chi = Quantity(chi.value.expand(shape), chi.stderr.expand(shape), chi.reasons)
    missing = _missing(layers)
    unreached = (profile <= 0).all(-1)
    reasons: dict[str, Tensor | bool] = {**missing, NOT_REACHED: unreached}
    unending = chi.defined & (chi.value >= 1)
    ends: dict[str, Tensor | bool] = {UNENDING: unending, BEYOND: reach.isinf(), UNSURE: ~reach_error.isfinite()}
    spread = {reason: torch.as_tensor(where)[..., None] for reason, where in missing.items()}
    return ImpulseResponse(
        profile=Quantity.of(profile, profile_error, spread | {UNSURE: ~profile_error.isfinite()}),
        chi=chi,
        xi=time_scale(chi),
        reach=Quantity.of(torch.where(unending, torch.inf, reach), reach_error, reasons | ends),
    )


def _with_error(stack: _Stack, read: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """What is read off the stack's kernel, with its standard error: the layers' samples, and their inputs' errors."""
    own: list[Tensor] = []
    induced: list[Tensor] = []
    value = torch.zeros(())
    for place in stack.places():
        kernel = stack.kernels[place[0]][place[1]]
        value, error = jackknife(read(stack.with_kernel(place, kernel.rows)))
        own.append(error.square())
        for shift, near in kernel.shifted:
            low, high = read(stack.with_kernel(place, near)).unbind()
            induced.append(shift.induced(value, low, high))
    total = sum(own, torch.zeros(()))
    return value, (total + sum(induced, torch.zeros(())).square()).sqrt()


def _reach(half: Tensor, chi: Quantity) -> Tensor:
    """Steps until ``half`` has fallen to 1/e of its largest value, log-linear between steps.

    Beyond its end by the exponential that it tends to, where its largest value lies well within.
    """
    largest, place = half.max(-1)
    logs = (half.clamp(min=_TINY) / largest.clamp(min=_TINY)[..., None]).log()
    times = torch.arange(half.shape[-1])
    below = (logs <= -1) & (times > place[..., None])
    index = below.to(torch.int64).argmax(-1).clamp(min=1)
    after, before = (logs.gather(-1, at[..., None])[..., 0] for at in (index, index - 1))
    found = index - 1 + (1 + before) / torch.where(after < before, before - after, 1.0)
    last = half.shape[-1] - 1
    fading = chi.defined & (chi.value < 1) & (chi.value > 0) & (place <= last / 2)
    scale = -1 / torch.where(fading, chi.value, 0.5).log()
    later = torch.where(fading, last + (1 + logs[..., -1]) * scale, torch.inf)
    return torch.where(below.any(-1), found, later)


def _largest(chis: Sequence[Quantity]) -> Quantity:
    """The largest of all, with its own standard error; missing where any is."""
    values = torch.stack(torch.broadcast_tensors(*(chi.value for chi in chis)))
    errors = torch.stack(torch.broadcast_tensors(*(chi.stderr for chi in chis)))
    place = values.nan_to_num(nan=-torch.inf).argmax(0, keepdim=True)
    value, error = values.gather(0, place)[0], errors.gather(0, place)[0]
    return Quantity.of(value, error, _any_of([dict(chi.reasons) for chi in chis]))


def _missing(layers: Sequence[Sequence[Solved]]) -> dict[str, Tensor | bool]:
    """Why the stack has no stationary state, or none that was found, where it has none."""
    found: list[Mapping[str, Tensor | bool]] = []
    for layer in (layer for directions in layers for layer in directions):
        found += [dict(layer.analysis.fixed_point.second_moment.reasons), layer.driven.missing]
    return _any_of(found)


def _any_of(reasons: Sequence[Mapping[str, Tensor | bool]]) -> dict[str, Tensor | bool]:
    """The reasons of all, each where it applies to any."""
    found: dict[str, Tensor | bool] = {}
    for some in reasons:
        for reason, where in some.items():
            found[reason] = where | torch.as_tensor(found.get(reason, False))
    return found
