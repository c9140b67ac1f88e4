"""Factorised layers for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from isornn.nn import GRU, LSTM, ChoGRU, VanillaRNN, parametrize_spectral_
from isornn.nn.spectral import factors

T, B, D, N = 7, 3, 4, 6
NAME = "weight_hh_l0"
KINDS: list[Callable[..., nn.Module]] = [nn.RNN, nn.LSTM, nn.GRU, VanillaRNN, LSTM, GRU, ChoGRU]
EACH = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.__module__.partition('.')[0]}.{kind.__name__}")
MARGINS = pytest.mark.parametrize("margin", [0.0, 0.001, 0.1, 1.0, 10.0, None])


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def layer_of(kind: Callable[..., nn.Module], margin: float | None = 0.1, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return parametrize_spectral_(kind(D, N, **options), NAME, margin, generator=generator())


def x_of(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(T, B, D, dtype=torch.float64, generator=generator()).to(dtype)


def spread(layer: nn.Module, name: str = NAME) -> nn.Module:
    """The layer with singular values of its own."""
    _, (_, p, _) = factors(layer, name)
    with torch.no_grad():
        p.copy_(torch.randn(p.shape, generator=generator()) + 1.0)
    return layer


def descend(layer: nn.Module, rate: float = 0.1) -> None:
    optimizer = torch.optim.SGD(layer.parameters(), rate)
    layer(x_of())[0].square().sum().backward()
    optimizer.step()


def blocks_of(weight: Tensor) -> Tensor:
    return weight.detach().unflatten(0, (-1, N))


def apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).detach().abs().max())


def assert_orthogonal(matrices: Tensor) -> None:
    unit = torch.eye(N).expand(matrices.shape)
    torch.testing.assert_close(matrices.mT @ matrices, unit, rtol=0, atol=1e-6)
