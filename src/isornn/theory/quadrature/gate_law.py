"""The Gaussian law of one pre-activation and the expectations of gate functions under it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from isornn.cells.polynomial import Factors, GateFunction
from isornn.theory.quadrature.grid import SMOOTH, Smoothness, hermite_table, standard_nodes
from isornn.theory.quadrature.piecewise import pieces_of


def power_series(coefficients: Tensor, c: Tensor) -> Tensor:
    """``sum_n coefficients_n c^n`` by Horner's rule; c has the leading shape of the coefficients."""
    total = torch.zeros_like(c) + coefficients[..., -1]
    for n in range(coefficients.shape[-1] - 2, -1, -1):
        total = total * c + coefficients[..., n]
    return total


ORDER = 64  # Hermite coefficients of the correlation series
STEEPEST = 3.5  # standard deviations up to which the Hermite grid resolves the logistic function and tanh
SAME = 1e-13  # copies closer than this are one copy
NARROW = 1e-3  # standard deviation from which densities are differentiated, at kinks
CHUNK = 64  # pairs integrated directly at once
ROWS = 256  # inner integrals of such pairs at once
SMEARED = 8.0  # standard deviations to which a smoothed kink extends
TAIL = 1e-11  # largest tail of the series; beyond it the integral is done directly


class GateLaw:
    """``u ~ N(mean, variance)`` for a batch of pre-activations, and pairs of them with a correlation c.

    Args:
        mean, variance: equal shapes.
        smoothness: of the functions whose expectations are asked for.
    """

    def __init__(self, mean: Tensor, variance: Tensor, smoothness: Smoothness = SMOOTH) -> None:
        self.mean, self.variance, self.smoothness = mean, variance, smoothness
        self.std = _root(variance)
        self.u, self.weight = _nodes(mean, self.std, smoothness)
        self._values: dict[tuple[bool, int], Tensor] = {}
        self._expectations: dict[tuple[bool, tuple[int, ...]], Tensor] = {}
        self._series: dict[tuple[bool, tuple[int, ...]], tuple[Tensor, Tensor]] = {}
        self._pairs: dict[tuple[bool, tuple[tuple[int, ...], ...], int], tuple[Tensor, Tensor]] = {}

    def expectation(self, factors: Factors) -> Tensor:
        """``E[prod_f f(u)]``, of the shape of the mean."""
        key = self._differentiated, tuple(f.serial for f in factors)
        if key not in self._expectations:
            self._expectations[key] = (self._product(factors) * self.weight).sum(-1)
        return self._expectations[key]

    def pair_expectation(self, left: Factors, right: Factors, c: Tensor) -> Tensor:
        """``E[F(u_a) G(u_b)]`` for standard correlation c between u_a and u_b; the same with F and G exchanged."""
        both = sorted(tuple(f.serial for f in factors) for factors in (left, right))
        key = self._differentiated or (torch.is_grad_enabled() and c.requires_grad), tuple(both), id(c)
        if key not in self._pairs:
            self._pairs[key] = c, self._pair_expectation(left, right, c)  # with c, so that no other gets its id
        return self._pairs[key][1]

    def _pair_expectation(self, left: Factors, right: Factors, c: Tensor) -> Tensor:
        """Mehler's expansion ``sum_n F_n G_n c^n`` where its tail, bounded by Parseval's identity, is under the
        tolerance; elsewhere (c near 1 with steep gates) the integral over the common part of u_a and u_b.
        """
        c = c.expand(np.broadcast_shapes(c.shape, self.mean.shape))
        if not right or not left:
            return self.expectation(left or right) + torch.zeros_like(c)
        same = c.detach() > 1 - SAME
        if bool(same.all()):
            return self.expectation(left + right) + torch.zeros_like(c)
        value, direct = torch.zeros_like(c), ~same
        if not self.smoothness.kinks:
            f, f_tail = self._hermite(left)
            g, g_tail = self._hermite(right)
            value = power_series(f * g, c)
            tail = c.detach().abs() ** ORDER * (f_tail * g_tail).sqrt()
            direct = direct & ((tail > TAIL) | (self.std.detach() > STEEPEST * self.smoothness.scale))
        count = self._means_needed()
        if bool(direct.any()) and c.shape[-1] > 2 * count and _alike(self.variance, c):
            across = self._across_means(left, right, c, count)
            value = torch.where(direct, across, value)
        elif bool(direct.any()):
            law = GateLaw(self.mean.expand(c.shape)[direct], self.variance.expand(c.shape)[direct], self.smoothness)
            value = value.masked_scatter(direct, law._integrate_pair(left, right, c[direct]))
        return torch.where(same, self.expectation(left + right), value)

    def _means_needed(self) -> int:
        """Degree at which a polynomial in the mean is exact to 1e-11: it is smooth on the scale of the Gaussian, or of
        the gate if that is smooth itself."""
        half = (self.mean.detach().amax(-1) - self.mean.detach().amin(-1)) / 2
        scale = self.std.detach().amin(-1)
        if not self.smoothness.kinks:
            scale = scale.clamp(min=self.smoothness.scale)
        return 32 + math.ceil(float((16 * half / scale).max()))

    def _across_means(self, left: Factors, right: Factors, c: Tensor, count: int) -> Tensor:
        """Units of the last axis differ in their mean only: Chebyshev interpolation between ``count`` means."""
        low, high = self.mean.detach().amin(-1, keepdim=True), self.mean.detach().amax(-1, keepdim=True)
        middle, half = (low + high) / 2, (high - low).clamp(min=1e-9) / 2
        angle = math.pi * (torch.arange(count, dtype=torch.float64) + 0.5) / count
        means = middle + half * angle.cos()
        law = GateLaw(means, self.variance[..., :1].expand(means.shape), self.smoothness)
        values = law.pair_expectation(left, right, c[..., :1].expand(means.shape))
        orders = torch.arange(count, dtype=torch.float64)
        transform = 2 / count * (orders[:, None] * angle).cos()
        coefficients = values @ transform.T
        y = ((self.mean - middle) / half).expand(c.shape)
        before, now = torch.ones_like(y), y
        total = coefficients[..., :1] / 2 + coefficients[..., 1:2] * now
        for k in range(2, count):
            before, now = now, 2 * y * now - before
            total = total + coefficients[..., k : k + 1] * now
        return total

    def _integrate_pair(self, left: Factors, right: Factors, c: Tensor) -> Tensor:
        """Elements in chunks that fit in memory, correlations, and means, of one sign together; one axis."""
        value, above = torch.zeros_like(c), self.mean > 0
        for where, integrate in (
            (c >= 0, GateLaw._integrate_alike),
            ((c < 0) & above, GateLaw._integrate_opposed),
            ((c < 0) & ~above, GateLaw._integrate_opposed),
        ):
            if bool(where.any()):
                chosen = [x[where] for x in (self.mean, self.variance, c)]
                chunks = zip(*(torch.split(x, CHUNK) for x in chosen), strict=True)
                parts = [integrate(GateLaw(m, v, self.smoothness), left, right, k) for m, v, k in chunks]
                value = value.masked_scatter(where, torch.cat(parts))
        return value

    def _integrate_alike(self, left: Factors, right: Factors, c: Tensor) -> Tensor:
        """``u_a = v + s z_a``, ``u_b = v + s z_b``, v ~ N(mean, c variance), s^2 = (1 - c) variance: an outer
        integral over v of two smoothed functions."""
        common, own = _root(self.variance * c), _root(self.variance * (1 - c))
        v, weight = self._outer(common, [x for k in self.smoothness.kinks for x in _around(k, own)])
        a, b = self._both_smoothed(left, right, v, own)
        return (a * b * weight).sum(-1)

    def _integrate_opposed(self, left: Factors, right: Factors, c: Tensor) -> Tensor:
        """The same for c < 0, where ``u_b = w + s z_b`` with w = 2 mean - v, v's mirror image.

        The nodes are dense near v = 0 only, so both halves of the range are folded onto the one on that side.
        """
        common, own = _root(self.variance * -c), _root(self.variance * (1 + c))
        kinks = [x for k in self.smoothness.kinks for at in (k, 2 * self.mean - k) for x in _around(at, own)]
        v, weight = self._outer(common, [self.mean, *kinks], inner_half=True)  # an end that takes Gauss's nodes
        mirrored = 2 * self.mean[..., None] - v
        a, b = self._both_smoothed(left, right, v, own)
        a_mirrored, b_mirrored = self._both_smoothed(left, right, mirrored, own)
        return ((a * b_mirrored + a_mirrored * b) * weight).sum(-1) / 2

    def _both_smoothed(self, left: Factors, right: Factors, v: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """``E[F(v + own z)]`` and the same of G, once where F is G."""
        own = own[..., None].expand(v.shape)
        smoothed = _smoothed(left, v, own, self.smoothness)
        same = [f.serial for f in left] == [f.serial for f in right]
        return smoothed, smoothed if same else _smoothed(right, v, own, self.smoothness)

    def _outer(self, std: Tensor, kinks: list[float | Tensor], *, inner_half: bool = False) -> tuple[Tensor, Tensor]:
        fixed = [k.detach() if isinstance(k, Tensor) else k for k in kinks]
        z, weight = standard_nodes(self.mean, std, self.smoothness, kinks=fixed, inner_half=inner_half)
        return self.mean[..., None] + std[..., None] * z, weight

    def _value(self, function: GateFunction) -> Tensor:
        key = self._differentiated, function.serial
        if key not in self._values:
            self._values[key] = function.call(self.u)
        return self._values[key]

    @property
    def _differentiated(self) -> bool:
        """What was computed without gradients is no use where they are wanted."""
        return torch.is_grad_enabled() and (self.mean.requires_grad or self.variance.requires_grad)

    def _product(self, factors: Factors) -> Tensor:
        return math.prod((self._value(f) for f in factors), start=torch.ones_like(self.u))

    def _hermite(self, factors: Factors) -> tuple[Tensor, Tensor]:
        """Coefficients and ``E[F^2] - sum_n F_n^2``, the mass of the tail."""
        key = self._differentiated, tuple(f.serial for f in factors)
        if key not in self._series:
            z, table = hermite_table(ORDER)
            values = _product(factors, self.mean[..., None] + self.std[..., None] * z)
            coefficients = values @ table
            tail = (values.detach() ** 2) @ table[:, 0] - (coefficients.detach() ** 2).sum(-1)
            self._series[key] = coefficients, tail.abs()
        return self._series[key]


def _alike(*numbers: Tensor) -> bool:
    """Whether all units of the last axis have the same numbers."""
    return all(bool((x == x[..., :1]).all()) for x in numbers)


def _around(kink: float | Tensor, width: Tensor) -> tuple[Tensor, ...]:
    """Where a kink smoothed over ``width`` begins, is and ends."""
    return kink - SMEARED * width, kink + 0 * width, kink + SMEARED * width


def _smoothed(factors: Factors, mean: Tensor, std: Tensor, smoothness: Smoothness) -> Tensor:
    """``E[F(mean + std z)]``, some rows at once: larger temporaries cost more in page faults than in arithmetic."""
    pieces = pieces_of(factors, smoothness.kinks) if smoothness.kinks else None
    if pieces is not None:
        return sum((piece.expectation(mean, std) for piece in pieces), torch.zeros_like(mean))
    found: Tensor = _Smoothing.apply(mean.flatten(), std.flatten(), factors, smoothness)
    return found.view(mean.shape)


class _Smoothing(torch.autograd.Function):
    """The backward pass computes the rows again: their values at all nodes together would take tens of gigabytes."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, std: Tensor, factors: Factors, smoothness: Smoothness) -> Tensor:
        ctx.save_for_backward(mean, std)
        ctx.factors, ctx.smoothness = factors, smoothness
        parts = zip(mean.split(ROWS), std.split(ROWS), strict=True)
        return torch.cat([_expectation(factors, m, s, smoothness) for m, s in parts])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        found = []
        for mean, std, gradient in zip(*(x.split(ROWS) for x in (*ctx.saved_tensors, *gradients)), strict=True):
            with torch.enable_grad():
                at = mean.detach().requires_grad_(), std.detach().requires_grad_()
                # a sum with both, of which constant factors may depend on neither
                value = _expectation(ctx.factors, *at, ctx.smoothness) + 0 * (at[0] + at[1])
                found.append(torch.autograd.grad(value, at, gradient))
        return *map(torch.cat, zip(*found, strict=True)), None, None


def _expectation(factors: Factors, mean: Tensor, std: Tensor, smoothness: Smoothness) -> Tensor:
    u, weight = _nodes(mean, std, smoothness)
    return (_product(factors, u) * weight).sum(-1)


def _nodes(mean: Tensor, std: Tensor, smoothness: Smoothness) -> tuple[Tensor, Tensor]:
    """Nodes u and weights of N(mean, std^2), one of which carries the gradients.

    Nodes move with mean and std where functions are smooth. Functions with kinks have derivatives that jump, which
    moving nodes do not see; there nodes stay and the density moves, unless it is too narrow to be resolved so.
    """
    z, weight = standard_nodes(mean, std, smoothness)
    moving = mean[..., None] + std[..., None] * z
    if not smoothness.kinks or not (torch.is_grad_enabled() and (mean.requires_grad or std.requires_grad)):
        return moving, weight
    staying = moving.detach()
    ratio = (
        torch.exp((z**2 - ((staying - mean[..., None]) / std[..., None]) ** 2) / 2) * (std.detach() / std)[..., None]
    )
    wide = std.detach()[..., None] > NARROW
    return torch.where(wide, staying, moving), weight * torch.where(wide, ratio, 1.0)


def _product(factors: Factors, u: Tensor) -> Tensor:
    return math.prod((f.call(u) for f in factors), start=torch.ones_like(u))


def _root(x: Tensor) -> Tensor:
    """sqrt, floored at 1e-8 so that derivatives with respect to a variance of 0 come out right, E[F''] / 2."""
    return (x + 1e-16 * (x < 1e-16)).sqrt()
