"""Moments of tied networks over time, without what a displacement adds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.theory.population.moments import Moments
from isornn.theory.population.probing import StateStructure
from isornn.theory.population.units import HUGE, Draws
from isornn.theory.quantities import Quantity
from isornn.theory.reasons import NO_SPREAD, TOO_LARGE
from isornn.theory.tied.inputs import GivenInput, InputMoments, WhiteInput
from isornn.theory.tied.paths import Paths, TiedLaws

UNITS, REPLICATES = 2048, 8
CERTAIN = 0.01


def tied_moments(
    spec: Spec,
    steps: int,
    correlations: Sequence[Tensor],
    *,
    generator: torch.Generator,
    input_covariance: Tensor | None = None,
    initial_variance: float = 0.0,
    units: int = UNITS,
    replicates: int = REPLICATES,
) -> Moments:
    """Moments at times 0 .. steps, shaped ``(*batch, steps + 1)``.

    Args:
        correlations: of the two inputs, by step, ``(G, 1, 1)``.
        input_covariance: ``E[x_t x_t']``, ``(steps, steps)``, in place of white noise; the first correlation counts.
        initial_variance: of all states at time 0, independent in the two copies.
        units, replicates: powers of two.
    """
    laws = TiedLaws.of(spec)
    draws = Draws(laws.units.batch, replicates, units, generator)
    input = input_moments(laws, correlations, input_covariance, 2 if initial_variance > 0 else None)
    state = spec.cell.states[0]
    with torch.no_grad():
        paths = Paths(laws, input, draws, StateStructure.of(laws.units.cell).persistent, initial_variance)
        means = [paths.units.moments(state)]
        for _ in range(steps):
            paths.move(*paths.drawn())
            means.append(paths.units.moments(state))
    return Moments.of(torch.stack(means, 2), spec.batch_shape)


def certain(moments: Moments) -> bool:
    """Whether E[h^2] is known to 1 % at every step, wherever it is followed."""
    value, error = moments.second_moment, moments.stderr["second_moment"]
    return bool(((error <= CERTAIN * value) | (value > HUGE)).all())


def lines_of(moments: Moments) -> dict[str, Quantity]:
    """Mean, second moment and correlation at times 1, 2, .. from moments at times 0, 1, .. ."""
    over = (moments.second_moment[..., 1:] > HUGE).cummax(-1).values

    def line(name: str, reasons: dict[str, Tensor | bool] | None = None) -> Quantity:
        value, stderr = getattr(moments, name)[..., 1:], moments.stderr[name][..., 1:]
        return Quantity.of(value, stderr, {TOO_LARGE: over} | (reasons or {}))

    return {
        "mean": line("mean"),
        "second_moment": line("second_moment"),
        "correlation": line("correlation", {NO_SPREAD: ~moments.correlation_defined[..., 1:]}),
    }


def input_moments(
    laws: TiedLaws, correlations: Sequence[Tensor], covariance: Tensor | None = None, copies: int | None = None
) -> InputMoments:
    """The input's second moments: white noise of the laws' variance, or a covariance over time.

    Args:
        correlations: of the two sequences by step, ``(G, 1, 1)``, the last for all later.
        copies: two, or by default one where the sequences are the same throughout.
    """
    alike = all(bool((correlation == 1).all()) for correlation in correlations)
    copies = copies or (1 if alike else 2)
    if covariance is None:
        return WhiteInput.of(laws.units.input_variance, correlations, copies)
    return GivenInput.of(covariance, float(correlations[0].flatten()[0]), copies)
