"""Penalties on singular values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from factorised import NAME, D, N, blocks_of, layer_of, spread
from isornn.nn import soft_constraints
from isornn.nn.spectral import factors


@pytest.mark.parametrize("penalty", [soft_constraints.orthogonality, soft_constraints.mean_one, soft_constraints.decay])
def test_penalties_are_the_same_factorised_or_not(penalty: Callable[[nn.Module, str], Tensor]) -> None:
    layer = spread(layer_of(nn.LSTM, 0.5, dtype=torch.float64))
    plain = nn.LSTM(D, N, dtype=torch.float64)
    plain.weight_hh_l0.data = layer.weight_hh_l0.detach().clone()
    torch.testing.assert_close(penalty(layer, NAME), penalty(plain, NAME))
    matrix, (_, p, _) = factors(layer, NAME)
    penalty(layer, NAME).backward()
    penalty(plain, NAME).backward()
    _, (left, _, right) = factors(layer, NAME)
    assert left.grad is None and right.grad is None, "a penalty on s alone costs no product of matrices"
    dw = blocks_of(plain.weight_hh_l0.grad)
    ds = torch.einsum("kia,kij,kja->ka", left.detach(), dw, right.detach())
    (expected,) = torch.autograd.grad(matrix.spectrum(p), p, ds)
    torch.testing.assert_close(p.grad, expected)


def test_penalties_by_hand() -> None:
    rnn = nn.RNN(D, N, dtype=torch.float64)
    w = rnn.weight_hh_l0.detach()
    gram = sum(((w.T @ w - torch.eye(N))[i, j] ** 2) for i in range(N) for j in range(N))
    torch.testing.assert_close(soft_constraints.orthogonality(rnn, NAME).detach(), gram)
    torch.testing.assert_close(soft_constraints.decay(rnn, NAME).detach(), w.square().sum())
    roots = torch.linalg.eigvalsh(w.T @ w).clamp(min=0).sqrt()
    torch.testing.assert_close(soft_constraints.mean_one(rnn, NAME).detach(), (roots - 1).square().sum())
