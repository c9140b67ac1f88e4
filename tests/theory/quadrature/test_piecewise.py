"""Expectations of piecewise polynomials against quadrature with panels between the kinks."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from isornn.cells.polynomial import GateFunction
from isornn.theory.quadrature.grid import Smoothness, standard_nodes
from isornn.theory.quadrature.piecewise import pieces_of

FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[float, ...]]] = {
    "hard sigmoid": (lambda u: (0.2 * u + 0.5).clamp(0, 1), (-2.5, 2.5)),
    "relu": (functional.relu, (0.0,)),
    "leaky": (lambda u: functional.leaky_relu(u, 0.1), (0.0,)),
    "hardswish": (functional.hardswish, (-3.0, 3.0)),
    "relu6": (functional.relu6, (0.0, 6.0)),
    "steep": (lambda u: (40 * u).clamp(-1, 1), (-0.025, 0.025)),
}


def made(name: str) -> GateFunction:
    call, kinks = FUNCTIONS[name]
    return GateFunction("f", call, kinks)


def expected(factors: tuple[GateFunction, ...], mean: Tensor, std: Tensor) -> Tensor:
    z, weight = standard_nodes(mean, std, Smoothness(factors[0].kinks))
    u = mean[..., None] + std[..., None] * z
    return (math.prod((f.call(u) for f in factors), start=torch.ones_like(u)) * weight).sum(-1)


def found(factors: tuple[GateFunction, ...], mean: Tensor, std: Tensor) -> Tensor:
    pieces = pieces_of(factors, factors[0].kinks)
    assert pieces is not None
    return sum((piece.expectation(mean, std) for piece in pieces), torch.zeros_like(mean))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("factors", ["F", "F'", "F^2", "F F'"])
def test_expectations_are_those_of_quadrature(name: str, factors: str) -> None:
    f = made(name)
    chosen = {"F": (f,), "F'": (f.derivative,), "F^2": (f, f), "F F'": (f, f.derivative)}[factors]
    mean = torch.tensor([-30.0, -3.0, -0.3, 0.0, 1.0, 2.5, 8.0, 100.0], dtype=torch.float64)[:, None]
    std = torch.tensor([1e-3, 0.1, 1.0, 5.0], dtype=torch.float64)
    mean, std = torch.broadcast_tensors(mean, std)
    torch.testing.assert_close(found(chosen, mean, std), expected(chosen, mean, std), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives(name: str) -> None:
    factors = (made(name), made(name).derivative)
    mean = torch.tensor([-1.0, 0.4, 3.0], dtype=torch.float64, requires_grad=True)
    std = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda m, s: found(factors, m, s), (mean, std))


def test_far_from_kinks_nothing_is_undefined() -> None:
    f = made("hard sigmoid")
    mean = torch.tensor([1e12, -1e12, 0.0, 2.5, 50.0], dtype=torch.float64, requires_grad=True)
    std = torch.tensor([1e-8, 1.0, 1e-8, 1e-8, 1e6], dtype=torch.float64, requires_grad=True)
    value = found((f, f.derivative), mean, std)
    gradients = torch.autograd.grad(value.sum(), [mean, std])
    assert all(bool(torch.isfinite(x).all()) for x in (value, *gradients))


@pytest.mark.parametrize(
    ("call", "kinks"),
    [
        (functional.elu, (0.0,)),
        (functional.softsign, (0.0,)),
        (lambda u: u.clamp(min=0) ** 3 * u.abs() ** 3, (0.0,)),
        (lambda u: functional.relu(u) / 2 + torch.exp(-((u - 20) ** 2)), (0.0,)),
        (lambda u: torch.tanh(u.clamp(-100, 100)), (-100.0, 100.0)),
        (lambda u: torch.sigmoid(u.clamp(max=500.0)), (500.0,)),
    ],
)
def test_what_is_no_polynomial_of_low_degree_is_not_taken_for_one(
    call: Callable[[Tensor], Tensor], kinks: tuple[float, ...]
) -> None:
    function = GateFunction("f", call, kinks)
    assert pieces_of((function,), kinks) is None
    assert pieces_of((function.derivative,), kinks) is None
