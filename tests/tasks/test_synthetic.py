"""Copying and adding, by their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from isornn.tasks import Adding, Copy, one_pass

SMALL = st.integers(1, 60)


@given(SMALL, st.integers(0, 2**63 - 1), st.integers(0, 2**62))
def test_copy_is_as_the_paper_lays_it_out(length: int, seed: int, index: int) -> None:
    x, y = Copy(length, seed=seed)[index]
    assert len(x) == len(y) == length + 20
    assert x.dtype == y.dtype == torch.int64
    letters = x[:10].tolist()
    assert all(1 <= letter <= 8 for letter in letters)
    assert x[10:].tolist() == [0] * (length - 1) + [9] + [0] * 10
    assert y.tolist() == [0] * (length + 10) + letters


def test_all_letters_come_equally_often_at_each_place() -> None:
    letters = torch.stack([Copy(1, size=8000)[i][0][:10] for i in range(8000)])
    for place in letters.T:
        counts = torch.bincount(place, minlength=9)[1:].double()
        # Chi-squared with 7 degrees of freedom; 29.9 is its quantile at 1 - 1e-4.
        assert float((counts - 1000).square().sum() / 1000) < 29.9


def test_copy_baseline_is_the_cross_entropy_of_the_answer_without_memory() -> None:
    task = Copy(30, size=50)
    ((x, y),) = one_pass(task, 50)
    logits = torch.full((*x.shape, 10), -1e9, dtype=torch.float64)
    logits[:-10, :, 0] = 0
    logits[-10:, :, 1:9] = 0
    loss = functional.cross_entropy(logits.flatten(0, 1), y.flatten())
    assert float(loss) == pytest.approx(task.baseline, rel=1e-12) == pytest.approx(10 * math.log(8) / 50, rel=1e-12)


@given(st.integers(2, 60), st.integers(0, 2**63 - 1), st.integers(0, 2**62))
def test_adding_is_as_the_paper_lays_it_out(length: int, seed: int, index: int) -> None:
    x, y = Adding(length, seed=seed)[index]
    assert x.shape == (length, 2) and y.shape == (1,)
    assert bool(((x[:, 0] >= 0) & (x[:, 0] < 1)).all())
    first, second = x[:, 1].nonzero()[:, 0].tolist()
    assert first < length // 2 <= second
    assert bool((x[[first, second], 1] == 1).all())
    assert float(y) == pytest.approx(float(x[first, 0] + x[second, 0]), rel=1e-6)


def test_adding_baseline_is_the_error_of_the_constant_one() -> None:
    ((_, y),) = one_pass(Adding(10, size=6000), 6000)
    errors = (y.double() - 1).square()
    assert abs(float(errors.mean()) - Adding(10).baseline) < 5 * float(errors.std()) / 6000**0.5
    assert abs(float(y.mean()) - 1) < 5 * (1 / 6 / 6000) ** 0.5


def test_marks_are_uniform_over_each_half() -> None:
    ((x, _),) = one_pass(Adding(5, size=6000), 6000)
    counts = x[..., 1].sum(1).double()
    expected = torch.tensor([3000, 3000, 2000, 2000, 2000]).double()
    assert bool(((counts - expected).abs() < 5 * expected.sqrt()).all())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Copy(0), "length: 0 is not allowed; the wait"),
        (lambda: Copy(3, size=0), "size: 0"),
        (lambda: Copy(3, seed=-1), "seed: -1"),
        (lambda: Adding(1), "length: 1 is not allowed; two numbers"),
    ],
)
def test_what_is_not_allowed_is_named(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
