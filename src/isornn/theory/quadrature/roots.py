"""Roots of scalar functions, one or batches of them, and fixed points of batches of scalar maps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]
ITERATIONS, PATIENCE = 120, 3


def brent(function: Callable[[float], float], low: float, high: float, **tolerance: float) -> float:
    """Between ``low`` and ``high``, where the function changes sign, by Brent's method; ``xtol``, ``rtol`` as scipy's.

    >>> round(brent(lambda x: x * x - 2, 0.0, 2.0, xtol=1e-9), 6)
    1.414214
    """
    # Half a second to import, and most commands solve for nothing.
    from scipy.optimize import brentq

    return float(brentq(function, low, high, **tolerance))


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


def newton_step(image: Function, pair: Tensor) -> Tensor:
    """The fixed point of ``image`` with derivatives by the implicit function theorem."""
    with torch.enable_grad():
        probe = pair.detach().clone().requires_grad_(True)
        slope = slope_at(image(probe), probe)
    room = torch.where((1 - slope).abs() > 1e-9, 1 - slope, 1.0)
    return pair.detach() + (image(pair.detach()) - pair.detach()) / room


def slope_at(image: Tensor, probe: Tensor) -> Tensor:
    """Derivative of a batch of scalar maps; 0 where the map does not depend on the probe (typed cells)."""
    if not image.requires_grad:
        return torch.zeros_like(probe)
    (slope,) = torch.autograd.grad(image.sum(), probe, allow_unused=True)
    return torch.zeros_like(probe) if slope is None else slope
