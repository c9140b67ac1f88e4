"""Factorised matrices of any module: their starts, the margin later, groups, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from factorised import EACH, NAME, D, N, assert_orthogonal, blocks_of, generator, layer_of, spread
from isornn.nn import SpectralRNN, parametrize_spectral_, soft_constraints, spectral
from isornn.nn.spectral import factors, set_margin_, singular_values

# -- starts -----------------------------------------------------------------------------------------------------------


@EACH
def test_each_gate_starts_orthogonal_with_factors_of_its_own(kind: Callable[..., nn.Module]) -> None:
    layer = layer_of(kind)
    matrices = blocks_of(layer.weight_hh_l0)
    assert_orthogonal(matrices)
    assert len({tuple(matrix.flatten().tolist()) for matrix in matrices}) == len(matrices)
    _, (left, p, right) = factors(layer, NAME)
    gates = () if len(matrices) == 1 else (len(matrices),)
    assert (left.shape, p.shape, right.shape) == ((*gates, N, N), (*gates, N), (*gates, N, N))
    for basis in (left, right):
        assert_orthogonal(basis.detach())


def test_the_identity_and_glorots_start() -> None:
    same = parametrize_spectral_(nn.GRU(D, N), NAME, 0.1, start="identity")
    torch.testing.assert_close(blocks_of(same.weight_hh_l0), torch.eye(N).expand(3, N, N), rtol=0, atol=1e-6)
    wide = parametrize_spectral_(nn.RNN(3, 200), NAME, None, start="glorot", generator=generator())
    entries = wide.weight_hh_l0.detach()
    assert float(entries.var()) * 200 == pytest.approx(1.0, rel=0.03)  # 2 / (N + N) each
    assert float(singular_values(wide, NAME).detach().max()) == pytest.approx(2.0, rel=0.05)


def test_a_seed_gives_the_same_start_in_every_precision() -> None:
    single, double = (
        parametrize_spectral_(nn.RNN(D, N, dtype=dtype), NAME, generator=generator()).weight_hh_l0.detach().double()
        for dtype in (torch.float32, torch.float64)
    )
    torch.testing.assert_close(single, double, rtol=0, atol=1e-6)


def test_a_matrix_may_stay_as_it_is_where_the_margin_lets_it() -> None:
    lstm = nn.LSTM(D, N)
    before = lstm.weight_hh_l0.detach().clone()
    kept = parametrize_spectral_(lstm, NAME, None, start=None).weight_hh_l0
    torch.testing.assert_close(kept.detach(), before, rtol=0, atol=1e-6)
    u, s, vh = torch.linalg.svd(blocks_of(before))
    with pytest.warns(UserWarning, match="beyond 1 [+]- 0.1"):
        near = parametrize_spectral_(copy_of_plain(before), NAME, 0.1, start=None)
    expected = u @ torch.diag_embed(s.clamp(1 - 0.0999, 1 + 0.0999)) @ vh
    torch.testing.assert_close(blocks_of(near.weight_hh_l0), expected, rtol=0, atol=1e-5)


def copy_of_plain(weight: Tensor) -> nn.Module:
    lstm = nn.LSTM(D, N)
    lstm.weight_hh_l0.data = weight.clone()
    return lstm


def test_a_spectrum_at_the_very_end_of_the_margin_can_still_move() -> None:
    rnn = nn.RNN(D, N)
    rnn.weight_hh_l0.data = 1.1 * torch.eye(N)
    layer = parametrize_spectral_(rnn, NAME, 0.1, start=None)
    _, (_, p, _) = factors(layer, NAME)
    assert bool(p.isfinite().all())
    singular_values(layer, NAME).sum().backward()
    assert bool((p.grad > 1e-5).all())
    torch.testing.assert_close(singular_values(layer, NAME).detach(), torch.full((N,), 1.0999))


# -- the margin, later ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new"), [(0.1, 0.5), (0.1, None), (None, 10.0), (10.0, 20.0)])
def test_a_wider_margin_keeps_the_matrix(old: float | None, new: float | None) -> None:
    layer = spread(layer_of(nn.LSTM, old))
    before = layer.weight_hh_l0.detach()
    set_margin_(layer, NAME, new)
    torch.testing.assert_close(layer.weight_hh_l0.detach(), before, rtol=1e-5, atol=1e-5)
    assert layer.parametrizations[NAME][0].margin == new


def test_a_narrower_margin_says_what_it_moves() -> None:
    layer = layer_of(nn.RNN, None)
    _, (_, p, _) = factors(layer, NAME)
    with torch.no_grad():
        p.copy_(torch.tensor([0.8, 0.95, 1.0, 1.05, 1.2, 1.5]))
    with pytest.warns(UserWarning, match="3 of 6 singular values, which are from 0.8 to 1.5, were beyond 1 [+]- 0.1"):
        set_margin_(layer, NAME, 0.1)
    found = singular_values(layer, NAME).detach()
    torch.testing.assert_close(found, torch.tensor([0.9001, 0.95, 1.0, 1.05, 1.0999, 1.0999]))
    with pytest.warns(UserWarning, match="beyond 1 [+]- 0 "):
        set_margin_(layer, NAME, 0)
    assert_orthogonal(layer.weight_hh_l0.detach().unsqueeze(0))


# -- groups -----------------------------------------------------------------------------------------------------------


def test_groups_hold_every_parameter_once() -> None:
    model = nn.Sequential(SpectralRNN(D, N, 2), nn.Linear(N, 2))
    found = [parameter for group in spectral.groups(model) for parameter in group["params"]]
    assert sorted(map(id, found)) == sorted(map(id, model.parameters()))
    _, (left, _, _) = factors(model[0], NAME)
    left.requires_grad_(False)
    assert id(left) not in {id(parameter) for group in spectral.groups(model) for parameter in group["params"]}
    assert [group["kind"] for group in spectral.groups(nn.Linear(2, 2))] == ["rest"]


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        (nn.RNN(D, N), "weight_hh", "name: 'weight_hh' is not allowed; RNN has weight_ih_l0, weight_hh_l0"),
        (
            nn.RNN(D, N),
            "weight_ih_l0",
            r"weight_ih_l0: shape \(6, 4\) is not allowed; it must be one or more 6 x 6 blocks",
        ),
        (nn.RNN(D, N), "bias_hh_l0", r"bias_hh_l0: shape \(6,\) is not allowed"),
        (nn.LSTM(D, 8, proj_size=4), NAME, r"shape \(32, 4\) is not allowed; it must be one or more 8 x 8 blocks"),
        (nn.Linear(4, 6), "weight", r"weight: shape \(6, 4\) is not allowed; it must be one or more N x N blocks"),
        (nn.RNN(D, N, dtype=torch.bfloat16), NAME, "bfloat16 is not allowed; it must be float32 or float64"),
        (layer_of(nn.RNN), NAME, "parametrised already"),
    ],
)
def test_matrices_that_cannot_be_factorised(module: nn.Module, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parametrize_spectral_(module, name)


def test_other_mistakes() -> None:
    wrong: Any = "xavier"
    with pytest.raises(
        ValueError, match="start: 'xavier' is not allowed; it must be one of orthogonal, glorot, identity"
    ):
        parametrize_spectral_(nn.RNN(D, N), NAME, start=wrong)
    for call in (lambda: set_margin_(nn.RNN(D, N), NAME, 0.1), lambda: factors(nn.RNN(D, N), NAME)):
        with pytest.raises(ValueError, match="name: 'weight_hh_l0' is not allowed; parametrize_spectral_ has not"):
            call()
    layer = layer_of(nn.RNN)
    plain = torch.optim.SGD(layer.parameters(), 0.1)
    with pytest.raises(ValueError, match="optimizer: it has no group of this spectrum alone"):
        set_margin_(layer, NAME, 0.5, optimizer=plain)
    with pytest.raises(ValueError, match="name: 'w' is not allowed; RNN has no such tensor"):
        soft_constraints.decay(nn.RNN(D, N), "w")
