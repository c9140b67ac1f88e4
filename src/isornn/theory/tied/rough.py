"""Tied networks of many specs at once by few paths: what phase diagrams are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.theory.population.moments import Moments
from isornn.theory.population.units import Draws
from isornn.theory.quantities import Quantity, time_scale
from isornn.theory.reasons import NO_SPREAD, NOT_SETTLED, TOO_LARGE
from isornn.theory.tied.analysis import growth_factors, lyapunov_exponent
from isornn.theory.tied.following import follow
from isornn.theory.tied.paths import TiedLaws
from isornn.theory.tied.trajectory import input_moments

UNITS, REPLICATES = 128, 8
# E[h^2] has settled where it changes by less than this share over the later half of the steps.
_SETTLED = 0.1


@dataclass(frozen=True)
class RoughTied:
    """Quantities by name, batch-shaped: growth over the later half of the steps, moments at the last.

    ``residual`` is the relative change of E[h^2] over the later half of the steps. Where the state has not ``settled``
    there are no numbers.
    """

    quantities: Mapping[str, Quantity]
    residual: Tensor
    settled: Tensor


def rough_tied(spec: Spec, steps: int, *, generator: torch.Generator) -> RoughTied:
    """Follow tied networks of a batch of specs from state 0, by few paths, for standard errors of some per cent."""
    laws = TiedLaws.of(spec)
    draws = Draws(laws.units.batch, REPLICATES, UNITS, generator)
    followed = follow(laws, input_moments(laws, [laws.units.input_correlation]), draws, steps, tilted=False)
    shape = spec.batch_shape
    moments = Moments.of(followed.means, shape)
    residual, settled = _settled(moments, followed.start)
    settled = settled & ~followed.unbounded.reshape(shape)
    missing: dict[str, Tensor | bool] = {TOO_LARGE: followed.unbounded.reshape(shape), NOT_SETTLED: ~settled}

    def last(name: str, reasons: Mapping[str, Tensor | bool]) -> Quantity:
        return Quantity.of(getattr(moments, name)[..., -1], moments.stderr[name][..., -1], missing | dict(reasons))

    def growth(quantity: Quantity) -> Quantity:
        return Quantity.of(quantity.value, quantity.stderr, missing | dict(quantity.reasons))

    chi_1, chi = map(growth, growth_factors(followed, shape))
    return RoughTied(
        quantities={
            "xi": time_scale(chi),
            "chi": chi,
            "chi_1": chi_1,
            "lyapunov": growth(lyapunov_exponent(followed, shape)),
            "second_moment": last("second_moment", {}),
            "correlation": last("correlation", {NO_SPREAD: ~moments.correlation_defined[..., -1]}),
        },
        residual=residual,
        settled=settled,
    )


def _settled(moments: Moments, start: int) -> tuple[Tensor, Tensor]:
    """Relative change of E[h^2] from step ``start`` to the last, and whether it is small or within its error."""
    value, error = moments.second_moment, moments.stderr["second_moment"]
    early, late = value[..., start - 1], value[..., -1]
    noise = 3 * (error[..., start - 1] ** 2 + error[..., -1] ** 2).sqrt()
    change = (late - early).abs()
    largest = torch.maximum(early, late)
    residual = torch.where(largest > 0, change / largest.clamp(min=1e-300), 0.0)
    return residual, (residual <= _SETTLED) | ((change <= noise) & (noise <= largest / 2))
