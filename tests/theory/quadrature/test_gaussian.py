"""Gaussian integrals against adaptive quadrature and closed forms, and the rate at which they converge."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm
from torch import Tensor

from isornn.cells.activations import hard_sigmoid
from isornn.theory.quadrature import grid as grids
from isornn.theory.quadrature.gate_law import power_series
from isornn.theory.quadrature.grid import Smoothness, hermite_table, standard_nodes

MEANS = (-50.0, -7.0, -1.3, 0.0, 0.4, 3.0, 50.0)
VARIANCES = (0.0, 1e-6, 1e-3, 0.1, 1.0, 4.0, 25.0, 400.0, 1e4)
GRID = tuple(itertools.product(MEANS, VARIANCES))


def sigmoid_slope(u: Tensor) -> Tensor:
    return torch.sigmoid(u) * torch.sigmoid(-u)


SMOOTH: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[float], float]]] = {
    "sigmoid": (torch.sigmoid, expit),
    "tanh": (torch.tanh, np.tanh),
    "sigmoid^2": (lambda u: torch.sigmoid(u) ** 2, lambda u: expit(u) ** 2),
    "tanh^2": (lambda u: torch.tanh(u) ** 2, lambda u: np.tanh(u) ** 2),
    "sigmoid'": (sigmoid_slope, lambda u: expit(u) * expit(-u)),
    "sigmoid'^2": (lambda u: sigmoid_slope(u) ** 2, lambda u: (expit(u) * expit(-u)) ** 2),
    "tanh'^2": (lambda u: (1 - torch.tanh(u) ** 2) ** 2, lambda u: (4 * expit(2 * u) * expit(-2 * u)) ** 2),
    "u^2": (lambda u: u**2, lambda u: u**2),
}


def engine(function: Callable[[Tensor], Tensor], grid: tuple[tuple[float, float], ...], kinks: tuple[float, ...] = ()):
    mean, variance = (torch.tensor(column, dtype=torch.float64) for column in zip(*grid, strict=True))
    std = variance.sqrt()
    z, weight = standard_nodes(mean, std, Smoothness(kinks))
    return (function(mean[:, None] + std[:, None] * z) * weight).sum(-1).numpy()


def adaptive(function: Callable[[float], float], mean: float, variance: float) -> float:
    """The integral over u, broken where the Gaussian and the gate change."""
    std = math.sqrt(variance)
    if std == 0:
        return float(function(mean))
    low, high = mean - 12 * std, mean + 12 * std
    breaks = {low, high, *(mean + k * std for k in (-5, -2, 0, 2, 5)), *(x for x in (-40, -6, -1.5, 0, 1.5, 6, 40))}
    edges = sorted(x for x in breaks if low <= x <= high)
    pieces = [
        quad(lambda u: function(u) * math.exp(-(((u - mean) / std) ** 2) / 2), a, b, epsabs=1e-15 * std, epsrel=1e-13)[
            0
        ]
        for a, b in itertools.pairwise(edges)
    ]
    return math.fsum(pieces) / (std * math.sqrt(2 * math.pi))


@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_gates_however_steep(name: str) -> None:
    mine, theirs = SMOOTH[name]
    expected = np.array([adaptive(theirs, *point) for point in GRID])
    assert engine(mine, GRID) == pytest.approx(expected, abs=1e-10, rel=1e-10)


def test_saturated_gates_keep_their_relative_precision() -> None:
    # E[sigma] at mean -50, variance s2 is e^(-50 + s2/2) while that is small
    grid = ((-50.0, 0.0), (-50.0, 1e-3), (-50.0, 1.0), (-30.0, 4.0))
    expected = [math.exp(mean + variance / 2) for mean, variance in grid]
    assert engine(torch.sigmoid, grid) == pytest.approx(expected, rel=1e-9)


def closed_relu(mean: float, std: float) -> float:
    """E[max(u, 0)]."""
    if std == 0:
        return max(mean, 0.0)
    return float(mean * norm.cdf(mean / std) + std * norm.pdf(mean / std))


def closed_relu_squared(mean: float, std: float) -> float:
    if std == 0:
        return max(mean, 0.0) ** 2
    return float((mean**2 + std**2) * norm.cdf(mean / std) + mean * std * norm.pdf(mean / std))


@pytest.mark.parametrize(("power", "closed"), [(1, closed_relu), (2, closed_relu_squared)])
def test_relu_has_its_closed_form(power: int, closed: Callable[[float, float], float]) -> None:
    expected = np.array([closed(m, math.sqrt(v)) for m, v in GRID])
    found = engine(lambda u: torch.relu(u) ** power, GRID, (0.0,))
    assert found == pytest.approx(expected, abs=1e-10, rel=1e-10)


def test_hard_sigmoid_has_its_closed_form() -> None:
    # clip(0.2 u + 0.5, 0, 1) = 0.2 (relu(u + 2.5) - relu(u - 2.5)); its square likewise, its slope a probability
    kinks = (-2.5, 2.5)
    stds = [(m, math.sqrt(v)) for m, v in GRID]
    first = np.array([0.2 * (closed_relu(m + 2.5, s) - closed_relu(m - 2.5, s)) for m, s in stds])
    assert engine(hard_sigmoid, GRID, kinks) == pytest.approx(first, abs=1e-10)
    square = np.array(
        [
            0.04 * (closed_relu_squared(m + 2.5, s) - closed_relu_squared(m - 2.5, s)) - 0.4 * closed_relu(m - 2.5, s)
            for m, s in stds
        ]
    )
    assert engine(lambda u: hard_sigmoid(u) ** 2, GRID, kinks) == pytest.approx(square, abs=1e-10)
    inside = np.array([norm.cdf((2.5 - m) / s) - norm.cdf((-2.5 - m) / s) if s else abs(m) < 2.5 for m, s in stds])
    assert engine(lambda u: (u.abs() < 2.5).double(), GRID, kinks) == pytest.approx(inside, abs=1e-10)


def test_two_kinks_at_one_place_are_one() -> None:
    mean, std = torch.tensor([0.3], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64)
    z, weight = standard_nodes(mean, std, Smoothness((1.0, 1.0)))
    assert float((torch.relu(mean + std * z - 1) * weight).sum()) == pytest.approx(closed_relu(-0.7, 2.0), abs=1e-12)


def test_the_error_falls_exponentially_in_the_number_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    # An analytic integrand: error ~ exp(-2 pi d / step), so halving the step squares the error.
    grid = ((0.7, 25.0), (-1.0, 400.0), (3.0, 1e4))
    function = lambda u: (1 - torch.tanh(u) ** 2) ** 2  # noqa: E731
    monkeypatch.setattr(grids, "RESOLUTION", 10.0)
    monkeypatch.setattr(grids, "FEWEST_NODES", 2)
    monkeypatch.setattr(grids, "STEP", 0.02)
    expected = engine(function, grid)
    errors = []
    for step in (0.6, 0.3, 0.15):
        monkeypatch.setattr(grids, "STEP", step)
        one_by_one = [engine(function, (point,))[0] for point in grid]
        errors.append(np.abs(np.array(one_by_one) - expected).max())
    assert errors[0] > 1e-5  # there is an error to lose
    assert math.log(errors[1]) < 1.6 * math.log(errors[0])
    assert math.log(errors[2]) < 1.6 * math.log(errors[1])
    monkeypatch.undo()
    assert np.abs(engine(function, grid) - expected).max() < 1e-12


def test_nodes_of_a_batch_are_fine_enough_for_its_members() -> None:
    alone = np.concatenate([engine(torch.sigmoid, (point,)) for point in GRID])
    assert engine(torch.sigmoid, GRID) == pytest.approx(alone, abs=1e-11)


def test_weights_are_those_of_a_standard_normal() -> None:
    mean, std = (
        torch.tensor([0.0, -50.0, 2.0], dtype=torch.float64),
        torch.tensor([1.0, 1e-3, 100.0], dtype=torch.float64),
    )
    z, weight = standard_nodes(mean, std)
    moments = torch.stack([(z**power * weight).sum(-1) for power in range(5)], -1)
    torch.testing.assert_close(
        moments, torch.tensor([1.0, 0, 1, 0, 3], dtype=torch.float64).expand(3, 5), rtol=0, atol=1e-10
    )


def test_hermite_coefficients_have_their_closed_form() -> None:
    # E[e^(i a Z) he_n(Z)] = (i a)^n e^(-a^2 / 2) / sqrt(n!), a = 4 being as fast as functions may be
    z, table = hermite_table(64)
    for a in (0.5, 2.0, 4.0):
        size = [math.exp(-(a**2) / 2 + n * math.log(a) - math.lgamma(n + 1) / 2) for n in range(64)]
        expected = torch.tensor([(1j**n).real * s for n, s in enumerate(size)], dtype=torch.float64)
        torch.testing.assert_close(torch.cos(a * z) @ table, expected, rtol=0, atol=2e-11)
        expected = torch.tensor([(1j**n).imag * s for n, s in enumerate(size)], dtype=torch.float64)
        torch.testing.assert_close(torch.sin(a * z) @ table, expected, rtol=0, atol=2e-11)


def test_power_series_is_horners() -> None:
    coefficients = torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, 3.0]], dtype=torch.float64)
    c = torch.tensor([0.5, -2.0], dtype=torch.float64)
    torch.testing.assert_close(power_series(coefficients, c), torch.tensor([0.125, 10.0], dtype=torch.float64))
