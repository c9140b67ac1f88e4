"""Moments over time, and the correlation map as a function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.cells import Spec, SpecError
from isornn.cells.arguments import check_variance, correlations_by_step, seeded, whole_number
from isornn.cells.spec import check_spec
from isornn.modes import usual_modes
from isornn.theory.assumptions import check_assumptions
from isornn.theory.inputs import constant_share
from isornn.theory.population.engine import Population
from isornn.theory.population.settling import Moments
from isornn.theory.population.units import HUGE
from isornn.theory.quadrature.affine import AffineTheory, PowerMoments, quadrature_refusal
from isornn.theory.quadrature.fixed_pair import room_for_correlation
from isornn.theory.quadrature.fixed_point import settle
from isornn.theory.quantity import over_replicates
from isornn.theory.reasons import TheoryMissing
from isornn.theory.tied.moments import tied_moments

_FAR = 1e70


@dataclass(frozen=True)
class Trajectory:
    """Moments of the state that is read at times 0..steps, batch-shaped with times last.

    ``mean`` = E[h], ``second_moment`` = E[h^2], ``correlation`` = (E[h_a h_b] - mu^2)/(Q - mu^2), 1 where
    ``correlation_defined`` is False (Q = mu^2); ``stderr`` by name, 0 by quadrature. From the step on at which it
    exceeds 1e60 the second moment is infinite, the correlation not defined, and the mean of no meaning.

    >>> from isornn.cells import Gate, Vanilla
    >>> found = moment_dynamics(Spec(Vanilla(), {"h": Gate(weight_var=0.5, input_var=1.0)}), 10)
    >>> found.second_moment.shape, float(found.second_moment[0])
    (torch.Size([11]), 0.0)
    """

    mean: Tensor
    second_moment: Tensor
    correlation: Tensor
    correlation_defined: Tensor
    stderr: dict[str, Tensor]


@usual_modes()
def moment_dynamics(
    spec: Spec,
    steps: int,
    *,
    tied: bool = False,
    input_correlation: float | Sequence[float] | Tensor | None = None,
    input_covariance: Tensor | None = None,
    initial_variance: float = 0.0,
    generator: torch.Generator | None = None,
) -> Trajectory:
    """Mean, second moment and correlation step by step (Gilboa et al. 2019 eqs. 4-5; figure 5).

    Args:
        steps: how many; of tied networks at least 1.
        tied: weights and biases are drawn once for all steps, as in a real network; else weights are redrawn at every
            step, and biases as the spec says.
        input_correlation: Sigma_z, one number or one for each step; the spec's by default.
        input_covariance: of tied networks' input over time, ``(steps, steps)``, in place of white noise; before the
            first step the input does not fluctuate. It takes the place of the input variance, beside the input's mean,
            and goes with one correlation.
        initial_variance: of the state at time 0, independent between units and between the two copies.
        generator: randomness of the population engines; seeded with 0 by default.

    Raises:
        SpecError: no spec; steps, an input correlation, an initial variance or a generator that are not allowed.
        ValueError: an input covariance that is none, of another length, or of untied networks, to which inputs of
            different steps are independent anyway.
        TheoryMissing: identity matrices, or a cell that is not pointwise.

    >>> from isornn.cells import Gate, Minimal
    >>> spec = Spec(Minimal(), {"u": Gate(weight_var=6.0, input_var=1.0)})
    >>> moment_dynamics(spec, 100).second_moment[-1]
    tensor(0.5416, dtype=torch.float64)
    """
    check_spec(spec)
    steps = whole_number("steps", steps, 1 if tied else 0, "number of steps")
    check_variance("initial_variance", initial_variance)
    sigma = _correlations(spec, steps, input_correlation)
    generator = seeded(generator)
    if tied:
        _check_covariance(input_covariance, steps, input_correlation)
        correlations = [value.expand(1, math.prod(spec.batch_shape), 1).movedim(1, 0) for value in sigma]
        moments = tied_moments(
            spec,
            steps,
            correlations,
            generator=generator,
            input_covariance=input_covariance,
            initial_variance=initial_variance,
        )
        return _sampled(moments)
    if input_covariance is not None:
        raise ValueError(
            "input_covariance: it is for tied=True; to untied networks the inputs of different steps are independent"
        )
    if quadrature_refusal(spec) is not None:
        population = Population(spec, generator=generator)
        start = dict.fromkeys(spec.cell.states, initial_variance)
        return _sampled(population.trajectory(steps, input_correlation=input_correlation, initial=start))
    return _by_quadrature(spec, sigma, initial_variance)


def _by_quadrature(spec: Spec, correlations: Sequence[Tensor], initial_variance: float) -> Trajectory:
    """Untied networks with inputs of these correlations (1, G or 1, 1) by step."""
    theory, share = AffineTheory(spec), constant_share(spec).reshape(1, -1, 1)
    state, pair = PowerMoments.of(theory.full(0.0), theory.full(initial_variance)), theory.full(0.0)
    record = [_measured(theory, state, pair)]
    for correlation in correlations:
        laws = theory.laws(state)
        inputs = share + (1 - share) * correlation
        state, pair = theory.step(laws, state), theory.pair_step(laws, state, pair, inputs)
        state, pair = PowerMoments(tuple(map(_held, state.powers))), _held(pair)
        record.append(_measured(theory, state, pair))
    mean, second, pairs = (torch.cat(column, -1) for column in zip(*record, strict=True))
    width = second - mean**2
    defined = width > 1e-13 * second
    correlation = torch.where(defined, (pairs - mean**2) / torch.where(defined, width, 1.0), 1.0)
    values = {"mean": mean, "second_moment": second, "correlation": correlation}
    shape = (*spec.batch_shape, len(record))
    found = {name: tuple(part.reshape(shape) for part in over_replicates(value)) for name, value in values.items()}
    averages, errors = ({name: parts[k] for name, parts in found.items()} for k in (0, 1))
    return _trajectory(**averages, correlation_defined=defined.all(0).reshape(shape), stderr=errors)


@usual_modes()
def correlation_map(spec: Spec, correlation: Tensor) -> Tensor:
    """``C -> C'`` of one step at the fixed point's mean and second moment (Gilboa et al. 2019 eq. 6).

    Args:
        correlation: values of C in [-1, 1], shape (points,), at least one.

    Returns:
        C' of shape ``(*batch, points)``.

    Raises:
        SpecError: no spec, a correlation outside [-1, 1], or another shape.
        TheoryMissing: identity matrices, or a cell that is not pointwise; the next correlation is not a function of C
            alone (several states, or units with their own biases); the fixed point does not exist or has no variance
            over units.

    >>> from isornn.cells import Gate, Minimal
    >>> spec = Spec(Minimal(), {"u": Gate(weight_var=6.0, input_var=1.0)})
    >>> correlation_map(spec, torch.tensor([0.0, 1.0])).round(decimals=4)
    tensor([0.5025, 1.0000], dtype=torch.float64)
    """
    check_spec(spec)
    if not isinstance(correlation, Tensor) or correlation.ndim != 1 or not len(correlation):
        raise SpecError("correlation", correlation, "it must be a tensor of values from -1 to 1, shape (points,)")
    if correlation.is_complex() or not bool((correlation.abs() <= 1).all()):
        raise SpecError("correlation", correlation, "its values are real, from -1 to 1")
    check_assumptions(spec)
    reason = quadrature_refusal(spec)
    if reason is not None:
        raise TheoryMissing(f"the next correlation is not a function of C alone: {reason}")
    theory = AffineTheory(spec)
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
    return [value.reshape(1, 1, 1) for value in correlations_by_step(given, steps)]


def _check_covariance(
    covariance: Tensor | None, steps: int, correlation: float | Sequence[float] | Tensor | None
) -> None:
    if covariance is None:
        return
    allowed = f"it must be a symmetric, positive semi-definite tensor of real numbers, shape {(steps, steps)}"
    if not isinstance(covariance, Tensor) or covariance.is_complex() or covariance.shape != (steps, steps):
        raise SpecError("input_covariance", covariance, allowed)
    matrix = covariance.detach().to(torch.float64)
    symmetric = bool(matrix.isfinite().all()) and torch.equal(matrix, matrix.mT)
    values = torch.linalg.eigvalsh(matrix) if symmetric else None
    if values is None or not bool(values[0] >= -1e-9 * values[-1].abs()):
        raise SpecError("input_covariance", covariance, allowed)
    if correlation is not None and torch.as_tensor(correlation).numel() > 1:
        raise ValueError("input_correlation: one number, where there is an input_covariance")


def _held(value: Tensor) -> Tensor:
    """What has grown too far stays where it is, so that it is never NaN."""
    return value.nan_to_num(_FAR, _FAR, -_FAR).clamp(-_FAR, _FAR)


def _sampled(moments: Moments) -> Trajectory:
    return _trajectory(
        moments.mean, moments.second_moment, moments.correlation, moments.correlation_defined, moments.stderr
    )


def _trajectory(
    mean: Tensor, second_moment: Tensor, correlation: Tensor, correlation_defined: Tensor, stderr: dict[str, Tensor]
) -> Trajectory:
    """The record, infinite from where the second moment is too large."""
    over = (second_moment > HUGE).cummax(-1).values
    return Trajectory(
        mean=mean,
        second_moment=torch.where(over, torch.inf, second_moment),
        correlation=torch.where(over, 1.0, correlation),
        correlation_defined=correlation_defined & ~over,
        stderr=stderr,
    )


def _measured(theory: AffineTheory, state: PowerMoments, pair: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return theory.over_units(state.mean), theory.over_units(state.second), theory.over_units(pair)
