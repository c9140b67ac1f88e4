"""Analysis of a spec by the population engine, in the same record as the deterministic one's."""

from __future__ import annotations

import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.theory.errors import TheoryMissing
from isornn.theory.population.engine import Effort, Population
from isornn.theory.quantities import Quantity, time_scale
from isornn.theory.reasons import NO_SPREAD, NOT_CONVERGED, NOT_EXPONENTIAL, UNENDING
from isornn.theory.records import Analysis, FixedPoint, JacobianMoments

XI_Q_MISSING = "known for cells with one state that enters its update affinely"


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
    stable = population.stable(length, effort or Effort())
    moments, response, together = stable.stationary.moments, stable.response, stable.identical_response
    converged = stable.stationary.converged & stable.identical.converged
    missing: dict[str, Tensor | bool] = {NOT_CONVERGED: ~converged}

    def quantity(value: Tensor, stderr: Tensor, reasons: dict[str, Tensor | bool] | None = None) -> Quantity:
        return Quantity.of(value, stderr, missing | (reasons or {}))

    chi = quantity(response.chi, response.stderr["chi"], {NOT_EXPONENTIAL: ~response.exponential})
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
    return Analysis(
        spec=spec,
        engine="population",
        fixed_point=FixedPoint(
            mean=quantity(moments.mean, moments.stderr["mean"]),
            second_moment=quantity(moments.second_moment, moments.stderr["second_moment"]),
            correlation=quantity(
                moments.correlation, moments.stderr["correlation"], {NO_SPREAD: ~moments.correlation_defined}
            ),
            residual=stable.stationary.residual,
            converged=converged,
        ),
        chi=chi,
        xi=time_scale(chi),
        chi_1=quantity(together.chi, together.stderr["chi"], {NOT_EXPONENTIAL: ~together.exponential}),
        reach=quantity(response.reach, response.stderr["reach"], {UNENDING: torch.isinf(response.reach)}),
        jacobian=jacobian,
        xi_q=Quantity.of(torch.zeros(spec.batch_shape, dtype=torch.float64), reasons=missing | {XI_Q_MISSING: True}),
        profile=response.profile,
        state_profiles=response.states,
    )
