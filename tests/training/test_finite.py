"""Who became NaN first: the batch, the output, the loss, a gradient, a parameter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from isornn.training import NonFiniteLoss, State, train

Batch = tuple[Tensor, Tensor]


def batches(batch: Batch | None = None, after: int = 2) -> Iterator[Batch]:
    """Good ones, then ``batch``."""
    x, y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
    for _ in range(after):
        yield x, y
    while True:
        yield (x, y) if batch is None else batch


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def stopped(model: nn.Module, data: Iterator[Batch], rate: float = 0.1) -> NonFiniteLoss:
    state = State(model, torch.optim.SGD(model.parameters(), rate))
    with pytest.raises(NonFiniteLoss) as stop:
        train(state, data, 10)
    assert stop.value.update == state.update + 1
    return stop.value


def test_a_batch() -> None:
    """Behind a tanh an infinite number leaves a finite loss."""
    bad = torch.zeros(2, 3)
    bad[0, 1] = math.inf
    model = net()
    stop = stopped(model, batches((bad, torch.arange(2))))
    told = "update 3: the batch is the first that is not finite, in 1 of 6 entries; the loss is 0."
    assert stop.tensor == "batch" and str(stop).startswith(told)
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def test_an_output() -> None:
    stop = stopped(nn.Sequential(net(), _Pointwise(lambda x: x * 1e38 * 1e38)), batches())
    assert str(stop) == "update 1: the output is the first that is not finite, in 16 of 16 entries; the loss is nan"


def test_a_loss_alone() -> None:
    """Squares of finite numbers that are beyond the largest float."""
    stop = stopped(nn.Linear(3, 1), batches((torch.ones(2, 3), torch.full((2, 1), 1e30)), after=0))
    assert (stop.tensor, str(stop)) == (
        "loss",
        "update 1: the loss is the first that is not finite, in 1 of 1 entries; the loss is inf",
    )


@pytest.mark.parametrize("where", [0, 1])
def test_a_gradient(where: int) -> None:
    """sqrt has an infinite slope at 0, so the gradient breaks below it and not above."""
    layers: list[nn.Module] = [nn.Linear(3, 3), nn.Linear(3, 3)]
    nn.init.zeros_(layers[where].weight)
    nn.init.zeros_(layers[where].bias)
    layers.insert(where + 1, _Pointwise(lambda x: x.abs().sqrt()))
    model = nn.Sequential(*layers, nn.Linear(3, 2))
    stop = stopped(model, batches())
    # The backward pass comes to the broken layer's bias first.
    assert stop.tensor == f"gradient of {where}.bias" and "the loss is 0." in str(stop)
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def test_a_parameter() -> None:
    stop = stopped(nn.Linear(3, 2), batches((torch.full((2, 3), 1e3), torch.arange(2)), after=0), rate=3e38)
    assert stop.tensor == "parameter weight"
    assert str(stop) == (
        "update 1: the step made 6 of 6 entries of the parameter weight not finite; its gradient was finite"
    )


def test_a_gradient_whose_squares_overflow_is_clipped() -> None:
    """Exploding gradients are what clipping is for."""
    model = nn.Linear(3, 2)
    before = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    state = State(model, torch.optim.SGD(model.parameters(), 0.5))
    train(state, iter([(torch.full((2, 3), 1e25), torch.arange(2))]), 1, clip=1.0)
    after = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert 1e24 < state.gradient_norm < 1e26
    assert float((after - before).norm()) == pytest.approx(0.5, rel=1e-4)


def test_a_norm_that_overflows() -> None:
    """Six entries of 1.5e38 each are finite, and their norm is not."""
    model = nn.Linear(3, 2)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    stop = stopped(model, batches((torch.full((2, 3), 3e38), torch.zeros(2, dtype=torch.int64)), after=0))
    assert (stop.tensor, str(stop)) == (
        "norm of the gradient",
        "update 1: the norm of the gradient is inf, of entries that are finite",
    )


class _Pointwise(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)
