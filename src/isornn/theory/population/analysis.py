"""What the population engine's answer is: everything that `Analysis` names, with its errors and reasons."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.cells.jumps import jumping
from isornn.theory.population.engine import Effort, Population, Stable
from isornn.theory.quantity import Quantity
from isornn.theory.reasons import (
    CORRELATED_RESPONSE,
    DIED_OUT,
    FROZEN,
    JUMPS,
    KEEPS_START,
    NEGATIVE_RATE,
    NO_SPREAD,
    NOT_CONVERGED,
    NOT_EXPONENTIAL,
    PAIR_TOO_SOON,
    TOO_SOON,
    TheoryMissing,
)
from isornn.theory.records import Analysis, FixedPoint, JacobianMoments

XI_Q_MISSING = "known for cells with one state that enters its update affinely"
_MEMORIES = 4  # steps to stationarity, at least, in units of the reach


def population_analysis(
    spec: Spec,
    length: int,
    *,
    generator: torch.Generator,
    units: int | None = None,
    replicates: int | None = None,
    effort: Effort | None = None,
) -> Analysis:
    """Settle a population, follow a displacement, and read off everything `Analysis` names."""
    sizes = {name: n for name, n in (("units", units), ("replicates", replicates)) if n is not None}
    population = Population(spec, generator=generator, **sizes)
    stable, too_soon = _followed_until_settled(population, length, effort or Effort())
    moments, response, together = stable.stationary.moments, stable.response, stable.identical_response
    settled = stable.stationary.converged & stable.identical.converged
    converged = settled & ~too_soon
    unfinished = ~settled
    if bool(unfinished.any()):
        unfinished = unfinished & population.must_settle(stable.stationary)
    # Without a gate that retains, a state of which nothing is lost grows.
    frozen = (stable.stationary.frozen | stable.identical.frozen) & bool(population.structure.retention_gates)
    keeps_start = stable.stationary.keeps_start | stable.identical.keeps_start
    missing: dict[str, Tensor | bool] = {
        FROZEN: frozen,
        KEEPS_START: keeps_start,
        NOT_CONVERGED: ~settled & ~unfinished,
        TOO_SOON: too_soon | unfinished,
    }

    apart: dict[str, Tensor | bool] = {PAIR_TOO_SOON: ~stable.pair_settled}

    def quantity(value: Tensor, stderr: Tensor, reasons: dict[str, Tensor | bool] | None = None) -> Quantity:
        return Quantity.of(value, stderr, missing | (reasons or {}))

    def known(curve: Tensor) -> Tensor:
        return torch.where((converged & stable.pair_settled)[..., None], curve, torch.nan)

    laws = population.laws
    curved = NOT_EXPONENTIAL if laws.fixed else CORRELATED_RESPONSE if laws.remembered else DIED_OUT
    places = jumping(spec.cell)
    jumps: dict[str, Tensor | bool] = {JUMPS.format(", ".join(places)): True} if places else {}
    chi = quantity(
        response.chi,
        response.stderr["chi"],
        {**jumps, **apart, NEGATIVE_RATE: response.is_negative, curved: ~response.exponential},
    )
    try:
        found = population.jacobian(stable.stationary)
        jacobian = JacobianMoments(
            quantity(found.first, found.stderr["first"]),
            quantity(found.second, found.stderr["second"]),
            quantity(found.variance, found.stderr["variance"]),
        )
    except TheoryMissing as reason:
        blank = Quantity.of(torch.zeros(spec.batch_shape, dtype=torch.float64), reasons=missing | {str(reason): True})
        jacobian = JacobianMoments(blank, blank, blank)
    return Analysis.of(
        spec,
        "population",
        fixed_point=FixedPoint(
            mean=quantity(moments.mean, moments.stderr["mean"]),
            second_moment=quantity(moments.second_moment, moments.stderr["second_moment"]),
            correlation=quantity(
                moments.correlation, moments.stderr["correlation"], {NO_SPREAD: ~moments.correlation_defined, **apart}
            ),
            residual=stable.stationary.residual,
            converged=converged,
        ),
        chi=chi,
        chi_1=quantity(together.chi, together.stderr["chi"], jumps | {curved: ~together.exponential}),
        reach=quantity(response.reach, response.stderr["reach"], {**jumps, **apart, **response.without_reach}),
        jacobian=jacobian,
        moment_rate=quantity(torch.zeros_like(response.chi), torch.zeros_like(response.chi), {XI_Q_MISSING: True}),
        profile=known(response.profile),
        profile_stderr=known(response.stderr["profile"]),
        state_profiles={name: known(curve) for name, curve in response.states.items()},
        state_profiles_stderr={name: known(error) for name, error in response.states_stderr.items()},
    )


def _followed_until_settled(population: Population, length: int, effort: Effort) -> tuple[Stable, Tensor]:
    """The stable fixed point, and where the population remembers for too long to have settled within the steps."""
    stable = population.stable(length, effort)
    wanted = _least_steps(population, stable)
    more = wanted[(wanted > stable.stationary.steps) & (wanted <= effort.settle_steps)]
    if more.numel():
        stable = population.stable(length, replace(effort, least_steps=int(more.max())))
    return stable, _least_steps(population, stable) > stable.stationary.steps


def _least_steps(population: Population, stable: Stable) -> Tensor:
    """How many steps, by what is remembered, a population needs to settle.

    None where states start from a law that is known. Of others, and where inputs are correlated over time, it is not.
    """
    structure, response = population.structure, stable.response
    if not population.laws.remembered and structure.closed == structure.persistent:
        return torch.zeros_like(response.chi)
    return torch.where(response.chi < 1, _MEMORIES * response.memory(), 0.0)
