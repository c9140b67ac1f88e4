"""Moments of tied networks over time, without what a displacement adds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.theory.population.moments import Moments
from isornn.theory.population.probing import Probe
from isornn.theory.population.units import Draws
from isornn.theory.tied.inputs import GivenInput, InputMoments, WhiteInput
from isornn.theory.tied.paths import Paths, TiedLaws

UNITS, REPLICATES = 2048, 8


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
        paths = Paths(laws, input, draws, Probe.of(spec.cell).live, initial_variance)
        means = [paths.units.moments(state)]
        for _ in range(steps):
            paths.move(*paths.drawn())
            means.append(paths.units.moments(state))
    return Moments.of(torch.stack(means, 2), spec.batch_shape)


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
