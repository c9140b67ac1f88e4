"""Moments of tied networks: over time by sampled paths, on given sequences by paths or in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from isornn.cells import Gate, Spec, Values, Vanilla
from isornn.theory.population.jacobian import StateStructure
from isornn.theory.population.settling import Moments
from isornn.theory.population.units import HUGE, Draws
from isornn.theory.quadrature.grid import hermite_table
from isornn.theory.quantity import Quantity
from isornn.theory.reasons import NO_SPREAD, TOO_LARGE
from isornn.theory.tied.paths import AutoregressiveInput, GivenInput, InputMoments, Paths, TiedLaws, WhiteInput

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
    """The input's second moments: the laws' own, or a covariance over time.

    Args:
        correlations: of the two sequences by step, ``(G, 1, 1)``, the last for all later.
        copies: two, or by default one where the sequences are the same throughout.
    """
    alike = all(bool((correlation == 1).all()) for correlation in correlations)
    copies = copies or (1 if alike else 2)
    if covariance is None:
        white = WhiteInput.of(laws.units.input_variance, correlations, copies)
        if not laws.units.remembered:
            return white
        if any(not torch.equal(correlation, correlations[0]) for correlation in correlations):
            raise ValueError("input_correlation: one number, where inputs are correlated over time")
        return AutoregressiveInput(white.covariances[0], laws.units.autocorrelation)
    return GivenInput.of(covariance, correlations[0].flatten(), copies)


class TooLarge(ValueError):
    """A state grew beyond what is followed."""


class SequencePaths(Paths):
    """Paths on many sequences: in so many dimensions evenly spread variates are no better than independent ones."""

    def normals(self, columns: int, key: Tensor | None = None) -> Tensor:
        """Standard normals ``(columns * S, G, R, n)``."""
        shape = (columns * self.input.copies, *self.draws.shape)
        return torch.randn(shape, dtype=torch.float64, generator=self.draws.generator)


def sampled_output_moments(
    laws: TiedLaws, gram: Tensor, mean_over_steps: bool, units: int, replicates: int, generator: torch.Generator
) -> Tensor:
    """Means over units of ``o_a o_b``, o the last outputs or their means over the steps: ``(R, S, S)``.

    With matrices drawn once, ``W r^1, W r^2, ...`` are given the past Gaussian with second moments over the N units
    themselves. So each replicate is in law a network of ``units`` units, but for evenly spread biases.

    Args:
        laws: of one spec.
        gram: ``x_a^t . x_b^s / D``, ``(T, S, T, S)``.

    Raises:
        TooLarge: a state grew beyond what is followed.
    """
    cell = laws.units.cell
    paths = SequencePaths(laws, GivenInput(gram), Draws(1, replicates, units, generator), persistent=())
    total = gram.new_zeros(())
    for _ in range(len(gram)):
        u, x = paths.drawn()
        paths.move(u, x)
        states = paths.units.states
        output = cell.output(Values(**states), u)
        total = total + output if mean_over_steps else output
    if any(bool((value.detach().abs() >= HUGE).any()) for value in states.values()):
        raise TooLarge("states grew without bound")
    total = total / len(gram) if mean_over_steps else total
    read = total.expand(paths.input.copies, 1, replicates, units)[:, 0].movedim(0, 1)
    return read @ read.mT / units


# Order up to which Hermite series go, and the mass of a square that they may leave out, relative to the whole.
ORDER, TAIL = 512, 1e-12
_FLOOR = 1e-280

PairMoments = Callable[[Tensor, Tensor, Tensor], Tensor]


class OutOfReach(ValueError):
    """The moments of pairs are not known to the precision that is promised."""


def closed_output_moments(spec: Spec, gram: Tensor, mean_over_steps: bool) -> Tensor:
    """``E[o_a o_b]`` of the last states, or of their means over the steps, ``(S, S)``.

    Args:
        spec: of a vanilla network.
        gram: ``x_a^t . x_b^s / D``, ``(T, S, T, S)``.

    Raises:
        OutOfReach: another cell, a transition or bias law without such a recursion, or too steep a transition.
    """
    gate = spec.gates["h"] if isinstance(spec.cell, Vanilla) else None
    if gate is None or gate.bias_law is not None:
        raise OutOfReach(f"{spec.cell.name} does not close on pairs")
    moments = _pair_moments(str(getattr(spec.cell, "nonlinearity", "")), gate)
    steps, count = gram.shape[:2]
    variances: list[Tensor] = []
    total = gram.new_zeros(count, count)
    for lag in range(steps if mean_over_steps else 1):
        state = gram.new_zeros(count, count)
        for early in range(steps - lag):
            late = early + lag
            covariance = gate.recurrent_var * state + gate.input_var * gram[late, :, early] + gate.bias_var
            if lag == 0:
                variances.append(covariance.diagonal())
            state = moments(covariance, variances[late], variances[early])
            total = total + (state if lag == 0 else state + state.mT)
    return total / steps**2 if mean_over_steps else state


def _pair_moments(nonlinearity: str, gate: Gate) -> PairMoments:
    mean = torch.as_tensor(gate.bias_mean, dtype=torch.float64)
    if nonlinearity == "identity":
        return lambda covariance, left, right: covariance + mean.square()
    if nonlinearity == "relu" and not bool(mean) and not mean.requires_grad:
        return _relu
    if nonlinearity in _SMOOTH:
        phi = _SMOOTH[nonlinearity]
        return lambda covariance, left, right: _smooth(phi, mean, covariance, left, right)
    raise OutOfReach(f"vanilla with {nonlinearity} does not close on pairs")


_SMOOTH: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "sigmoid": torch.sigmoid}


def _relu(covariance: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """``s_a s_b (sqrt(1 - c^2) + (pi - arccos c) c) / (2 pi)``. Source: Cho & Saul 2009, eqs. 3-4, n = 1."""
    scale, c = _correlation(covariance, left, right)
    # At |c| = 1 the formula's value and slope exist, but not those of its parts.
    inner = c.abs() < 1 - 1e-14
    safe = torch.where(inner, c, 0.0)
    curved = ((1 - safe.square()).sqrt() + (math.pi - torch.arccos(safe)) * safe) / math.pi
    return scale * torch.where(inner, curved, c.clamp(min=0.0)) / 2


def _smooth(phi: Callable[[Tensor], Tensor], mean: Tensor, covariance: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Mehler's expansion ``sum_n F_n(left) F_n(right) c^n``, F_n the Hermite coefficients of phi."""
    _, c = _correlation(covariance, left, right)
    f, g = _hermite(phi, mean, torch.cat((left, right))).split(len(left))
    total = torch.zeros_like(c)
    for n in reversed(range(f.shape[-1])):
        total = total * c + f[:, None, n] * g[:, n]
    return total


def _correlation(covariance: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Product of the standard deviations, and the correlation; 0 where there is no variance."""
    scale = _root(left)[:, None] * _root(right)
    return scale, covariance / scale


def _root(x: Tensor) -> Tensor:
    """sqrt, floored so that derivatives with respect to a variance of 0 are finite; products of two stay above 0."""
    return torch.where(x < _FLOOR, x + _FLOOR, x).sqrt()


def _hermite(phi: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor) -> Tensor:
    """Coefficients ``E[phi(mean + s z) he_n(z)]`` ``(S, order)``, as many as leave out less than ``TAIL``."""
    z, table = hermite_table(ORDER, end=12.0, nodes=1201)
    values = phi(mean + _root(variance)[:, None] * z)
    coefficients = values @ table
    mass = coefficients.detach().square()
    whole = (values.detach().square() @ table[:, 0])[:, None]
    left_out = (whole - mass.cumsum(-1)).abs() / whole.clamp(min=1e-300)
    enough = (left_out <= TAIL).all(0)
    if not bool(enough.any()):
        raise OutOfReach(f"a transition with a variance of {float(variance.max()):.3g} is too steep for its series")
    return coefficients[:, : int(enough.to(torch.uint8).argmax()) + 1]
