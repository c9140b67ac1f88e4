"""The layer that is factorised from the start."""

from __future__ import annotations

import pytest
import torch

from factorised import B, D, N, T, generator, x_of
from isornn.nn import SpectralRNN, spectral


def test_every_matrix_of_a_spectral_rnn_is_factorised() -> None:
    layer = SpectralRNN(D, N, 2, bidirectional=True, margin=0.3, nonlinearity="relu", generator=generator())
    out, h = layer(x_of())
    assert out.shape == (T, B, 2 * N) and h.shape == (4, B, N)
    for name in ("weight_hh_l0", "weight_hh_l0_reverse", "weight_hh_l1", "weight_hh_l1_reverse"):
        assert spectral.is_spectral(layer, name)


def test_a_linear_network_without_input_keeps_norms_where_the_margin_is_zero() -> None:
    layer = SpectralRNN(D, 64, margin=0.0, nonlinearity="identity", bias=False, generator=generator())
    state = torch.randn(1, B, 64, generator=generator())
    _, last = layer(torch.zeros(1000, B, D), state)
    torch.testing.assert_close(last.norm(dim=-1), state.norm(dim=-1), rtol=1e-4, atol=0)


def test_resetting_leaves_the_factorised_matrix() -> None:
    layer = SpectralRNN(D, N, generator=generator())
    recurrent, inputs = layer.weight_hh_l0.detach(), layer.weight_ih_l0.detach().clone()
    layer.reset_parameters()
    torch.testing.assert_close(layer.weight_hh_l0.detach(), recurrent, rtol=0, atol=1e-5)
    assert not torch.equal(layer.weight_ih_l0, inputs)


def test_a_projection_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match="proj_size: 2 is not allowed; factorised recurrent matrices are square"):
        SpectralRNN(D, N, proj_size=2)
