"""Analysis of tied networks: populations for infinite width, and one for networks of a stated width."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.theory.dynamics import moment_dynamics
from isornn.theory.population.settling import Moments
from isornn.theory.population.units import Draws
from isornn.theory.quantity import Quantity, jackknife, pooled, time_scale
from isornn.theory.reasons import NEVER_FORGETS, NO_SPREAD, NOT_SETTLED, NOTHING_LEFT, SIGN_UNSURE, TOO_LARGE
from isornn.theory.records import QUANTILES, Tied
from isornn.theory.tied.following import Followed, follow_tied
from isornn.theory.tied.moments import certain, input_moments, lines_of, tied_moments
from isornn.theory.tied.paths import TiedLaws

WIDTH, NETWORKS = 1024, 16
REPLICATES = 8
# Units in each replicate: more where fewer leave E[h^2] less certain than it should be, and memory allows it.
UNITS = (2048, 16384, 65536)
_MOST_VALUES = 65536 * 60


def tied_analysis(spec: Spec, steps: int, *, generator: torch.Generator) -> Tied:
    """Follow populations of tied networks over ``steps`` steps and read off everything that `Tied` names.

    Raises:
        TheoryMissing: identity matrices, or a cell whose update is not pointwise.
    """
    laws = TiedLaws.of(spec)
    correlations = [laws.units.input_correlation]
    moments = _moments(spec, steps, correlations, generator)
    input = input_moments(laws, correlations)
    infinite = follow_tied(laws, input, Draws(laws.units.batch, REPLICATES, UNITS[0], generator), steps, tilted=True)
    finite = follow_tied(laws, input, Draws(laws.units.batch, NETWORKS, WIDTH, generator), steps, tilted=False)
    untied = moment_dynamics(spec, steps, generator=generator)
    shape = spec.batch_shape
    chi_1, chi = growth_factors(infinite, shape)

    return Tied(
        steps=steps,
        width=WIDTH,
        **lines_of(moments),
        lyapunov=lyapunov_exponent(finite, shape),
        chi=chi,
        chi_1=chi_1,
        xi=time_scale(chi),
        untied=Quantity.of(
            untied.second_moment[..., 1:],
            untied.stderr["second_moment"][..., 1:],
            {TOO_LARGE: untied.second_moment[..., 1:].isinf()},
        ),
        time_scales={name: _time_scales(keeping, shape) for name, keeping in finite.keeping.items()},
        effective_share=finite.effective_share.mean(1).reshape(shape),
    )


def _moments(spec: Spec, steps: int, correlations: Sequence[Tensor], generator: torch.Generator) -> Moments:
    """Moments; those of one copy by as many units as leave E[h^2] certain, or as memory allows."""
    values = max(1, math.prod(spec.batch_shape)) * steps
    alike = [torch.ones_like(correlation) for correlation in correlations]
    fewest, *more = UNITS
    moments = tied_moments(spec, steps, correlations, generator=generator, units=fewest, replicates=REPLICATES)
    for count in more:
        if certain(moments) or count * values > _MOST_VALUES:
            break
        one = tied_moments(spec, steps, alike, generator=generator, units=count, replicates=REPLICATES)
        errors = {name: one.stderr[name] for name in ("mean", "second_moment")}
        moments = replace(moments, mean=one.mean, second_moment=one.second_moment, stderr={**moments.stderr, **errors})
    return moments


def growth_factors(followed: Followed, shape: torch.Size) -> tuple[Quantity, Quantity]:
    """Growth per step of E|dh|^2 and of E[dh_a dh_b] over the later half of the steps, at infinite width."""
    value, error = jackknife(followed.growth(_log_means(followed.log_response)))
    factor = value.exp()
    columns = zip(factor.unbind(-1), (factor * error).unbind(-1), strict=True)
    own, pair = (
        Quantity.of(v.reshape(shape), e.reshape(shape), _no_growth(followed, j, shape))
        for j, (v, e) in enumerate(columns)
    )
    return own, pair


def lyapunov_exponent(followed: Followed, shape: torch.Size) -> Quantity:
    """Growth of ``ln |dh|`` per step over the later half of the steps: the mean over networks of as many units."""
    value, error = jackknife(pooled(followed.growth(followed.log_response)[..., 0] / 2))
    return Quantity.of(value.reshape(shape), error.reshape(shape), _no_growth(followed, 0, shape))


def _no_growth(followed: Followed, place: int, shape: torch.Size) -> dict[str, Tensor | bool]:
    """Where the states grew too far, or the displacement is gone in some network, or its sign is not sure."""
    ends = followed.log_response[:, :, (followed.start, -1)].isinf().any(1)  # G, ends, own and pair
    lost, unsure = ends[..., 0].any(1), ends[..., place].any(1)
    masks = {TOO_LARGE: followed.unbounded, NOTHING_LEFT: lost, SIGN_UNSURE: unsure}
    return {reason: where.reshape(shape) for reason, where in masks.items()}


def _log_means(logs: Tensor) -> Tensor:
    """Logarithms of what ``pooled`` gives of the exponentials of ``logs`` ``(G, R, ...)``."""
    largest = logs.amax(1, keepdim=True).clamp(min=-1e300)
    return pooled((logs - largest).exp()).log() + largest.movedim(1, 0)


def _time_scales(keeping: Tensor, shape: torch.Size) -> Quantity:
    """Quantiles over units of ``-1 / keeping`` ``(G, R, n)``, with standard errors over the replicates."""
    levels = torch.tensor(QUANTILES, dtype=torch.float64)
    # -1/x rises with x below 0, so quantiles of one are quantiles of the other.
    rates = torch.quantile(keeping, levels, dim=-1).movedim(0, -1)
    value, error = jackknife(pooled(rates))
    unending = value >= 0
    rate = torch.where(unending, -1.0, value)
    scale = torch.where(unending, torch.inf, -1 / rate)
    quantity = (scale, error / rate.square(), unending)
    value, error, unending = (part.reshape(*shape, -1) for part in quantity)
    return Quantity.of(value, error, {NEVER_FORGETS: unending})


FEW_UNITS, FEW_REPLICATES = 128, 8
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
    draws = Draws(laws.units.batch, FEW_REPLICATES, FEW_UNITS, generator)
    followed = follow_tied(laws, input_moments(laws, [laws.units.input_correlation]), draws, steps, tilted=False)
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
