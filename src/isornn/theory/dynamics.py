"""Moments over time, and the correlation map as a function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.theory.errors import TheoryMissing
from isornn.theory.population.engine import Population
from isornn.theory.quadrature.affine import AffineTheory, Moments
from isornn.theory.quadrature.fixed_point import room_for_correlation, settle
from isornn.theory.quadrature.structure import NotPolynomial, structure_of

SEED = 0


@dataclass(frozen=True)
class Trajectory:
    """Moments of the state that is read at times 0..steps, batch-shaped with times last.

    ``mean`` = E[h], ``second_moment`` = E[h^2], ``correlation`` = (E[h_a h_b] - mu^2)/(Q - mu^2), 1 where
    ``correlation_defined`` is False (Q = mu^2); ``stderr`` by name, 0 by quadrature.
    """

    mean: Tensor
    second_moment: Tensor
    correlation: Tensor
    correlation_defined: Tensor
    stderr: dict[str, Tensor]


def moment_dynamics(
    spec: Spec,
    steps: int,
    *,
    input_correlation: float | Sequence[float] | Tensor | None = None,
    initial_variance: float = 0.0,
    generator: torch.Generator | None = None,
) -> Trajectory:
    """Mean, second moment and correlation step by step (Gilboa et al. 2019 eqs. 4-5; figure 5).

    Args:
        steps: how many.
        input_correlation: Sigma_z, one number or one for each step; the spec's by default.
        initial_variance: of the state at time 0, independent between units and between the two copies.
        generator: randomness of the population engine; seeded with 0 by default.

    Raises:
        ValueError: an input correlation outside [-1, 1], or not one per step.

    >>> from isornn.cells import Gate, Minimal
    >>> spec = Spec(Minimal(), {"u": Gate(weight_var=6.0, input_var=1.0)})
    >>> moment_dynamics(spec, 100).second_moment[-1]
    tensor(0.5416, dtype=torch.float64)
    """
    sigma = _correlations(spec, steps, input_correlation)
    try:
        theory = AffineTheory(spec, structure_of(spec.cell))
    except NotPolynomial:
        population = Population(spec, generator=generator or torch.Generator().manual_seed(SEED))
        start = dict.fromkeys(spec.cell.states, initial_variance)
        sampled = population.trajectory(steps, input_correlation=input_correlation, initial=start)
        return Trajectory(
            sampled.mean, sampled.second_moment, sampled.correlation, sampled.correlation_defined, sampled.stderr
        )
    state, pair = Moments.of(theory.full(0.0), theory.full(initial_variance)), theory.full(0.0)
    record = [_measured(theory, state, pair)]
    for t in range(steps):
        laws = theory.laws(state)
        state, pair = theory.step(laws, state), theory.pair_step(laws, state, pair, sigma[t])
        record.append(_measured(theory, state, pair))
    mean, second, pairs = (torch.cat(column, -1) for column in zip(*record, strict=True))
    width = second - mean**2
    defined = width > 1e-13 * second
    correlation = torch.where(defined, (pairs - mean**2) / torch.where(defined, width, 1.0), 1.0)
    values = {"mean": mean, "second_moment": second, "correlation": correlation}
    shape = (*spec.batch_shape, steps + 1)
    averages = {name: value.mean(0).reshape(shape) for name, value in values.items()}
    return Trajectory(
        **averages,
        correlation_defined=defined.all(0).reshape(shape),
        stderr={name: _spread(value).reshape(shape) for name, value in values.items()},
    )


def correlation_map(spec: Spec, correlation: Tensor) -> Tensor:
    """``C -> C'`` of one step at the fixed point's mean and second moment (Gilboa et al. 2019 eq. 6).

    Args:
        correlation: values of C in [-1, 1], shape (points,).

    Returns:
        C' of shape (*batch, points).

    Raises:
        TheoryMissing: the next correlation is not a function of C alone (several states, or units with their own
            biases), or the fixed point does not exist or has no variance over units.

    >>> from isornn.cells import Gate, Minimal
    >>> spec = Spec(Minimal(), {"u": Gate(weight_var=6.0, input_var=1.0)})
    >>> correlation_map(spec, torch.tensor([0.0, 1.0])).round(decimals=4)
    tensor([0.5025, 1.0000], dtype=torch.float64)
    """
    try:
        theory = AffineTheory(spec, structure_of(spec.cell))
    except NotPolynomial as reason:
        raise TheoryMissing(f"the next correlation is not a function of C alone: {reason}") from None
    if theory.fixed and theory.nodes.weight.numel() > 1:
        raise TheoryMissing("the next correlation is not a function of C alone: units keep their own biases")
    settled = settle(theory)
    floor, width = room_for_correlation(theory, settled)
    if not bool((settled.exists & (width > 0)).all()):
        raise TheoryMissing("no fixed point with a variance over units, so C is not defined")
    points = []
    for value in correlation.to(torch.float64):
        pair = floor + width * value
        after = theory.pair_step(settled.laws, settled.state, pair, theory.input_correlation)
        points.append((after - floor) / width)
    return torch.cat(points, -1).mean(0).reshape(*spec.batch_shape, len(points))


def _correlations(spec: Spec, steps: int, given: float | Sequence[float] | Tensor | None) -> list[Tensor]:
    if given is None:
        own = torch.as_tensor(spec.input.correlation, dtype=torch.float64)
        return [own.expand(spec.batch_shape).reshape(1, -1, 1)] * steps
    values = torch.as_tensor(given, dtype=torch.float64)
    if values.dim() > 1 or values.numel() not in (1, steps) or not bool((values.abs() <= 1).all()):
        raise ValueError(f"input_correlation: one number or {steps}, each from -1 to 1; found {given!r}")
    return [value.reshape(1, 1, 1) for value in values.expand(steps)]


def _measured(theory: AffineTheory, state: Moments, pair: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return theory.over_units(state.mean), theory.over_units(state.second), theory.over_units(pair)


def _spread(values: Tensor) -> Tensor:
    return values.std(0) / math.sqrt(len(values)) if len(values) > 1 else torch.zeros_like(values[0])
