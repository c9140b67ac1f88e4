"""The parametrisation: its bounds and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from factorised import EACH, MARGINS, NAME, D, N, apart, blocks_of, generator, layer_of, spread, x_of
from isornn.nn.spectral import factors, singular_values
from isornn.nn.spectral_matrix import SpectralMatrix


@pytest.mark.parametrize("margin", [0.0, 0.001, 0.01, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0, 1e30])
def test_singular_values_never_leave_the_margin(margin: float, size: float) -> None:
    p = size * torch.randn(1000, generator=generator())
    s = SpectralMatrix(margin).spectrum(p)
    bounds = torch.tensor([1 - margin, 1 + margin])
    assert bool((s >= bounds[0]).all()) and bool((s <= bounds[1]).all())
    expected = 2 * margin * (torch.sigmoid(p.double()) - 0.5) + 1
    torch.testing.assert_close(s.double(), expected, rtol=0, atol=2e-7 * (1 + margin))


@MARGINS
def test_the_matrix_has_the_singular_values_that_are_said(margin: float | None) -> None:
    layer = spread(layer_of(nn.LSTM, margin)).double()
    said = singular_values(layer, NAME).abs().sort(descending=True).values
    torch.testing.assert_close(said, torch.linalg.svdvals(blocks_of(layer.weight_hh_l0)), rtol=1e-5, atol=1e-5)


@MARGINS
def test_gradients_are_those_of_finite_differences(margin: float | None) -> None:
    matrix = SpectralMatrix(margin)
    shapes = ((2, N, N), (2, N), (2, N, N))
    source = generator()
    inputs = [torch.randn(s, dtype=torch.float64, generator=source).requires_grad_() for s in shapes]
    assert torch.autograd.gradcheck(matrix, inputs)


@MARGINS
@EACH
def test_gradients_through_a_layer_follow_from_those_of_the_whole_matrix(
    kind: Callable[..., nn.Module], margin: float | None
) -> None:
    layer = spread(layer_of(kind, margin, dtype=torch.float64))
    x = x_of(torch.float64)
    layer(x)[0].square().mean().backward()
    whole = kind(D, N, dtype=torch.float64)
    with torch.no_grad():
        for name, parameter in whole.named_parameters():
            parameter.copy_(getattr(layer, name))
    whole(x)[0].square().mean().backward()
    expected = of_the_factors(layer, whole.get_parameter(NAME).grad)
    for factor, gradient in zip(factors(layer, NAME)[1], expected, strict=True):
        torch.testing.assert_close(factor.grad, gradient, rtol=1e-9, atol=1e-12)


@MARGINS
def test_single_precision_agrees_with_double_to_1e_6(margin: float | None) -> None:
    layer = spread(layer_of(nn.LSTM, margin))
    dw = torch.randn(4 * N, N, generator=generator())
    layer.weight_hh_l0.backward(dw)
    found = [factor.grad.double() for factor in factors(layer, NAME)[1]]
    for gradient, expected in zip(found, of_the_factors(layer.double(), dw.double()), strict=True):
        assert apart(gradient, expected) <= 1e-6 * float(expected.abs().max())


def of_the_factors(layer: nn.Module, dw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``dU = dW V S``, ``dV = dW^T U S``, ``ds = diag(U^T dW V)``, and dp from ds."""
    matrix, (left, p, right) = factors(layer, NAME)
    u, v, free = left.detach(), right.detach(), p.detach().clone().requires_grad_()
    s = matrix.spectrum(free)
    dw = blocks_of(dw).reshape(u.shape)
    (dp,) = torch.autograd.grad(s, free, torch.einsum("...ia,...ij,...ja->...a", u, dw, v))
    s = s.detach().unsqueeze(-2)
    return dw @ v * s, dp, dw.mT @ u * s


def test_a_float64_layers_gradients_agree_to_1e_6() -> None:
    layer = spread(layer_of(nn.GRU)).double()
    torch.autograd.gradcheck(
        lambda *changed: torch.func.functional_call(
            layer, dict(zip(dict(layer.named_parameters()), changed, strict=True)), x_of(torch.float64)
        )[0],
        tuple(p.detach().clone().requires_grad_() for p in layer.parameters()),
        atol=1e-6,
    )


@pytest.mark.parametrize("margin", [-0.1, float("nan"), float("inf"), True, "0.1"])
def test_margins_that_are_none(margin: Any) -> None:
    with pytest.raises(ValueError, match="margin: .* is not allowed; it must be a finite number, 0 or larger, or None"):
        SpectralMatrix(margin)
