"""Factorised matrices in torch's and our layers: composed once, trained, copied, saved, assigned."""

from __future__ import annotations

import copy
import io
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from factorised import EACH, NAME, B, D, N, T, apart, assert_orthogonal, descend, layer_of, spread, x_of
from isornn.nn import GRU, VanillaRNN, parametrize_spectral_
from isornn.nn.spectral import factors


@EACH
def test_a_step_of_any_optimizer_changes_what_the_layer_gives(kind: Callable[..., nn.Module]) -> None:
    layer = layer_of(kind)
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    _, parameters = factors(layer, NAME)
    for factor in parameters:
        before, w = layer(x_of())[0].detach(), layer.weight_hh_l0.detach()
        factor.requires_grad_()
        descend(layer, rate=1.0)
        factor.requires_grad_(False).grad = None
        assert apart(layer.weight_hh_l0, w) > 1e-5
        assert apart(layer(x_of())[0], before) > 1e-5


@EACH
def test_the_layer_computes_with_the_composed_matrix(kind: Callable[..., nn.Module]) -> None:
    layer, plain = spread(layer_of(kind)), kind(D, N)
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            parameter.copy_(getattr(layer, name))
    for found, expected in zip(flat(layer(x_of())), flat(plain(x_of())), strict=True):
        torch.testing.assert_close(found, expected)


def flat(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [value for part in result for value in flat(part)]


@EACH
@pytest.mark.parametrize("training", [True, False])
def test_the_matrix_is_composed_once_for_a_pass(kind: Callable[..., nn.Module], training: bool) -> None:
    layer = layer_of(kind, num_layers=2, bidirectional=True)
    names = [name for name, _ in layer.named_parameters() if name.startswith("weight_hh")]
    for name in names:
        parametrize_spectral_(layer, name)
    count = []
    for name in (NAME, *names):
        layer.parametrizations[name][0].register_forward_hook(lambda *_: count.append(1))
    layer.train(training)
    for _ in range(2):
        count.clear()
        layer(x_of())
        assert len(count) == 4


@EACH
def test_copies_and_precisions_are_independent(kind: Callable[..., nn.Module]) -> None:
    layer = spread(layer_of(kind))
    layer(x_of())[0].sum().backward()
    for twin in (copy.deepcopy(layer), copy.deepcopy(layer.double()).float()):
        layer.float()
        before = layer(x_of())[0].detach()
        torch.testing.assert_close(twin(x_of())[0].detach(), before)
        descend(twin)
        assert apart(twin(x_of())[0], before) > 1e-5
        torch.testing.assert_close(layer(x_of())[0].detach(), before, rtol=0, atol=0)


@EACH
def test_a_state_dict_brings_its_margin(kind: Callable[..., nn.Module]) -> None:
    for margin in (0.2, None):
        saved, file = spread(layer_of(kind, margin)), io.BytesIO()
        torch.save(saved.state_dict(), file)
        file.seek(0)
        loaded = layer_of(kind, 0.5)
        loaded.load_state_dict(torch.load(file, weights_only=True))
        assert loaded.parametrizations[NAME][0].margin == margin
        torch.testing.assert_close(loaded(x_of())[0], saved(x_of())[0], rtol=0, atol=0)


@EACH
def test_a_matrix_may_be_assigned_and_the_parametrisation_removed(kind: Callable[..., nn.Module]) -> None:
    layer = layer_of(kind, 0.5)
    new = 1.2 * layer.weight_hh_l0.detach().flip(1)
    layer.weight_hh_l0 = new
    torch.testing.assert_close(layer.weight_hh_l0.detach(), new)
    before = layer.double().float()(x_of())[0]
    parametrize.remove_parametrizations(layer, NAME)
    torch.testing.assert_close(layer(x_of())[0], before)
    descend(layer)
    assert apart(layer(x_of())[0], before) > 1e-5


def test_a_layer_may_have_no_storage() -> None:
    assert layer_of(nn.LSTM).to("meta").weight_hh_l0.shape == (4 * N, N)
    made = parametrize_spectral_(GRU(3, N, device="meta"), "weight_hh_l0", margin=0.1)
    assert made(torch.empty(5, 2, 3, device="meta"))[0].shape == (5, 2, N)


def test_forward_mode_derivatives_in_one_vectorised_pass() -> None:
    layer, x = layer_of(nn.RNN), x_of()

    def out(x: Tensor) -> Tensor:
        return layer(x)[0]

    rows = torch.autograd.functional.jacobian(out, x)
    ahead = torch.autograd.functional.jacobian(out, x, vectorize=True, strategy="forward-mode")
    assert apart(ahead, rows) < 1e-5


def test_threads_compose_for_themselves() -> None:
    # One with gradients and one without, at the same time, through the same torch layer.
    layer = layer_of(nn.LSTM)
    wrong = []
    with torch.no_grad():  # not to the bit what it is with gradients: on some CPUs torch has another kernel for each
        expected = {False: layer(x_of())[0]}
    expected[True] = layer(x_of())[0].detach()

    def run(wanted: bool) -> None:
        for _ in range(20):
            with torch.set_grad_enabled(wanted):
                out = layer(x_of())[0]
            if out.requires_grad != wanted or not torch.equal(out.detach(), expected[wanted]):
                wrong.append(wanted)

    threads = [threading.Thread(target=run, args=(wanted,)) for wanted in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_torch_warns_of_nothing_and_raises_as_without_us() -> None:
    layer = layer_of(nn.LSTM)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer.flatten_parameters()
        layer(x_of())
    with pytest.raises(RuntimeError, match="input"):
        layer(torch.zeros(T, B, D + 1))
    assert layer(x_of())[0].shape == (T, B, N), "an error leaves nothing behind"


def test_a_step_by_step_cell_and_a_linear_map() -> None:
    cell = parametrize_spectral_(nn.GRUCell(D, N), "weight_hh")
    with parametrize.cached():
        h = cell(x_of()[0])
        cell(x_of()[1], h).sum().backward()
    square = parametrize_spectral_(nn.Linear(N, N), "weight", 0.0)
    assert_orthogonal(square.weight.detach().unsqueeze(0))


def test_autocast_leaves_the_composition_in_single_precision() -> None:
    layer = layer_of(VanillaRNN, 0.0)
    with torch.autocast("cpu", torch.bfloat16):
        composed = layer.weight_hh_l0.detach()
        assert layer(x_of())[0].dtype == torch.bfloat16
    assert_orthogonal(composed)
