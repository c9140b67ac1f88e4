"""Descent on orthogonal matrices: the step, what rounding does to it, and the optimiser around it."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from isornn.nn import SpectralRNN, parametrize_spectral_, spectral
from isornn.nn.draws import haar
from isornn.nn.spectral import factors, set_margin_, singular_values
from isornn.optim import GeodesicSGD, polished, rotated
from isornn.optim.cayley import _order, _summed

NAME = "weight_hh_l0"


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, dtype: torch.dtype = torch.float64, source: torch.Generator | None = None) -> Tensor:
    return torch.randn(*shape, generator=source or generator(), dtype=torch.float64).to(dtype)


def error_of(basis: Tensor) -> float:
    basis = basis.detach().double()
    return float((basis.mT @ basis - torch.eye(basis.shape[-1], dtype=torch.float64)).abs().max())


def cayley(basis: Tensor, gradient: Tensor, rate: float) -> Tensor:
    """THEORY: ``(I + rate/2 A)^-1 (I - rate/2 A) M``, in float64."""
    m, g = basis.double(), gradient.double()
    a, unit = g @ m.mT - m @ g.mT, torch.eye(m.shape[-1], dtype=torch.float64)
    return torch.linalg.inv(unit + rate / 2 * a) @ (unit - rate / 2 * a) @ m


# -- the step ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.0, 1e-12, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("shape", [(12, 12), (3, 12, 12)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_step_is_cayleys_at_every_size(rate: float, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    basis, gradient = haar(shape, generator()).to(dtype), normal(*shape, dtype=dtype, source=generator(1))
    found = rotated(basis, gradient, rate)
    epsilon = torch.finfo(dtype).eps
    size = rate * float(torch.linalg.matrix_norm(gradient.double(), 2).max())
    torch.testing.assert_close(found.double(), cayley(basis, gradient, rate), rtol=0, atol=8 * (1 + size) * epsilon)
    assert error_of(found) < 12 * epsilon


@pytest.mark.parametrize("size", [1e-7, 1e-6, 1e-5, 1e-4, 5e-4, 2e-3, 6e-3])
def test_the_series_has_the_terms_that_it_needs_and_hardly_more(size: float) -> None:
    """Single precision, summed in double so that what is left is of the series alone."""
    units, epsilon = 12, torch.finfo(torch.float32).eps
    x = normal(units, units, source=generator())
    x = x - x.mT
    x = size * x / torch.linalg.matrix_norm(x, 2)
    unit = torch.eye(units, dtype=torch.float64)
    exact = torch.linalg.solve(unit + x, unit - x)

    def enough(order: int) -> bool:
        found = _summed(unit, x, order)
        left, drift = (torch.linalg.matrix_norm(error, 2) for error in (found - exact, found.mT @ found - unit))
        return bool(left <= epsilon / 2 * units**0.5 and drift <= epsilon)

    needed = next(order for order in range(1, 20) if enough(order))
    assert needed <= _order(size, units, torch.float32) <= needed + 1


def test_the_printed_step_is_not_orthogonal() -> None:
    basis, gradient = haar((12, 12), generator()), normal(12, 12, source=generator(1))
    assert error_of(basis + cayley(basis, gradient, 0.1) @ basis.mT) > 0.5
    assert error_of(rotated(basis, gradient, 0.1)) < 1e-14


def test_the_step_is_steepest_descent_on_the_manifold() -> None:
    # d loss / d rate = -<G, A M> = -|A|^2 / 2 at 0, whatever the loss.
    basis, target = haar((10, 10), generator()), normal(10, 10, source=generator(1))
    gradient = 2 * (basis - target)
    a = gradient @ basis.mT - basis @ gradient.mT
    rate = 1e-6
    there, back = (rotated(basis, gradient, r) for r in (rate, -rate))
    slope = float(((there - target).square().sum() - (back - target).square().sum()) / (2 * rate))
    assert slope == pytest.approx(-0.5 * float(a.square().sum()), rel=1e-6)


def test_newton_schulz_squares_the_error() -> None:
    basis = haar((20, 20), generator())
    errors = [error_of(polished(basis @ (torch.eye(20) + size * normal(20, 20)))) for size in (1e-3, 1e-4)]
    assert errors[0] / errors[1] == pytest.approx(100, rel=0.2)
    assert error_of(polished((basis + 1e-9 * normal(20, 20)).float())) < 1e-6


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_refused(bad: float) -> None:
    gradient = torch.zeros(3, 3)
    gradient[0, 1] = bad
    with pytest.raises(ValueError, match="gradient: NaN or infinity is not allowed"):
        rotated(torch.eye(3), gradient, 0.1)


# -- many steps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1.7e-4, 5.2e-3, 1.3e-2, 4.2e-2, 0.3])
def test_bases_stay_orthogonal_to_1e_5_in_single_precision(size: float) -> None:
    # Sizes are those of ||X||, each just below where one more power of X is taken: the worst for what is left out. The
    # gradient turns with the basis, so that errors add up in one direction.
    turn = normal(24, 24, dtype=torch.float32)
    turn = turn - turn.mT
    turn *= size / float(turn.norm())
    basis = nn.Parameter(haar((24, 24), generator()).float())
    optimizer = GeodesicSGD([{"params": [basis], "kind": "bases"}], lr=1.0)
    worst = 0.0
    for _ in range(2000):
        basis.grad = basis.detach() @ turn
        optimizer.step()
        worst = max(worst, error_of(basis))
    assert worst < 1e-5


def test_a_quadratic_loss_falls_and_the_basis_stays() -> None:
    target, start = haar((20, 20), generator(1)) * torch.linspace(0.5, 1.5, 20), haar((20, 20), generator())
    # The orthogonal group has two halves, and descent cannot leap to the other.
    start[0] *= torch.linalg.det(target).sign() * torch.linalg.det(start).sign()
    basis = nn.Parameter(start)
    optimizer = GeodesicSGD([{"params": [basis], "kind": "bases"}], lr=0.02)
    losses = []
    for _ in range(1000):
        loss = (basis - target).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert error_of(basis) < 1e-8
    assert all(after <= before + 1e-12 for before, after in pairwise(losses))
    u, _, vh = torch.linalg.svd(target)
    torch.testing.assert_close(basis.detach(), u @ vh, rtol=0, atol=1e-4)


# -- the optimiser ----------------------------------------------------------------------------------------------------


def model_of(margin: float | None = 0.2, **options: Any) -> nn.ModuleDict:
    torch.manual_seed(0)
    recurrent = SpectralRNN(3, 8, margin=margin, generator=generator(), **options)
    return nn.ModuleDict({"recurrent": recurrent, "readout": nn.Linear(8, 2)})


def loss_of(model: nn.ModuleDict, seed: int = 0) -> Tensor:
    x = torch.randn(6, 4, 3, generator=generator(seed))
    return (model["readout"](model["recurrent"](x)[0]) - 1).square().mean()


def backward(model: nn.ModuleDict, seed: int = 0) -> None:
    model.zero_grad()
    loss_of(model, seed).backward()


@pytest.mark.parametrize("margin", [0.0, 1e-3, 0.2, 5.0, None])
def test_each_kind_of_parameter_takes_its_own_step(margin: float | None) -> None:
    model = model_of(margin)
    _, (left, p, right) = factors(model["recurrent"], NAME)
    optimizer = GeodesicSGD(spectral.groups(model), lr=0.1, geodesic_lr=0.01)
    backward(model)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer.step()
    for name, parameter in model.named_parameters():
        old, gradient = before[name], parameter.grad
        if parameter is left or parameter is right:
            expected = cayley(old, gradient, 0.01).float()
        elif parameter is p:
            scale = 1.0 if margin is None else 0.0 if margin == 0 else 1 / (2 * margin)
            expected = old - 0.1 * scale * gradient
        else:
            expected = old - 0.1 * gradient
        torch.testing.assert_close(parameter.detach(), expected, rtol=0, atol=1e-6)
    assert all(bool(parameter.grad is not None) for parameter in model.parameters())
    if margin == 0:
        assert float(p.grad.abs().max()) == 0


def test_a_matrix_that_is_drawn_out_of_its_margin_stays_at_its_end() -> None:
    layer = SpectralRNN(3, 8, margin=0.05, generator=generator())
    optimizer = GeodesicSGD(spectral.groups(layer), lr=0.05)
    target = 2 * layer.weight_hh_l0.detach()
    for _ in range(500):
        optimizer.zero_grad()
        (layer.weight_hh_l0 - target).square().sum().backward()
        optimizer.step()
        s = torch.linalg.svdvals(layer.weight_hh_l0.detach())
        assert float(s.max()) <= 1.05 + 1e-5
    assert float(s.min()) > 1.045


def test_the_rest_has_any_optimizer() -> None:
    model = model_of()
    optimizer = GeodesicSGD(spectral.groups(model), 0.1, rest=lambda groups: torch.optim.Adam(groups, lr=0.01))
    twin = [parameter.detach().clone().requires_grad_() for parameter in model["readout"].parameters()]
    adam = torch.optim.Adam(twin, lr=0.01)
    for seed in range(5):
        backward(model, seed)
        for copied, parameter in zip(twin, model["readout"].parameters(), strict=True):
            copied.grad = parameter.grad.clone()
        optimizer.step()
        adam.step()
    for copied, parameter in zip(twin, model["readout"].parameters(), strict=True):
        assert torch.equal(copied, parameter)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.1, 0.01]


def test_momentum_adds_up_what_the_basis_sees() -> None:
    basis = nn.Parameter(haar((10, 10), generator()))
    optimizer = GeodesicSGD([{"params": [basis], "kind": "bases"}], 0.1, momentum=0.5)
    expected, velocity = basis.detach().clone(), torch.zeros(10, 10, dtype=torch.float64)
    for seed in range(40):
        basis.grad = normal(10, 10, source=generator(seed))
        velocity = 0.5 * velocity + expected.mT @ basis.grad - basis.grad.mT @ expected
        expected = cayley(expected, expected @ velocity / 2, 0.1)  # whose A is M V M^T
        optimizer.step()
        torch.testing.assert_close(basis.detach(), expected, rtol=0, atol=1e-12)


RESTS: list[Callable[..., Any] | None] = [
    None,
    lambda groups: torch.optim.RMSprop(groups, lr=0.01),
    lambda groups: torch.optim.Adam(groups, lr=0.01, weight_decay=0.1),
]
EACH_REST = pytest.mark.parametrize("rest", RESTS, ids=["sgd", "rmsprop", "adam"])


@EACH_REST
def test_a_scheduler_acts_on_all_groups(rest: Callable[..., Any] | None) -> None:
    model = model_of()
    optimizer = GeodesicSGD(spectral.groups(model), 0.1, geodesic_lr=0.05, rest=rest)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0 if step else 1.0)
    backward(model)
    optimizer.step()
    scheduler.step()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    backward(model)
    optimizer.step()
    assert all(map(torch.equal, before, model.parameters()))


@EACH_REST
def test_a_resumed_run_is_the_same_to_the_bit(rest: Callable[..., Any] | None) -> None:
    def made() -> tuple[Any, ...]:
        model = model_of()
        optimizer = GeodesicSGD(spectral.groups(model), 0.1, momentum=0.5, rest=rest)
        return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)

    def run(parts: tuple[Any, ...], steps: range) -> None:
        model, optimizer, scheduler = parts
        for step in steps:
            backward(model, step)
            optimizer.step()
            scheduler.step()

    whole, first, second = made(), made(), made()
    run(whole, range(70))
    run(first, range(20))
    file = io.BytesIO()
    torch.save([part.state_dict() for part in first], file)
    file.seek(0)
    for part, state in zip(second, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    run(second, range(20, 70))
    assert all(map(torch.equal, whole[0].parameters(), second[0].parameters()))


@EACH_REST
def test_copies_go_on_as_the_optimizer_does(rest: Callable[..., Any] | None) -> None:
    model = model_of()
    optimizer = GeodesicSGD(spectral.groups(model), 0.1, rest=rest)
    backward(model)
    optimizer.step()
    twin, copied = copy.deepcopy((model, optimizer))
    for step in range(40):
        for m, o in ((model, optimizer), (twin, copied)):
            backward(m, step)
            o.step()
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
    if rest is None:
        assert pickle.loads(pickle.dumps(optimizer)).state_dict()["state"] == optimizer.state_dict()["state"]


def test_a_changed_margin_changes_the_renormalisation() -> None:
    model = model_of(0.1)
    optimizer = GeodesicSGD(spectral.groups(model), 1.0)
    set_margin_(model["recurrent"], NAME, 0.4, optimizer=optimizer)
    _, (_, p, _) = factors(model["recurrent"], NAME)
    backward(model)
    before = p.detach().clone()
    optimizer.step()
    torch.testing.assert_close(p.detach(), before - p.grad / 0.8)
    assert singular_values(model["recurrent"], NAME).shape == (8,)


def test_stacked_gates_and_a_closure() -> None:
    lstm = parametrize_spectral_(nn.LSTM(3, 8), NAME, 0.1, generator=generator())
    optimizer = GeodesicSGD(spectral.groups(lstm), 0.05)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = (lstm(torch.ones(5, 2, 3))[0] - 0.5).square().mean()
        loss.backward()
        return loss

    losses = [float(optimizer.step(closure).detach()) for _ in range(50)]  # type: ignore[arg-type, attr-defined]
    assert losses[-1] < 0.8 * losses[0]
    _, (left, _, right) = factors(lstm, NAME)
    assert max(error_of(left), error_of(right)) < 1e-5


def test_parameters_without_gradient_stay() -> None:
    model = model_of()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    GeodesicSGD(spectral.groups(model), 0.1).step()
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        (torch.optim.LBFGS, "LBFGS is not allowed, as its step needs a closure"),
        (lambda groups: torch.optim.Adam([p for g in groups for p in g["params"]]), "Adam of other groups"),
        (lambda groups: None, "NoneType, which is not allowed; it must give an optimiser"),
    ],
    ids=["closure", "other groups", "none"],
)
def test_the_rest_is_refused_where_it_could_not_step_with_the_others(rest: Callable[..., Any], why: str) -> None:
    with pytest.raises(ValueError, match=f"^rest: .*{why}"):
        GeodesicSGD(spectral.groups(model_of()), 0.1, rest=rest)


def test_plain_parameters_are_the_rest() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    GeodesicSGD([weight], 0.25).step()
    assert weight.tolist() == [0.75, 0.75]


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"params": [torch.ones(2, 3)], "kind": "bases"}, r"params: shape \(2, 3\) is not allowed; a basis is"),
        (
            {"params": [torch.ones(3, 3)], "kind": "bases"},
            r"max \|M\^T M - I\| = 3 is not allowed; it must be orthogonal",
        ),
        ({"params": [torch.full((2, 2), torch.nan)], "kind": "bases"}, "= nan is not allowed"),
        (
            {"params": [torch.eye(3).bfloat16()], "kind": "bases"},
            "bfloat16 is not allowed; it must be float32 or float64",
        ),
        ({"params": [torch.ones(3)], "kind": "spectrum"}, "margin: nan is not allowed; a spectrum's is a number"),
        ({"params": [torch.ones(3)], "kind": "spectrum", "margin": -1.0}, "margin: -1.0 is not allowed"),
        (
            {"params": [torch.ones(3)], "kind": "basis"},
            "kind: 'basis' is not allowed; it must be 'bases', 'spectrum' or",
        ),
        ({"params": [torch.ones(3)], "lr": -1.0}, "lr: -1.0 is not allowed; it must be a finite number, 0 or larger"),
    ],
)
def test_groups_that_cannot_be(group: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GeodesicSGD([group], 0.1)


def test_other_mistakes() -> None:
    wrong: list[dict[str, Any]] = [{"lr": -1.0}, {"lr": float("nan")}, {"lr": 0.1, "geodesic_lr": float("inf")}]
    wrong += [{"lr": "0.1"}, {"lr": 0.1, "geodesic_lr": [0.1]}]
    for rates in wrong:
        with pytest.raises(ValueError, match="lr: .* is not allowed"):
            GeodesicSGD([torch.ones(1)], **rates)
    with pytest.raises(ValueError, match="momentum: 1.0 is not allowed; it must be from 0 to below 1"):
        GeodesicSGD([torch.ones(1)], 0.1, momentum=1.0)
    with pytest.raises(ValueError, match="momentum: high is not allowed"):
        GeodesicSGD([torch.ones(1)], 0.1, momentum="high")  # type: ignore[arg-type]
    GeodesicSGD([torch.ones(1)], torch.tensor(0.1))  # type: ignore[arg-type]  # as torch.optim's take it
    model = model_of()
    optimizer = GeodesicSGD(spectral.groups(model), 0.1, rest=lambda groups: torch.optim.Adam(groups))
    with pytest.raises(ValueError, match="param_group: the rest has an optimiser of its own; make GeodesicSGD anew"):
        optimizer.add_param_group({"params": [torch.ones(2)]})
    assert len(optimizer.param_groups) == 3
