"""What decides how fine and how wide a grid integrates functions of a pre-activation: kinks, scale and growth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from isornn.cells.polynomial import GateFunction
from isornn.cells.structure import NotPolynomial
from isornn.theory.quadrature.grid import FAR, REACH, SMOOTH, Smoothness, standard_nodes

FINEST = 2.0**-6
_AGREE = 1e-9
_STEEP = 1e6  # growth from u = 20 to 40 beyond that of a polynomial of a cell
# Wide and narrow laws near 0, where a grid is finest, and away from it.
_CENTRES = (0.0, 0.3, -0.3, 1.0, -1.0, 3.0, -3.0, 10.0, -10.0, 30.0, -30.0)
_WIDTHS = (0.3, 1.0, 3.0, 10.0)


def smoothness_of(functions: Iterable[GateFunction]) -> Smoothness:
    """Of functions of one pre-activation, their derivatives and products of these.

    Raises:
        NotPolynomial: no grid up to the scale `FINEST` integrates one of them.

    >>> smoothness_of([GateFunction("f", torch.sigmoid)])
    Smoothness(kinks=(), scale=1.0, reach=9.0)
    >>> smoothness_of([GateFunction("f", lambda u: torch.sigmoid(20 * u))]).scale
    0.125
    """
    found = [SMOOTH, *map(_of_one, functions)]
    kinks = tuple(sorted({kink for one in found for kink in one.kinks}))
    return Smoothness(kinks, min(one.scale for one in found), max(one.reach for one in found))


@lru_cache(maxsize=4096)
def _of_one(function: GateFunction) -> Smoothness:
    if function.line is not None:
        return SMOOTH
    found = Smoothness(tuple(sorted(function.kinks)), 1.0, FAR if _grows(function) else REACH)
    while found.scale >= FINEST:
        if all(_agree(f, found) for f in (function, function.derivative)):
            return found
        found = replace(found, scale=found.scale / 2)
    raise NotPolynomial(f"a function of u_{function.gate} changes too fast for quadrature, or is NaN somewhere")


def _grows(function: GateFunction) -> bool:
    """Whether it grows exponentially, so that its mean comes from far tails of the Gaussian."""
    far, near = (function.call(torch.tensor([-u, u], dtype=torch.float64)).abs() for u in (40.0, 20.0))
    return bool((far > _STEEP * (1 + near)).any())


def _agree(function: GateFunction, smoothness: Smoothness) -> bool:
    """Whether a grid twice as fine gives the same means; halving the step squares a grid's error.

    Means that overflow with both are the same; NaN is never.
    """
    finer = replace(smoothness, scale=smoothness.scale / 2)
    for width in _WIDTHS:  # by itself: laws that are integrated together have the finest grid among them
        coarse, fine = _means(function, width, smoothness), _means(function, width, finer)
        same = ((coarse - fine).abs() <= _AGREE * (1 + fine.abs())) | (coarse.isinf() & fine.isinf())
        if not bool(same.all()):
            return False
    return True


def _means(function: GateFunction, width: float, smoothness: Smoothness) -> Tensor:
    """Of the powers that second and fourth moments ask for."""
    mean = torch.tensor(_CENTRES, dtype=torch.float64)
    std = torch.full_like(mean, width)
    z, weight = standard_nodes(mean, std, smoothness)
    values = function.call(mean[:, None] + std[:, None] * z).detach()
    return torch.stack([(values**power * weight).sum(-1) for power in (1, 2, 4)])
