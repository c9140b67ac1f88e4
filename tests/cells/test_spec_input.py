"""The law of inputs, read off a batch of them."""

from __future__ import annotations

import pytest
import torch

from isornn.cells import Input, SpecError


def test_the_variance_is_the_mean_square_whatever_the_mean() -> None:
    x = torch.rand(50, 4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert Input.of(x) == Input(float(x.detach().double().square().mean()))
    assert Input.of(torch.tensor([3, 4])) == Input(12.5)
    assert Input.of(torch.zeros(2, 3)) == Input(0.0)


@pytest.mark.parametrize("x", [torch.zeros(0, 3), torch.tensor([1.0, float("nan")]), torch.tensor([float("inf")])])
def test_a_batch_that_says_nothing_is_refused(x: torch.Tensor) -> None:
    with pytest.raises(
        SpecError, match=r"input: tensor\(.* is not allowed; it has numbers, and all of them are finite"
    ):
        Input.of(x)
