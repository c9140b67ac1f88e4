"""Losses and metrics against sums written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from isornn.tasks import NO_TARGET
from isornn.training import evaluate
from isornn.training.evaluation import task_loss


def test_padding_counts_nowhere() -> None:
    torch.manual_seed(0)
    output, target = torch.randn(5, 2, 3), torch.randint(3, (5, 2))
    target[3:, 1] = NO_TARGET
    kept = [(t, b) for t in range(5) for b in range(2) if target[t, b] != NO_TARGET]
    losses = [-output[t, b].log_softmax(-1)[target[t, b]].item() for t, b in kept]
    mean = sum(losses) / 8
    assert task_loss(output, target).item() == pytest.approx(mean)
    told = evaluate(nn.Identity(), [(output, target)])
    right = sum(int(output[t, b].argmax() == target[t, b]) for t, b in kept) / 8
    expected = {"loss": mean, "accuracy": right, "bits": mean / math.log(2), "perplexity": math.exp(mean)}
    assert told == pytest.approx(expected)


def test_values_have_their_squared_error() -> None:
    output, target = torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [5.0]])
    assert task_loss(output, target).item() == 2.5
    assert evaluate(nn.Identity(), [(output, target)]) == {"loss": 2.5}


def test_batches_of_unequal_size_count_by_their_targets() -> None:
    batches = [(torch.tensor([[1.0]]), torch.tensor([[0.0]])), (torch.zeros(3, 1), torch.full((3, 1), 3.0))]
    assert evaluate(nn.Identity(), batches)["loss"] == 7.0


def test_a_perplexity_beyond_all_floats_is_left_out() -> None:
    told = evaluate(nn.Identity(), [(torch.tensor([[[0.0, 1e4]]]), torch.tensor([[0]]))])
    assert told["loss"] == 1e4 and "perplexity" not in told and told["bits"] == pytest.approx(1e4 / math.log(2))


@pytest.mark.parametrize("mode", [True, False])
def test_the_model_is_evaluated_without_dropout_and_left_as_it_was(mode: bool) -> None:
    model = nn.Dropout(0.5).train(mode)
    x = torch.eye(4)
    assert evaluate(model, [(x, torch.arange(4))])["accuracy"] == 1.0
    assert model.training is mode


def test_a_part_that_is_frozen_stays_so_also_after_an_error() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4))
    model[0].eval()
    evaluate(model, [(torch.eye(4), torch.arange(4))])
    assert [module.training for module in model.modules()] == [True, False, True]
    with pytest.raises(RuntimeError):
        evaluate(model, [(torch.eye(3), torch.arange(3))])
    assert [module.training for module in model.modules()] == [True, False, True]


def test_nothing_has_no_mean() -> None:
    with pytest.raises(ValueError, match="batches: there is no target"):
        evaluate(nn.Identity(), [])
