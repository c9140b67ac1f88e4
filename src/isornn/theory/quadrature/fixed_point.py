"""Fixed points of the affine theory: moments first, then the correlation at those moments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.theory.quadrature.affine import AffineTheory, GateLaws, PowerMoments

Function = Callable[[Tensor], Tensor]
ITERATIONS, PATIENCE = 120, 3


def bracketed_root(
    function: Function, low: Tensor, high: Tensor, at_low: Tensor, at_high: Tensor, tolerance: float = 1e-13
) -> Tensor:
    """Roots between ``low`` and ``high`` where the function changes sign (regula falsi, Anderson-Bjorck's variant).

    Elements whose ends do not differ in sign are returned at whichever end is nearer to zero.

    Args:
        function: of the scale of its argument, as ``image(x) - x`` is; below rounding at that scale it counts as 0.
        tolerance: on the width of the bracket, relative to the root's size.
    """
    best = torch.where(at_low.abs() < at_high.abs(), low, high)
    active = at_low * at_high < 0
    widths = [torch.full_like(best, torch.inf)] * PATIENCE
    for _ in range(ITERATIONS):
        if not bool(active.any()):
            break
        secant = (low * at_high - high * at_low) / torch.where(at_high == at_low, 1.0, at_high - at_low)
        # elements whose bracket has not halved lately are bisected, so that none can stall
        width = (high - low).abs()
        lively = width <= widths[-PATIENCE] / 2
        widths.append(torch.where(lively, width, torch.inf))
        inside = (secant > torch.minimum(low, high)) & (secant < torch.maximum(low, high)) & lively
        x = torch.where(active, torch.where(inside, secant, (low + high) / 2), best)
        value = function(x)
        best = torch.where(active, x, best)
        crossed = value * at_high < 0
        scale = torch.where(crossed, 1.0, 1 - value / at_high)
        scale = torch.where(scale > 0, scale, 0.5)
        low, at_low = torch.where(crossed, high, low), torch.where(crossed, at_high, at_low * scale)
        high, at_high = x, value
        narrow = (high - low).abs() <= tolerance * (1e-300 + best.abs())
        exact = value.abs() <= 4e-16 * (1e-300 + best.abs())
        active = active & ~narrow & ~exact & torch.isfinite(value)
    return best


LARGEST = 1e12  # second moments beyond this are no fixed point
SMALLEST = 1e-14
PROFILE_ROUNDS = 40
SCAN = 24
ROUNDING = 1e-12
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
            if not _needs_shape(theory):
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


def _needs_shape(theory: AffineTheory) -> bool:
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
    high, at_high = low, at_low
    while bool((rising & (at_high > 0) & (high < LARGEST)).any()):
        going = rising & (at_high > 0) & (high < LARGEST)
        low, at_low = torch.where(going, high, low), torch.where(going, at_high, at_low)
        high = torch.where(going, high * 4, high)
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
        slope = _slope(image, probe)
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


@dataclass(frozen=True)
class SettledPair:
    """The stable fixed point of ``E[s_a s_b]``: per unit, averaged, and as a correlation C.

    ``defined`` is False where all units agree (Q = mu^2) and C is 0/0; ``keeps_any`` is True where every C is left
    unchanged (a linear network without input).
    """

    pair: Tensor
    correlation: Tensor
    defined: Tensor
    residual: Tensor
    keeps_any: Tensor


def room_for_correlation(theory: AffineTheory, settled: Settled) -> tuple[Tensor, Tensor]:
    """``mu^2`` and ``Q - mu^2`` over all units; a width that is rounding only counts as 0."""
    mean, second = theory.over_units(settled.state.mean), theory.over_units(settled.state.second)
    width = second - mean**2
    return mean**2, torch.where(width > 1e-13 * second, width, 0.0)


def settle_pair(theory: AffineTheory, settled: Settled, stable_together: Tensor) -> SettledPair:
    """The stable correlation that two copies reach when they start apart (C = 0).

    Args:
        stable_together: where identical copies stay identical (with identical inputs C = 1 is then the answer).
    """
    floor, width = room_for_correlation(theory, settled)
    defined = width > 0
    divisor = torch.where(settled.second > 0, settled.second, 1.0)
    spread = torch.where(settled.second > 0, settled.state.second / divisor, 1.0)
    uneven = torch.zeros_like(spread)  # how a unit's pair differs from its share of the average; 0 on average

    def of_units(pair: Tensor) -> Tensor:
        return theory.settled_pair(settled.laws, settled.state, pair * spread + uneven)

    def image(pair: Tensor) -> Tensor:
        return theory.over_units(of_units(pair))

    def excess(correlation: Tensor) -> Tensor:
        pair = floor + width * correlation
        return torch.nan_to_num(image(pair) - pair, nan=0.0, posinf=0.0)

    identical = theory.input_correlation.expand_as(width) == 1
    together = (identical & stable_together) | ~defined
    keeps_any = settled.keeps_any
    with torch.no_grad():
        if bool(keeps_any.any()):
            keeps_any = keeps_any & (excess(torch.full_like(width, 0.5)).abs() <= UNCHANGED * width)
        correlation = torch.ones_like(width)
        if not bool(together.all()):
            correlation = torch.where(together, 1.0, _first_root(excess, identical))
    pair, per_unit = floor + width * correlation, settled.state.second
    if not bool(together.all()):
        for _ in range(PROFILE_ROUNDS if _needs_shape(theory) else 0):
            with torch.no_grad():
                found = of_units(pair)
                before, uneven = uneven, torch.where(correlation == 1, 0.0, found - theory.over_units(found) * spread)
                pair = torch.where(correlation == 1, pair, _newton_step(image, pair))
            if not bool(((uneven - before).abs() > 1e-12 * divisor).any()):
                break
        pair = torch.where(correlation == 1, pair, _newton_step(image, pair))
        per_unit = torch.where(correlation == 1, per_unit, of_units(pair))
    after = theory.over_units(theory.pair_step(settled.laws, settled.state, per_unit, theory.input_correlation))
    residual = (after - pair).abs() / divisor
    correlation = torch.where(correlation < 1, (pair - floor) / torch.where(defined, width, 1.0), 1.0)
    return SettledPair(per_unit, correlation, defined, residual.detach(), keeps_any)


def _first_root(excess: Function, identical: Tensor) -> Tensor:
    """Follow the map from C = 0 in the direction it moves, to the first correlation it leaves unchanged."""
    low = torch.zeros_like(identical, dtype=torch.float64)
    at_low = at_start = excess(low)
    # with identical inputs C = 1 is a fixed point too, an unstable one: stop short of it
    end = torch.where(at_start >= 0, torch.where(identical, 1 - 1e-9, 1.0), -1.0)
    high, at_high = low, at_low
    found = at_start == 0
    for step in range(1, SCAN + 1):
        if bool(found.all()):
            break
        x = end * (step / SCAN)
        value = excess(x)
        if step == SCAN:
            # just below an unstable fixed point the map leads away from it, whatever rounding says
            value = torch.where(identical & (end > 0), value.clamp(max=-ROUNDING), value)
        crosses = ~found & (value * at_start <= 0)
        high, at_high = torch.where(found, high, x), torch.where(found, at_high, value)
        found = found | crosses
        low, at_low = torch.where(found, low, x), torch.where(found, at_low, value)
    return bracketed_root(excess, low, high, at_low, at_high)


def _newton_step(image: Function, pair: Tensor) -> Tensor:
    """The fixed point of ``image`` with derivatives by the implicit function theorem."""
    with torch.enable_grad():
        probe = pair.detach().clone().requires_grad_(True)
        slope = _slope(image(probe), probe)
    room = torch.where((1 - slope).abs() > 1e-9, 1 - slope, 1.0)
    return pair.detach() + (image(pair.detach()) - pair.detach()) / room


def _slope(image: Tensor, probe: Tensor) -> Tensor:
    """Derivative of a batch of scalar maps; 0 where the map does not depend on the probe (typed cells)."""
    if not image.requires_grad:
        return torch.zeros_like(probe)
    (slope,) = torch.autograd.grad(image.sum(), probe, allow_unused=True)
    return torch.zeros_like(probe) if slope is None else slope
