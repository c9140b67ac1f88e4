"""The fixed point of mean and second moment in the affine theory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.theory.quadrature.affine import AffineTheory, GateLaws, PowerMoments
from isornn.theory.quadrature.roots import bracketed_root, slope_at

LARGEST = 1e12  # second moments beyond this are no fixed point
SMALLEST = 1e-14
PROFILE_ROUNDS = 40
# A stable fixed point and the unstable one above it may lie close together, at states of the input's size or of 1.
_FINE, _NEAR = 1.2, 1e3
UNCHANGED = 1e-10  # relative change of a moment that is quadrature error
_SIZES = (1e-6, 1.0)  # second moments at which a line of fixed points is looked for


@dataclass(frozen=True)
class Settled:
    """Where mean and second moment no longer change.

    ``state`` is per unit, ``second`` its average over units, ``residual`` the relative change of the second moment
    in one more step; ``exists`` is False where the state grows without bound or is frozen; ``carry`` is the largest
    E[A^2] at this point and at Q = 0. ``keeps_any`` is True where every second moment is left unchanged (He-initialised
    ReLU): the point is then one of a line.
    """

    laws: GateLaws
    state: PowerMoments
    second: Tensor
    residual: Tensor
    exists: Tensor
    carry: Tensor
    keeps_any: Tensor


def settle(theory: AffineTheory) -> Settled:
    """The stable fixed point of (mean, second moment) that grows out of the smallest state.

    The pre-activations know the state only through its second moment Q, and given Q the affine map is solved
    exactly; what is left is one scalar equation G(Q) = Q, free of the slow direction A ~ 1.
    """
    shape = theory.full(1.0)
    second = theory.over_units(theory.full(0.0))
    with torch.no_grad():
        changes = [torch.full_like(second, torch.inf)] * 2
        for _ in range(PROFILE_ROUNDS):
            second = _scalar_root(theory, shape)
            if not needs_shape(theory):
                break
            before, shape = shape, _shape(theory, second, shape)
            exists = torch.isfinite(second) & (second < LARGEST)
            changes.append(torch.where(exists, (shape - before).abs().amax(-1, keepdim=True), 0.0))
            # where a fixed point is about to vanish the shape goes back and forth
            if not bool(((changes[-1] > 1e-12) & (changes[-1] < 0.9 * changes[-3])).any()):
                break
        second, keeps_any = _on_line(theory, second, shape)
    return _polished(theory, second, shape, keeps_any)


def _on_line(theory: AffineTheory, second: Tensor, shape: Tensor) -> tuple[Tensor, Tensor]:
    """A representative of the line of fixed points where there is one, and where that is.

    A map that leaves both q and 4 q unchanged is the identity between them. Functions that are linear only near 0 (a
    hard tanh) leave small second moments unchanged to rounding.
    """

    def unchanged(value: float) -> Tensor:
        at = torch.full_like(second, value)
        image = theory.over_units(theory.settled(_laws_given(theory, at, shape)).second)
        return (image - at).abs() <= UNCHANGED * at

    found = torch.zeros_like(second, dtype=torch.bool)
    for value in _SIZES:
        here = unchanged(value)
        if bool(here.any()):
            here = here & unchanged(4 * value)
            second, found = torch.where(here, value, second), found | here
    return second, found


def left_unchanged(theory: AffineTheory) -> Tensor:
    """Where a step leaves every unit's state or its size as it was: nothing is lost and nothing added."""
    found = theory.full(1.0) > 0
    for size in _SIZES:
        before = PowerMoments.of(theory.full(0.0), theory.full(size))
        after = theory.step(theory.laws(before), before).second
        found = found & ((after - size).abs() <= UNCHANGED * size)
    return found


def needs_shape(theory: AffineTheory) -> bool:
    """How Q is spread over units matters only to gated reads with biases kept per unit."""
    gated = any(read.gates for read in theory.reads.values())
    return theory.fixed and gated and theory.nodes.weight.numel() > 1


def _laws_given(theory: AffineTheory, second: Tensor, shape: Tensor) -> GateLaws:
    spread = second * shape
    return theory.laws(PowerMoments.of(torch.zeros_like(spread), spread))


def _shape(theory: AffineTheory, second: Tensor, shape: Tensor) -> Tensor:
    finite = torch.where(torch.isfinite(second), second, 1.0)
    state = theory.settled(_laws_given(theory, finite, shape)).second
    mean = theory.over_units(state)
    return torch.where((mean > 0) & torch.isfinite(mean), state / torch.where(mean > 0, mean, 1.0), 1.0)


def _scalar_root(theory: AffineTheory, shape: Tensor) -> Tensor:
    def excess(second: Tensor) -> Tensor:
        value = theory.over_units(theory.settled(_laws_given(theory, second, shape)).second) - second
        return torch.nan_to_num(value, nan=torch.inf)

    zero = theory.over_units(theory.full(0.0))
    start = excess(zero)
    low = torch.where(torch.isfinite(start), start, LARGEST).clamp(SMALLEST, LARGEST)
    at_low = excess(low)
    rising = at_low > 0  # where it falls from the start, Q = 0 is the stable one (or G(0) is the root)
    high, at_high, near = low, at_low, (_NEAR * low).clamp(min=_NEAR)
    while bool((rising & (at_high > 0) & (high < LARGEST)).any()):
        going = rising & (at_high > 0) & (high < LARGEST)
        low, at_low = torch.where(going, high, low), torch.where(going, at_high, at_low)
        step = torch.where((high > near / _NEAR**2) & (high < near), _FINE, 4.0)
        # The map increases, so that its image of a point below the first root is below it too.
        high = torch.where(going, torch.maximum(high * step, high + at_high.clamp(max=LARGEST)), high)
        at_high = torch.where(going, excess(high), at_high)
    low = torch.where(rising, low, zero)
    at_low = torch.where(rising, at_low, start)
    root = bracketed_root(excess, low, high, at_low, at_high)
    vanishing = ~rising & (start <= SMALLEST)
    return torch.where(vanishing, 0.0, torch.where(at_high > 0, torch.inf, root))


def _polished(theory: AffineTheory, second: Tensor, shape: Tensor, keeps_any: Tensor) -> Settled:
    """One Newton step with gradients: exact value, and derivatives by the implicit function theorem."""
    exists = torch.isfinite(second) & (second < LARGEST)
    inside = torch.where(exists, second, 1.0)
    with torch.enable_grad():
        probe = inside.clone().requires_grad_(True)
        image = theory.over_units(theory.settled(_laws_given(theory, probe, shape)).second)
        slope = slope_at(image, probe)
    image = theory.over_units(theory.settled(_laws_given(theory, inside, shape)).second)
    room = torch.where((1 - slope).abs() > 1e-9, 1 - slope, 1.0)
    # at 0 the image is the floor on standard deviations, of which a step near a slope of 1 would make something
    nothing = (inside == 0) & (image.detach() < SMALLEST)
    gap = image - torch.where(nothing, image.detach(), inside)
    second = torch.where(exists & torch.isfinite(image), inside + gap / room, inside).clamp(min=0.0)
    # a second moment below what the floor on standard deviations makes of nothing is nothing
    second = torch.where(second < SMALLEST, 0.0, second)
    laws = _laws_given(theory, second, shape)
    state = theory.settled(laws)
    exists = exists & torch.isfinite(theory.over_units(state.second))
    state = PowerMoments.of(*(torch.where(exists & (second > 0), p, 0.0) for p in state.powers[1:]))
    after = theory.over_units(theory.step(laws, state).second)
    residual = (after - second).abs() / torch.where(second > 0, second, 1.0)
    silent = _laws_given(theory, torch.zeros_like(second), shape)
    carry = torch.maximum(*(theory.expect(theory.A * theory.A, at, state) for at in (laws, silent))).detach()
    if not bool(exists.all()):  # there all that follows is undefined, and soon found at a state of 0
        second = torch.where(exists, second, 0.0)
        laws = _laws_given(theory, second, shape)
    return Settled(laws, state, second, residual.detach(), exists, carry, keeps_any)
