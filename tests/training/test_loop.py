"""The loop: what it repeats, what it learns and when it stops."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import pytest
import torch
from torch import Tensor, nn

from isornn.init import chrono_
from isornn.training import NonFiniteLoss, SequenceModel, State, evaluate, train

LENGTH = 20


def signs(seed: int, batch_size: int = 32) -> Iterator[tuple[Tensor, Tensor]]:
    """Is the first of 20 numbers positive?"""
    generator = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(LENGTH, batch_size, 1, generator=generator)
        yield x, (x[0, :, 0] > 0).long()


def model(seed: int = 0) -> SequenceModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = SequenceModel(nn.LSTM(1, 16), 2)
    chrono_(made.recurrent, LENGTH, generator=torch.Generator().manual_seed(seed))
    return made


def trained(
    learner: nn.Module, batches: Iterator[tuple[Tensor, Tensor]], updates: int, rate: float = 0.01, clip: float = 1.0
) -> list[float]:
    """The losses."""
    losses: list[float] = []
    state = State(learner, torch.optim.Adam(learner.parameters(), rate))
    train(state, batches, updates, clip=clip, on_update=[lambda state: losses.append(state.loss)])
    return losses


def test_a_problem_of_twenty_steps_is_learned_and_an_untrained_model_is_at_chance() -> None:
    learner, test = model(), [next(signs(seed=9, batch_size=500))]
    assert evaluate(learner, test)["accuracy"] < 0.65
    losses = trained(learner, signs(seed=1), 150)
    assert losses[0] > 0.6 and sum(losses[-10:]) / 10 < 0.3
    assert evaluate(learner, test)["accuracy"] > 0.85


def test_two_runs_with_one_seed_are_identical_and_with_another_are_not() -> None:
    first, again, other = (trained(model(), signs(seed), 10) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_loss_that_is_not_finite_stops_before_it_spoils_the_weights() -> None:
    x, y = next(signs(1))
    stop = model()
    with pytest.raises(NonFiniteLoss, match="update 3: the batch .* the loss is nan"):
        trained(stop, iter([(x, y), (x, y), (x * torch.nan, y), (x, y)]), 4)
    assert all(bool(p.isfinite().all()) for p in stop.parameters())


def test_the_gradient_is_clipped() -> None:
    """Gradients as large as 1e6 and 1e12 give Adam's second step the same direction and size only where both are
    scaled back to norm 1."""

    def second_weight(scales: tuple[float, float]) -> float:
        line = nn.Linear(1, 2, bias=False)
        nn.init.zeros_(line.weight)
        data = iter([(torch.tensor([[scale]]), torch.tensor([1])) for scale in scales])
        trained(line, data, 2, 1e-12)
        return float(line.weight[1, 0].detach())

    # Without clipping Adam's second step is a mean of the gradients in units of their size, which here differ.
    assert second_weight((1e6, 1e12)) == pytest.approx(second_weight((1e6, 1e6)), rel=1e-3)


def test_no_more_batches_are_drawn_than_updates_made() -> None:
    drawn = iter(zip(signs(1), repeat(None)))
    trained(model(), (batch for batch, _ in drawn), 3)
    left = next(drawn)[0][0]
    stream = signs(1)
    expected = [next(stream) for _ in range(4)][3][0]
    assert torch.equal(left, expected)


@pytest.mark.parametrize("behind", [3, 4])
def test_with_as_many_updates_behind_it_or_more_nothing_is_trained(behind: int) -> None:
    learner = nn.Linear(2, 2)
    before = learner.weight.detach().clone()
    state = State(learner, torch.optim.SGD(learner.parameters(), 0.1), update=behind)
    train(state, repeat((torch.eye(2), torch.arange(2))), 3)
    assert state.update == behind and torch.equal(learner.weight, before)
