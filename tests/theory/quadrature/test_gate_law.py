"""Pairs of gate functions under correlated Gaussians: against fine grids, closed forms and Price's theorem."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import dblquad
from scipy.special import expit
from scipy.stats import norm
from torch import Tensor

from isornn.cells.activations import hard_sigmoid
from isornn.cells.polynomial import GateFunction
from isornn.theory.quadrature.gate_law import GateLaw
from isornn.theory.quadrature.grid import Smoothness

CORRELATIONS = (-1.0, -0.95, -0.5, 0.0, 0.3, 0.9, 0.99, 1 - 1e-6, 1.0)
STEEP = ((0.0, 1e-6), (0.7, 0.5), (-1.0, 9.0), (2.0, 25.0), (0.5, 400.0), (-30.0, 400.0), (-20.0, 1e4))
SIGMOID = GateFunction("f", torch.sigmoid)
TANH = GateFunction("f", torch.tanh)
HARD = GateFunction("f", hard_sigmoid, kinks=(-2.5, 2.5))
RELU = GateFunction("f", torch.relu, kinks=(0.0,))
LINE = GateFunction("f", lambda u: u)


def at(points: tuple[tuple[float, float], ...], kinks: tuple[float, ...] = ()) -> GateLaw:
    mean, variance = (torch.tensor(column, dtype=torch.float64) for column in zip(*points, strict=True))
    return GateLaw(mean, variance, Smoothness(kinks))


def pair(law: GateLaw, left: GateFunction, right: GateFunction, c: float) -> np.ndarray[Any, Any]:
    return law.pair_expectation((left,), (right,), torch.tensor(c, dtype=torch.float64)).numpy()


def two_dimensional(f: Callable[..., Any], g: Callable[..., Any], mean: float, variance: float, c: float) -> float:
    """Riemann sum over independent z1 (fine) and z2; the step is a hundredth of what the gate needs."""
    std = math.sqrt(variance)
    if c >= 1:
        z = np.linspace(-9, 9, 400001)
        weight = np.exp(-(z**2) / 2)
        return float((f(mean + std * z) * g(mean + std * z) * weight).sum() / weight.sum())
    # turned by 45 degrees: u_a, u_b = mean + std (p +- q), p and q independent of variance (1 +- c) / 2
    p, q = (math.sqrt((1 + sign * c) / 2) * np.linspace(-9, 9, _points(std, sign * c)) for sign in (1, -1))
    weight_p, weight_q = (
        np.exp(-(np.linspace(-9, 9, len(x)) ** 2) / 2) / np.exp(-(np.linspace(-9, 9, len(x)) ** 2) / 2).sum()
        for x in (p, q)
    )
    total = 0.0
    for rows, weight in zip(np.array_split(p, 40), np.array_split(weight_p, 40), strict=True):
        a, b = (mean + std * (rows[:, None] + sign * q[None, :]) for sign in (1, -1))
        total += float(weight @ (f(a) * g(b)) @ weight_q)
    return total


def _points(std: float, c: float) -> int:
    """Step 0.25 in u, or 0.15 standard deviations; analytic integrands need no more for 1e-10."""
    width = std * math.sqrt(max((1 + c) / 2, 0.0))
    return max(121, math.ceil(18 * width / 0.25))


@pytest.mark.parametrize("c", CORRELATIONS)
def test_smooth_pairs_however_steep(c: float) -> None:
    points = STEEP[:-1]  # a grid cannot afford the steepest; see the bivariate orthant below
    law = at(points)
    for left, right, f, g in (
        (SIGMOID, SIGMOID, expit, expit),
        (SIGMOID, TANH, expit, np.tanh),
        (TANH.derivative, TANH.derivative, _tanh_slope, _tanh_slope),
    ):
        expected = [two_dimensional(f, g, mean, variance, c) for mean, variance in points]
        assert pair(law, left, right, c) == pytest.approx(np.array(expected), abs=1e-8)


def _tanh_slope(u: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return 4 * expit(2 * u) * expit(-2 * u)


@pytest.mark.parametrize("c", [-0.95, -0.5, 0.3, 0.9, 0.99, 1 - 1e-6])
def test_adaptive_quadrature_in_two_dimensions(c: float) -> None:
    mean, std = 0.7, 1.5
    own = math.sqrt(1 - c**2)

    def integrand(b: float, a: float) -> float:
        density = math.exp(-(a**2 + b**2) / 2) / (2 * math.pi)
        return float(expit(mean + std * a) * np.tanh(mean + std * (c * a + own * b)) * density)

    expected, _ = dblquad(integrand, -9, 9, -9, 9, epsabs=1e-9, epsrel=1e-9)
    assert pair(at(((mean, std**2),)), SIGMOID, TANH, c)[0] == pytest.approx(expected, abs=1e-8)


def relu_pair(std: float, c: float) -> float:
    """E[relu(u_a) relu(u_b)] at mean 0: the arc-cosine kernel (Cho & Saul 2009)."""
    angle = math.acos(c)
    return std**2 * (math.sin(angle) + (math.pi - angle) * math.cos(angle)) / (2 * math.pi)


@pytest.mark.parametrize("c", CORRELATIONS)
def test_relu_is_the_arc_cosine_kernel(c: float) -> None:
    stds = (0.1, 1.0, 30.0)
    law = at(tuple((0.0, s**2) for s in stds), (0.0,))
    expected = [relu_pair(s, c) for s in stds]
    assert pair(law, RELU, RELU, c) == pytest.approx(np.array(expected), rel=1e-8, abs=1e-8)
    # the slope's pair is an orthant's probability
    orthant = 0.25 + math.asin(c) / (2 * math.pi)
    assert pair(law, RELU.derivative, RELU.derivative, c) == pytest.approx(np.full(3, orthant), abs=1e-7)


@pytest.mark.parametrize("c", CORRELATIONS)
def test_hard_gates(c: float) -> None:
    points = ((0.0, 1e-4), (1.0, 4.0), (-2.0, 100.0), (0.5, 1e4))
    law = at(points, (-2.5, 2.5))
    expected = [clipped_pair(mean, math.sqrt(variance), c) for mean, variance in points]
    assert pair(law, HARD, HARD, c) == pytest.approx(np.array(expected), abs=1e-8)


def clipped_pair(mean: float, std: float, c: float) -> float:
    """One-dimensional: E[F(u_a) E[F(u_b) | u_a]], the inner mean by the closed form of the clipped line."""
    own = std * math.sqrt(max(1 - c**2, 0.0))
    edges = sorted({-9.0, 9.0, *(min(max((k - mean) / std, -9.0), 9.0) for k in (-2.5, 2.5))})
    # the inner mean changes at kinks as well, over a width own
    inner_at = [(k - mean) / (std * c) for k in (-2.5, 2.5) if c] if abs(c) > 1e-9 else []
    width = own / (std * abs(c)) if c else 1.0
    edges = sorted({*edges, *(min(max(x + j * width, -9.0), 9.0) for x in inner_at for j in (-8, -2, 0, 2, 8))})
    x, w = np.polynomial.legendre.leggauss(300)
    total = 0.0
    for low, high in itertools.pairwise(edges):
        z = low + (high - low) * (x + 1) / 2
        inner = _clipped_mean(mean + std * c * z, own)
        outer = np.clip(0.2 * (mean + std * z) + 0.5, 0, 1)
        total += float((outer * inner * np.exp(-(z**2) / 2) * w).sum() * (high - low) / 2)
    return total / math.sqrt(2 * math.pi)


def _clipped_mean(mean: np.ndarray[Any, Any], std: float) -> np.ndarray[Any, Any]:
    if std == 0:
        return np.clip(0.2 * mean + 0.5, 0, 1)
    return 0.2 * (_relu_mean(mean + 2.5, std) - _relu_mean(mean - 2.5, std))


def _relu_mean(mean: np.ndarray[Any, Any], std: float) -> np.ndarray[Any, Any]:
    return mean * norm.cdf(mean / std) + std * norm.pdf(mean / std)


@pytest.mark.parametrize("c", [-0.95, 0.0, 0.5, 0.99])
def test_the_steepest_sigmoid_is_an_orthants_indicator(c: float) -> None:
    # sigma(std Z) -> 1[Z > 0] with a correction of order 1/variance: E = 1/4 + asin(c)/2pi - pi^2/3 /(..)
    found = [float(pair(at(((0.0, v),)), SIGMOID, SIGMOID, c)[0]) for v in (1e4, 4e4)]
    orthant = 0.25 + math.asin(c) / (2 * math.pi)
    # Richardson: the correction falls like 1/variance
    assert (4 * found[1] - found[0]) / 3 == pytest.approx(orthant, abs=1e-6)


@pytest.mark.parametrize(
    "function", [SIGMOID, TANH, HARD, RELU, SIGMOID.derivative], ids=["sigmoid", "tanh", "hard", "relu", "slope"]
)
@pytest.mark.parametrize("c", [-0.9, -0.2, 0.4, 0.95])
def test_prices_theorem(function: GateFunction, c: float) -> None:
    # d/dc E[F(u_a) G(u_b)] = variance E[F'(u_a) G'(u_b)]
    points = ((0.3, 0.04), (-1.0, 4.0), (0.5, 60.0))
    law, step = at(points, function.kinks), 1e-4
    values = [pair(law, function, function, c + j * step) for j in (-2, -1, 1, 2)]
    slope = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
    expected = law.variance.numpy() * pair(law, function.derivative, function.derivative, c)
    assert slope == pytest.approx(expected, rel=1e-6, abs=2e-7)


def test_autograd_in_c_is_prices_theorem() -> None:
    law = at(((0.3, 0.5), (-1.0, 4.0), (2.0, 100.0)))
    c = torch.tensor([0.2, 0.7, 0.97], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(law.pair_expectation((SIGMOID,), (TANH,), c).sum(), c)
    expected = law.variance * law.pair_expectation((SIGMOID.derivative,), (TANH.derivative,), c.detach())
    torch.testing.assert_close(slope, expected, rtol=1e-8, atol=1e-10)


def test_products_and_lines_have_their_closed_form() -> None:
    law, c = at(((0.4, 2.0), (-3.0, 50.0))), torch.tensor([0.3, 0.3], dtype=torch.float64)
    both = law.pair_expectation((LINE,), (LINE,), c)
    torch.testing.assert_close(both, 0.3 * law.variance + law.mean**2, rtol=1e-10, atol=0)
    squares = law.pair_expectation((LINE, LINE), (LINE, LINE), c)  # Isserlis
    m2, s2 = law.mean**2, law.variance
    expected = (m2 + s2) ** 2 + 4 * m2 * 0.3 * s2 + 2 * (0.3 * s2) ** 2
    torch.testing.assert_close(squares, expected, rtol=1e-9, atol=0)
    one_sided = law.pair_expectation((LINE,), (), c)
    torch.testing.assert_close(one_sided, law.mean, rtol=1e-10, atol=0)


def test_series_and_direct_integral_agree_where_they_meet() -> None:
    # variance just below and above what the series is trusted with; the value is smooth there
    variances = torch.linspace(12.0, 12.6, 13, dtype=torch.float64)
    law = GateLaw(torch.full_like(variances, 0.4), variances)
    c = torch.full_like(variances, 0.8)
    values = law.pair_expectation((SIGMOID,), (SIGMOID,), c)
    third = values.diff().diff().diff()
    assert third.abs().max() < 1e-8


def test_one_copy_is_exactly_one_copy() -> None:
    law = at(STEEP)
    same = torch.ones(len(STEEP), dtype=torch.float64)
    assert torch.equal(law.pair_expectation((SIGMOID,), (TANH,), same), law.expectation((SIGMOID, TANH)))
    mixed = torch.tensor([1.0, 0.5, 1.0, 0.5, 1.0, 0.5, 1.0], dtype=torch.float64)
    values = law.pair_expectation((SIGMOID,), (TANH,), mixed)
    assert torch.equal(values[::2], law.expectation((SIGMOID, TANH))[::2])
    assert values[1::2] == pytest.approx(pair(law, SIGMOID, TANH, 0.5)[1::2], abs=1e-12)


@pytest.mark.parametrize("function", [SIGMOID, TANH, HARD], ids=["sigmoid", "tanh", "hard"])
def test_no_variance_is_a_number(function: GateFunction) -> None:
    law = at(((0.8, 0.0), (-50.0, 0.0)), function.kinks)
    u: Tensor = torch.tensor([0.8, -50.0], dtype=torch.float64)
    for c in (-1.0, 0.0, 0.5, 1.0):
        found = torch.from_numpy(pair(law, function, function, c))
        torch.testing.assert_close(found, function.call(u) ** 2, rtol=0, atol=1e-14)


def test_gradients_by_the_variance_survive_at_zero() -> None:
    # d E[F] / d variance = E[F''] / 2
    variance = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    law = GateLaw(torch.full((1,), 0.8, dtype=torch.float64), variance)
    (slope,) = torch.autograd.grad(law.expectation((SIGMOID,)).sum(), variance)
    s = float(expit(0.8))
    assert float(slope) == pytest.approx(s * (1 - s) * (1 - 2 * s) / 2, rel=1e-6)


@pytest.mark.parametrize("kinks", [(), (-2.5, 2.5)], ids=["smooth", "hard"])
def test_many_units_that_differ_in_their_mean_only(kinks: tuple[float, ...]) -> None:
    # interpolated between a few means where that is exact, and differentiable in the means
    function = HARD if kinks else SIGMOID
    means = torch.linspace(-3, 4, 400, dtype=torch.float64, requires_grad=True)
    for variance, c in ((30.0, 0.6),) if kinks else ((30.0, 0.6), (900.0, -0.4), (400.0, 0.999)):
        law = GateLaw(means, torch.full((1,), variance, dtype=torch.float64).expand(400), Smoothness(kinks))
        correlation = torch.full((400,), c, dtype=torch.float64)
        found = law.pair_expectation((function,), (function,), correlation)
        some = [0, 57, 200, 399]
        alone = GateLaw(means[some].detach(), torch.full((4,), variance, dtype=torch.float64), Smoothness(kinks))
        expected = alone.pair_expectation((function,), (function,), correlation[:4])
        torch.testing.assert_close(found[some], expected, rtol=0, atol=1e-10)
        (slopes,) = torch.autograd.grad(found.sum(), means)
        differences = (found[2:] - found[:-2]).detach() / (means[2] - means[0]).detach()
        torch.testing.assert_close(slopes[1:-1], differences, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("factors", [(HARD,), (HARD.derivative,), (HARD, RELU)], ids=["hard", "slope", "product"])
def test_gradients_at_kinks_keep_little(factors: tuple[GateFunction, ...]) -> None:
    """The values of the inner integrals at all nodes of the outer ones took 22 GB in a cell with three such gates."""
    mean = torch.linspace(-1, 1, 4, dtype=torch.float64)
    law = GateLaw(mean, torch.full_like(mean, 1.5), Smoothness((-2.5, 0.0, 2.5)))
    c = torch.full_like(mean, 0.5).requires_grad_()
    kept = []

    def pack(saved: Tensor) -> Tensor:
        kept.append(saved.untyped_storage().nbytes())
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        value = law.pair_expectation(factors, factors, c)
    assert sum(kept) <= 2e6 * len(mean)
    (slope,) = torch.autograd.grad(value.sum(), c)
    step = 1e-5
    with torch.no_grad():
        ahead, behind = (law.pair_expectation(factors, factors, c + gap) for gap in (step, -step))
    torch.testing.assert_close(slope, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8)


def test_gradients_of_constant_factors_are_zero() -> None:
    c = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    value = at(((0.7, 25.0),)).pair_expectation((LINE.derivative,), (LINE.derivative,), c)
    (slope,) = torch.autograd.grad(value.sum(), c)
    assert value.item() == pytest.approx(1.0, abs=1e-12) and slope.item() == pytest.approx(0.0, abs=1e-12)
