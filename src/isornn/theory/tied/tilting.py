"""Few paths that carry much: how many they are, and drawing paths afresh so that they are more."""

from __future__ import annotations

import torch
from torch import Tensor

from isornn.theory.tied.paths import Paths

# Paths are drawn afresh once what counts rests on a smaller share of them.
_FEW = 0.1


def effective_share(paths: Paths, energy: Tensor) -> Tensor:
    """The share of units that the mean of ``energy`` ``(G, R, n)``, not negative, rests on: ``(G, R)``, 1 for none."""
    product = energy if paths.units.weights is None else paths.units.weights * energy
    square = product.square().mean(-1)
    return torch.where(square > 0, product.mean(-1).square() / square.clamp(min=1e-300), 1.0)


def rebalance(paths: Paths, energy: Tensor) -> Tensor | None:
    """Where ``energy`` rests on few, draw paths by their weight and by their energy, half and half.

    No new weight exceeds 2, nor does a weight times its share of the energy, so both averages are good. Systematic
    resampling. Source: Doucet & Johansen 2009, section 3.4.

    Returns:
        Which units are kept, ``(G, R, n)``, for other things that belong to them; ``None`` where nothing was done.
    """
    few = (effective_share(paths, energy) < _FEW)[..., None]
    if not bool(few.any()):
        return None
    weights = torch.ones_like(energy) if paths.units.weights is None else paths.units.weights
    tilt = (1 + energy / (weights * energy).mean(-1, keepdim=True).clamp(min=1e-300)) / 2
    order, fresh = _resampled(weights, tilt, paths.draws.generator)
    order = torch.where(few, order, torch.arange(energy.shape[-1]))
    paths.take(order, torch.where(few, fresh, weights))
    return order


def _resampled(weights: Tensor, tilt: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Units drawn in proportion to ``weights * tilt``, and their new weights, in proportion to ``1 / tilt``."""
    count = weights.shape[-1]
    ladder = (weights * tilt).cumsum(-1)
    shift = torch.rand(*weights.shape[:-1], 1, dtype=torch.float64, generator=generator)
    places = (torch.arange(count, dtype=torch.float64) + shift) / count * ladder[..., -1:]
    order = torch.searchsorted(ladder, places).clamp(max=count - 1)
    new = 1 / tilt.gather(-1, order)
    return order, new / new.mean(-1, keepdim=True)
