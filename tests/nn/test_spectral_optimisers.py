"""Factorised matrices under optimisers that know nothing of the manifold, averaged, saved and compiled."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from factorised import NAME, D, N, assert_orthogonal, blocks_of, generator, layer_of, spread, x_of
from isornn.nn import SpectralRNN, VanillaRNN, parametrize_spectral_, soft_constraints, spectral
from isornn.nn.draws import haar
from isornn.nn.spectral import factors, singular_values
from isornn.nn.spectral_matrix import SpectralMatrix, are_orthogonal, retracted
from isornn.optim import GeodesicSGD

Make = Callable[[Iterable[Tensor]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "adam": lambda parameters: torch.optim.Adam(parameters, 1e-2),
    "fast adam": lambda parameters: torch.optim.Adam(parameters, 0.5),
    "sgd with momentum": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-2, weight_decay=0.5),
    "geodesic sgd without groups": lambda parameters: GeodesicSGD(parameters, 0.05),
}
EACH_OPTIMIZER = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
# W in half precision is rounded to 2^-8 of its entries.
TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-5, torch.bfloat16: 1e-2}


def train(layer: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 30) -> None:
    """Towards a matrix with singular values of 0 to 3, so that the margin is reached and the bases turn."""
    weight = getattr(layer, NAME)
    target = torch.randn(weight.shape, generator=generator()).to(weight.dtype)
    for _ in range(steps):
        optimizer.zero_grad()
        (getattr(layer, NAME) - target).square().sum().backward()
        optimizer.step()


def assert_as_said(layer: nn.Module, margin: float | None, tolerance: float) -> None:
    """The matrix' singular values are within the margin, and every read-out shows them."""
    found = torch.linalg.svdvals(blocks_of(layer.weight_hh_l0).double())
    said = singular_values(layer, NAME).detach().double().abs().sort(descending=True).values
    torch.testing.assert_close(said.view_as(found), found, rtol=tolerance, atol=tolerance)
    penalty = soft_constraints.orthogonality(layer, NAME).detach().double()
    torch.testing.assert_close(penalty, (found.square() - 1).square().sum(), rtol=20 * tolerance, atol=20 * tolerance)
    if margin is not None:
        assert float((found - 1).abs().max()) <= margin + tolerance


@EACH_OPTIMIZER
@pytest.mark.parametrize("margin", [0.0, 0.1, 1.0, None])
@pytest.mark.parametrize("kind", [nn.LSTM, VanillaRNN])
def test_the_margin_holds_under_any_optimizer(
    kind: Callable[..., nn.Module], margin: float | None, optimizer: Make
) -> None:
    layer = layer_of(kind, margin)
    made = optimizer(layer.parameters())
    before = layer.weight_hh_l0.detach()
    for _ in range(3):
        train(layer, made, 10)
        for training in (True, False):
            assert_as_said(layer.train(training), margin, TOLERANCES[torch.float32])
        layer.train()
    assert float((layer.weight_hh_l0.detach() - before).norm()) > 0.5, "it is trained"


@EACH_OPTIMIZER
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_the_margin_holds_in_every_precision(dtype: torch.dtype, optimizer: Make) -> None:
    layer = layer_of(nn.GRU).to(dtype)
    train(layer, optimizer(layer.parameters()))
    assert layer.weight_hh_l0.dtype == dtype
    assert_as_said(layer, 0.1, TOLERANCES[dtype])


def test_adam_finds_an_orthogonal_matrix() -> None:
    layer = layer_of(VanillaRNN, 0.1)
    target = haar((N, N), torch.Generator().manual_seed(1)).float()
    target[0] *= torch.linalg.det(target).sign() * torch.linalg.det(layer.weight_hh_l0.detach()).sign()
    optimizer, losses = torch.optim.Adam(layer.parameters(), 1e-2), []
    for _ in range(200):
        optimizer.zero_grad()
        loss = (layer.weight_hh_l0 - target).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] > 10 and losses[-1] < 0.02


def test_a_small_step_of_gradient_descent_lowers_the_loss() -> None:
    # The slope is -sum (N_ij - N_ji)^2, N = U^T dL/dU, for s = 1: it is lost where rows are made orthogonal.
    for seed in range(20):
        layer = layer_of(VanillaRNN, 0.0, dtype=torch.float64)
        slope = torch.randn(N, N, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        _, (left, _, _) = factors(layer, NAME)
        before = (layer.weight_hh_l0 * slope).sum()
        before.backward()
        n = left.detach().mT @ left.grad
        torch.optim.SGD(layer.parameters(), 1e-4).step()
        after = (layer.weight_hh_l0 * slope).sum()
        expected = -1e-4 * float((n - n.mT).square().sum()) / 2
        assert float((after - before).detach()) == pytest.approx(expected, rel=0.02)


def test_weight_decay_alone_leaves_an_orthogonal_matrix_where_it_is() -> None:
    layer = layer_of(nn.LSTM, 0.1)
    before = layer.weight_hh_l0.detach()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1, weight_decay=1.0)
    for _ in range(50):
        optimizer.zero_grad()
        (0 * layer.weight_hh_l0).sum().backward()
        optimizer.step()
    torch.testing.assert_close(layer.weight_hh_l0.detach(), before, rtol=0, atol=1e-5)


# -- averages, copies, files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("average", [{}, {"multi_avg_fn": get_ema_multi_avg_fn(0.9)}], ids=["swa", "ema"])
def test_an_average_of_models_keeps_the_margin(average: dict[str, Any]) -> None:
    layer = layer_of(nn.LSTM)
    averaged = AveragedModel(layer, **average)
    optimizer = torch.optim.Adam(layer.parameters(), 0.05)
    for _ in range(20):
        train(layer, optimizer, 1)
        averaged.update_parameters(layer)
    (left, _, _) = factors(averaged.module, NAME)[1]
    assert not are_orthogonal((left,)), "the average of orthogonal matrices is none"
    for training in (False, True):
        assert_as_said(averaged.train(training).module, 0.1, 1e-5)


def test_a_step_is_saved_loaded_and_copied_as_it_is() -> None:
    layer = layer_of(nn.LSTM)
    train(layer, torch.optim.Adam(layer.parameters(), 1e-2))
    file, loaded, twin = io.BytesIO(), layer_of(nn.LSTM, 0.5), copy.deepcopy(layer)
    torch.save(layer.state_dict(), file)
    file.seek(0)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for other in (loaded, twin):
        assert torch.equal(other.weight_hh_l0, layer.weight_hh_l0)
        assert_as_said(other, 0.1, 1e-5)


def test_a_resumed_run_is_the_same_to_the_bit() -> None:
    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        layer = layer_of(nn.LSTM)
        return layer, torch.optim.Adam(layer.parameters(), 1e-2)

    whole, first, second = made(), made(), made()
    train(*whole, 20)
    train(*first, 7)
    for part, state in zip(second, [copy.deepcopy(part.state_dict()) for part in first], strict=True):
        part.load_state_dict(state)  # type: ignore[attr-defined]
    train(*second, 13)
    assert all(map(torch.equal, whole[0].parameters(), second[0].parameters()))


def test_only_a_training_pass_writes() -> None:
    layer = layer_of(nn.LSTM)
    train(layer, torch.optim.Adam(layer.parameters(), 1e-2))
    before = [parameter.detach().clone() for parameter in layer.parameters()]
    with torch.no_grad():
        composed = layer.weight_hh_l0
    layer.eval()
    assert torch.equal(layer.weight_hh_l0, composed)
    assert all(map(torch.equal, before, layer.parameters()))
    layer.train()
    torch.testing.assert_close(layer.weight_hh_l0, composed, rtol=0, atol=0)
    assert not all(map(torch.equal, before, layer.parameters()))
    assert_orthogonal(factors(layer, NAME)[1][0].detach())


# -- geodesic descent -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rate", [1e-4, 1e-2, 0.3])
def test_geodesic_descent_is_left_to_itself(dtype: torch.dtype, rate: float) -> None:
    layer = SpectralRNN(D, 64, generator=generator(), dtype=dtype)
    optimizer = GeodesicSGD(spectral.groups(layer), rate)
    matrix, (left, p, right) = factors(layer, NAME)
    target = torch.randn(64, 64, generator=generator()).to(dtype)
    for _ in range(100):
        optimizer.zero_grad()
        before = left.detach().clone(), right.detach().clone()
        weight = layer.weight_hh_l0
        assert torch.equal(weight, (before[0] * matrix.spectrum(p)) @ before[1].mT)
        assert torch.equal(left, before[0]) and torch.equal(right, before[1])
        (weight - target).square().mean().backward()
        optimizer.step()


def test_geodesic_descent_may_follow_another() -> None:
    layer = layer_of(nn.LSTM)
    train(layer, torch.optim.Adam(layer.parameters(), 0.1))
    before = layer.weight_hh_l0.detach()
    train(layer, GeodesicSGD(spectral.groups(layer), 0.0), 1)
    torch.testing.assert_close(layer.weight_hh_l0.detach(), before, rtol=0, atol=1e-6)


# -- the check and the retraction -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("units", [1, 6, 300])
def test_what_is_orthogonal_is_told_from_what_is_not(units: int, dtype: torch.dtype) -> None:
    basis = haar((2, units, units), generator()).to(dtype)
    assert are_orthogonal((basis, basis))
    column, entries, grown = basis.clone(), basis.clone(), basis.clone()
    column[1, :, 0] *= 1 + 2e-4 * units**0.5
    entries += 2e-4 * torch.randn(basis.shape, generator=generator())
    grown[0] *= 1 + 2e-4
    for other in (column, entries, grown, basis * torch.nan):
        assert not are_orthogonal((basis, other))


def test_the_retraction_is_orthogonal_whatever_it_is_given() -> None:
    orthogonal = haar((3, N, N), generator()).float()
    torch.testing.assert_close(retracted(orthogonal), orthogonal, rtol=0, atol=1e-6)
    stretched = orthogonal * torch.logspace(-6, 6, N)
    for basis in (torch.zeros(N, N), torch.ones(N, N), stretched, torch.randn(N, N, generator=generator())):
        assert_orthogonal(retracted(basis))


# -- where nobody can branch on a value -------------------------------------------------------------------------------


def test_transforms_take_the_retraction_too() -> None:
    matrix = SpectralMatrix(0.1)
    bases = torch.randn(2, 5, N, N, generator=generator())
    found = torch.func.vmap(lambda left, right: matrix(left, torch.zeros(N), right))(*bases)
    assert_orthogonal(found)
    gradient = torch.func.grad(lambda left: matrix(left, torch.zeros(N), bases[1, 0]).sum())(bases[0, 0])
    alone = bases[0, 0].clone().requires_grad_()
    matrix(alone, torch.zeros(N), bases[1, 0]).sum().backward()
    torch.testing.assert_close(gradient, alone.grad)


def test_a_compiled_layer_retracts_as_an_uncompiled_one() -> None:
    plain, compiled = (parametrize_spectral_(nn.Linear(N, N), "weight", generator=generator()) for _ in range(2))
    compiled.load_state_dict(plain.state_dict())
    x = x_of()[0][:, :1].expand(-1, N)
    for layer, call in ((plain, plain), (compiled, torch.compile(compiled, backend="eager", fullgraph=True))):
        optimizer = torch.optim.Adam(layer.parameters(), 0.05)
        for _ in range(5):
            optimizer.zero_grad()
            (call(x) - 1).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(compiled.weight, plain.weight, rtol=0, atol=1e-5)


def test_an_exported_layer_has_a_matrix_within_the_margin() -> None:
    layer = spread(parametrize_spectral_(nn.Linear(N, N, bias=False), "weight", generator=generator()), "weight").eval()
    with torch.no_grad():
        layer.parametrizations.weight.original0.mul_(3.0)
    exported = torch.export.export(layer, (torch.eye(N),)).module()
    torch.testing.assert_close(exported(torch.eye(N)), layer(torch.eye(N)))


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.:FutureWarning")  # torch's own use of it
@pytest.mark.parametrize("autocast", [False, True])
def test_an_exported_layer_is_saved_and_decomposed(autocast: bool) -> None:
    layer, x, file = SpectralRNN(3, N).eval(), torch.randn(5, 2, 3, generator=generator()), io.BytesIO()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        program = torch.export.export(layer, (x,))
    program.run_decompositions()
    torch.export.save(program, file)
    file.seek(0)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        torch.testing.assert_close(torch.export.load(file).module()(x), layer(x))
