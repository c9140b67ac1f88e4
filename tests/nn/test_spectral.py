"""Factorised matrices: their bounds, gradients, place in torch's and our layers; soft constraints."""

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

from isornn.nn import GRU, LSTM, ChoGRU, SpectralRNN, VanillaRNN, parametrize_spectral_, soft_constraints, spectral
from isornn.nn.spectral import SpectralMatrix, factors, set_margin_, singular_values

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


# -- the factorisation ------------------------------------------------------------------------------------------------


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


# -- in a layer -------------------------------------------------------------------------------------------------------


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


def test_threads_compose_for_themselves() -> None:
    # One with gradients and one without, at the same time, through the same torch layer.
    layer = layer_of(nn.LSTM)
    expected, wrong = layer(x_of())[0].detach(), []

    def run(wanted: bool) -> None:
        for _ in range(20):
            with torch.set_grad_enabled(wanted):
                out = layer(x_of())[0]
            if out.requires_grad != wanted or not torch.equal(out.detach(), expected):
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


# -- SpectralRNN ------------------------------------------------------------------------------------------------------


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


def test_groups_hold_every_parameter_once() -> None:
    model = nn.Sequential(SpectralRNN(D, N, 2), nn.Linear(N, 2))
    found = [parameter for group in spectral.groups(model) for parameter in group["params"]]
    assert sorted(map(id, found)) == sorted(map(id, model.parameters()))
    _, (left, _, _) = factors(model[0], NAME)
    left.requires_grad_(False)
    assert id(left) not in {id(parameter) for group in spectral.groups(model) for parameter in group["params"]}
    assert [group["kind"] for group in spectral.groups(nn.Linear(2, 2))] == ["rest"]


# -- soft constraints -------------------------------------------------------------------------------------------------


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


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("margin", [-0.1, float("nan"), float("inf"), True, "0.1"])
def test_margins_that_are_none(margin: Any) -> None:
    with pytest.raises(ValueError, match="margin: .* is not allowed; it is a finite number, 0 or larger, or None"):
        SpectralMatrix(margin)


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        (nn.RNN(D, N), "weight_hh", "name: 'weight_hh' is not allowed; RNN has weight_ih_l0, weight_hh_l0"),
        (nn.RNN(D, N), "weight_ih_l0", r"weight_ih_l0: shape \(6, 4\) is not allowed; it is one or more 6 x 6 blocks"),
        (nn.RNN(D, N), "bias_hh_l0", r"bias_hh_l0: shape \(6,\) is not allowed"),
        (nn.LSTM(D, 8, proj_size=4), NAME, r"shape \(32, 4\) is not allowed; it is one or more 8 x 8 blocks"),
        (nn.Linear(4, 6), "weight", r"weight: shape \(6, 4\) is not allowed; it is one or more N x N blocks"),
        (nn.RNN(D, N, dtype=torch.bfloat16), NAME, "bfloat16 is not allowed; it is float32 or float64"),
        (layer_of(nn.RNN), NAME, "parametrised already"),
    ],
)
def test_matrices_that_cannot_be_factorised(module: nn.Module, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parametrize_spectral_(module, name)


def test_other_mistakes() -> None:
    wrong: Any = "xavier"
    with pytest.raises(ValueError, match="start: 'xavier' is not allowed; it is one of orthogonal, glorot, identity"):
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
