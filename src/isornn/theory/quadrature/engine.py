"""Analysis of a spec by the deterministic engine."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.cells.polynomial import Structure
from isornn.theory.errors import TheoryMissing
from isornn.theory.quadrature import affine
from isornn.theory.quadrature.affine import AffineTheory, Moments
from isornn.theory.quadrature.fixed_point import Settled, SettledPair, settle, settle_pair
from isornn.theory.quadrature.jacobian import jacobian_moments
from isornn.theory.quadrature.response import Propagator, profile, propagator, reach, stays_together
from isornn.theory.quantities import Quantity, time_scale
from isornn.theory.reasons import FROZEN, KEEPS_ANY, NO_SPREAD, NOT_CONVERGED, NOT_EXPONENTIAL, TOO_LARGE, UNENDING
from isornn.theory.records import Analysis, FixedPoint, JacobianMoments

SAMPLES_PER_REACH = 16
REACHES = 3
EXPONENTIAL = 0.01  # largest relative spread of local rates that still counts as one exponential
TINY = 1e-300
ACCURATE = 1e-8  # residual up to which a fixed point counts as found


class QuadratureEngine:
    """Everything the deterministic engine knows of a spec, each computed once.

    Raises:
        NotPolynomial: the cell has several states, or its update is not affine in the state with one-gate factors.
    """

    def __init__(self, spec: Spec, structure: Structure) -> None:
        self.spec = spec
        self.theory = AffineTheory(spec, structure)
        self.settled: Settled = settle(self.theory)
        identical = torch.ones_like(self.theory.input_correlation)
        self.together = self._propagator(self.settled.state.second, identical)
        self.pair: SettledPair = settle_pair(self.theory, self.settled, stays_together(self.together))
        self.apart = self._propagator(self.pair.pair, self.theory.input_correlation)

    def _propagator(self, pair: Tensor, input_correlation: Tensor) -> Propagator:
        return propagator(self.theory, self.settled.laws, self.settled.state, pair, input_correlation)

    def analysis(self, length: int) -> Analysis:
        """The record; ``length`` is how far the response profile is wanted."""
        chi, chi_1, far = self._rate(self.apart), self._rate(self.together), reach(self.apart)
        curve = profile(self.apart, length).mean(0).reshape(*self.spec.batch_shape, length + 1)
        return Analysis(
            spec=self.spec,
            engine="quadrature",
            fixed_point=self._fixed_point(),
            chi=chi,
            xi=time_scale(chi),
            chi_1=chi_1,
            reach=self._quantity(far, {UNENDING: torch.isinf(far).any(0).reshape(self.spec.batch_shape)}),
            jacobian=self._jacobian(),
            xi_q=self._xi_q(),
            profile=curve,
            state_profiles={self.theory.state: curve},
        )

    def _quantity(self, values: Tensor, reasons: dict[str, Tensor | bool] | None = None) -> Quantity:
        """From (replicates, batch[, 1]) to batch-shaped, with the replicates' standard error."""
        values = values.reshape(self.theory.nodes.replicates, *self.spec.batch_shape)
        value = values.mean(0)
        error = values.std(0) / math.sqrt(len(values)) if len(values) > 1 else torch.zeros_like(value)
        beyond: dict[str, Tensor | bool] = {TOO_LARGE: ~value.isfinite()}
        return Quantity.of(value, error, self._missing() | (reasons or {}) | beyond)

    def _missing(self) -> dict[str, Tensor | bool]:
        exists = self._all(self.settled.exists)
        frozen = ~exists & self._any(self.settled.carry >= affine.FROZEN)
        return {FROZEN: frozen, NOT_CONVERGED: ~self._converged()}

    def _converged(self) -> Tensor:
        accurate = torch.maximum(self.settled.residual, self.pair.residual) <= ACCURATE
        return self._all(self.settled.exists & accurate)

    def _all(self, mask: Tensor) -> Tensor:
        return mask.flatten(2).all(-1).all(0).reshape(self.spec.batch_shape)

    def _any(self, mask: Tensor) -> Tensor:
        return mask.flatten(2).any(-1).any(0).reshape(self.spec.batch_shape)

    def _fixed_point(self) -> FixedPoint:
        theory, state = self.theory, self.settled.state
        residual = torch.maximum(self.settled.residual, self.pair.residual).amax(0)
        any_size: dict[str, Tensor | bool] = {KEEPS_ANY: self._any(self.settled.keeps_any)}
        return FixedPoint(
            mean=self._quantity(theory.over_units(state.mean), any_size),
            second_moment=self._quantity(theory.over_units(state.second), any_size),
            correlation=self._quantity(
                self.pair.correlation,
                {KEEPS_ANY: self._any(self.pair.keeps_any), NO_SPREAD: ~self._all(self.pair.defined)},
            ),
            residual=residual.reshape(self.spec.batch_shape),
            converged=self._converged(),
        )

    def _rate(self, prop: Propagator) -> Quantity:
        """chi: the factor per step where the response decays as one exponential."""
        if prop.carry.shape[-1] == 1:
            return self._quantity(prop.matrix()[..., 0, 0])
        rates, spread = _local_rates(prop)
        uneven = (spread.mean(0) > EXPONENTIAL).reshape(self.spec.batch_shape)
        return self._quantity(torch.exp(-rates), {NOT_EXPONENTIAL: uneven})

    def _jacobian(self) -> JacobianMoments:
        m1 = m2 = torch.zeros(self.theory.nodes.replicates, self.theory.batch, dtype=torch.float64)
        reasons: dict[str, Tensor | bool] = {}
        try:
            higher = self.theory.with_higher(self.settled.laws, self.settled.state)
            m1, m2 = jacobian_moments(self.theory, self.settled.laws, higher)
        except TheoryMissing as missing:
            reasons = {str(missing): True}
        return JacobianMoments(*(self._quantity(m, dict(reasons)) for m in (m1, m2, m2 - m1**2)))

    def _xi_q(self) -> Quantity:
        """-1/ln of the spectral radius of the (mu, Q) map's Jacobian (Chen et al. 2018 eq. 38)."""
        blank = torch.zeros(self.theory.nodes.replicates, self.theory.batch, dtype=torch.float64)
        if self.theory.fixed and self.theory.nodes.weight.numel() > 1:
            return self._quantity(blank, {NOT_EXPONENTIAL: True})
        radius = _moment_map_radius(self.theory, self.settled.state)
        return time_scale(self._quantity(radius))


def _local_rates(prop: Propagator) -> tuple[Tensor, Tensor]:
    """Late decay rate per step, and the relative spread of local rates over three reaches; (replicates, batch)."""
    far = reach(prop)
    stride = torch.where(far.isinf(), 1.0, far.clamp(1, 2.0**40) / SAMPLES_PER_REACH).ceil()
    matrix, power = prop.matrix(), torch.eye(prop.carry.shape[-1], dtype=torch.float64).expand(prop.matrix().shape)
    bits = stride.clone()
    while bool((bits > 0).any()):
        power = torch.where((bits % 2 == 1)[..., None, None], power @ matrix, power)
        matrix, bits = matrix @ matrix, (bits / 2).floor()
    response = prop.step(torch.ones_like(prop.carry))
    rates = []
    for _ in range(REACHES * SAMPLES_PER_REACH):
        size = (response * prop.weight).sum(-1)
        response = (power @ (response / size.clamp(min=TINY)[..., None])[..., None])[..., 0]
        rates.append(-(response * prop.weight).sum(-1).clamp(min=TINY).log() / stride)
    late = rates[-1]
    # what grows has no end to be judged up to: its early transient does not count
    growing = torch.stack(rates[len(rates) // 2 :], -1)
    judged = torch.where((late < 0)[..., None], growing.repeat_interleave(2, -1), torch.stack(rates, -1))
    return late, (judged.amax(-1) - judged.amin(-1)) / late.abs().clamp(min=1e-15)


def _moment_map_radius(theory: AffineTheory, state: Moments) -> Tensor:
    mean = state.mean.detach().clone().requires_grad_(True)
    second = state.second.detach().clone().requires_grad_(True)
    with torch.enable_grad():
        now = Moments.of(mean, second)
        after = theory.step(theory.laws(now), now)
        rows = [
            torch.autograd.grad(theory.over_units(p).sum(), (mean, second), retain_graph=True, allow_unused=True)
            for p in (after.mean, after.second)
        ]
    blank = torch.zeros_like(mean)
    matrix = torch.stack([torch.stack([blank if g is None else g for g in row], -1) for row in rows], -2)
    matrix = torch.nan_to_num(matrix).squeeze(-3)
    return torch.linalg.eigvals(matrix).abs().amax(-1)
