"""Kinds of numbers: the answer is that of the same data in int64 or float64."""

import numpy as np
import pytest
import torch
from torch import Tensor

from isornn.lookback import memory


def data(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randint(0, 2, (200, 12), generator=generator)
    return x, x[:, -3]


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8, torch.uint16, torch.uint32])
def test_symbols_of_any_kind(kind: torch.dtype) -> None:
    x, y = data(torch.Generator().manual_seed(0))
    assert memory(x.to(kind), y).needed == memory(x, y).needed == 3


@pytest.mark.parametrize("kind", [torch.int32, torch.int64, torch.float64])
def test_features_with_a_mean_that_float32_does_not_resolve(kind: torch.dtype) -> None:
    x, y = data(torch.Generator().manual_seed(0))
    assert memory((x + 1_700_000_000).to(kind).unsqueeze(-1), y).needed == 3


def test_no_class_is_lost_that_wraps_to_the_ignored_one() -> None:
    x, y = data(torch.Generator().manual_seed(0))
    assert memory(x, (156 - 149 * y).to(torch.uint8)).rows == 200


def test_lengths_of_any_kind() -> None:
    x, y = data(torch.Generator().manual_seed(0))
    assert memory(x, y, lengths=torch.full((200,), 12, dtype=torch.uint16)).needed == 3


@pytest.mark.parametrize("positives", [3, 75])
def test_inputs_that_are_all_the_same_tell_nothing(positives: int) -> None:
    targets = torch.zeros(400).long()
    targets[:positives] = 1
    found = memory(torch.zeros(400, 12, 1), targets)
    assert found.needed is None
    assert max(map(abs, found.scores)) < 1e-7  # predictions are float32


def test_under_another_default_dtype() -> None:
    x, y = data(torch.Generator().manual_seed(0))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert memory(x.double().unsqueeze(-1), y).needed == 3
    finally:
        torch.set_default_dtype(before)


def test_sparse_tensors() -> None:
    x, y = data(torch.Generator().manual_seed(0))
    assert memory(x.float().unsqueeze(-1).to_sparse(), y).needed == 3


def test_arrays_that_torch_does_not_take_as_they_are() -> None:
    x, y = (values.numpy() for values in data(torch.Generator().manual_seed(0)))
    turned = np.ascontiguousarray(x[:, ::-1])[:, ::-1]
    for given in (x.astype(">i8"), turned):
        assert memory(given, y[::-1][::-1].astype(">i2")).needed == 3
    with pytest.raises(
        ValueError, match=r"target: an array of <U1 is not allowed; it must be a tensor or array of num"
    ):
        memory(x, y.astype(str).astype("<U1"))
