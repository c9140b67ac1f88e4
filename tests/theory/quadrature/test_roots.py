"""Batched roots against known ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isornn.theory.quadrature.roots import Function, bracketed_root, newton_step


def find(function: Function, low: Tensor, high: Tensor) -> Tensor:
    return bracketed_root(function, low, high, function(low), function(high))


def test_every_element_has_its_own_root() -> None:
    wanted = torch.logspace(-12, 9, 40, dtype=torch.float64)
    found = find(lambda x: wanted * ((x / wanted) ** 3 - 1), wanted / 8, 8e3 * wanted)
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_shapes_that_stall_regula_falsi(sign: float) -> None:
    low, high = torch.zeros(3).double(), torch.ones(3).double()
    power = torch.tensor([1.0, 9.0, 51.0]).double()
    found = find(lambda x: sign * (x**power - 0.3), low, high)
    torch.testing.assert_close(found, 0.3 ** (1 / power), rtol=1e-12, atol=0)


def test_a_jump_is_bracketed() -> None:
    found = find(lambda x: torch.where(x > 0.7, 1.0, -1e-6).double(), torch.zeros(1).double(), torch.ones(1).double())
    assert float(found) == pytest.approx(0.7, abs=1e-9)


def test_without_a_change_of_sign_the_nearer_end_is_returned() -> None:
    low, high = torch.tensor([1.0, -3.0]).double(), torch.tensor([2.0, -1.0]).double()
    assert find(lambda x: x**2, low, high).tolist() == [1.0, -1.0]
    assert find(lambda x: x, torch.tensor([0.0]).double(), torch.tensor([1.0]).double()).tolist() == [0.0]


def test_elements_do_not_disturb_each_other() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.tanh(x) - shift

    shift = torch.tensor([0.1, 0.5, 0.999]).double()
    together = find(function, torch.full((3,), -1.0).double(), torch.full((3,), 9.0).double())
    for j, one in enumerate((0.1, 0.5, 0.999)):
        shift = torch.tensor([one]).double()
        alone = find(function, torch.tensor([-1.0]).double(), torch.tensor([9.0]).double())
        torch.testing.assert_close(together[j : j + 1], alone, rtol=1e-12, atol=0)


def test_few_evaluations_on_a_smooth_function() -> None:
    calls = 0

    def function(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return torch.cos(x) - x

    found = find(function, torch.zeros(1).double(), torch.ones(1).double())
    assert float(found) == pytest.approx(0.7390851332151607, abs=1e-13)
    assert calls <= 14


def test_infinite_values_end_the_search() -> None:
    found = find(lambda x: torch.where(x > 0.5, torch.inf, x - 0.25), torch.zeros(1).double(), torch.ones(1).double())
    assert bool(torch.isfinite(found).all())


@pytest.mark.parametrize("slope", [0.25, -3.0])
def test_a_newton_step_solves_an_affine_map(slope: float) -> None:
    start = torch.tensor([0.0, 7.0]).double()
    assert newton_step(lambda x: slope * x + 2.0, start).tolist() == pytest.approx([2.0 / (1.0 - slope)] * 2)


def test_a_newton_step_stays_where_everything_is_a_fixed_point() -> None:
    assert newton_step(lambda x: 1.0 * x, torch.tensor([0.0, 7.0]).double()).tolist() == [0.0, 7.0]
