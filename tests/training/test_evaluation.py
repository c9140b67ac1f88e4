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
    assert {name: told[name] for name in expected} == pytest.approx(expected)


def test_values_have_their_squared_error() -> None:
    output, target = torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [5.0]])
    assert task_loss(output, target).item() == 2.5
    assert evaluate(nn.Identity(), [(output, target)]) == {"loss": 2.5, "loss_error": 1.5}


def test_values_behind_the_ends_of_sequences_count_nowhere() -> None:
    output, target = torch.randn(5, 2, 3, requires_grad=True), torch.randn(5, 2, 3)
    target[3:, 1] = torch.nan
    squares = torch.cat([(output - target)[:, 0], (output - target)[:3, 1]]).detach().square()
    loss = task_loss(output, target)
    assert loss.item() == pytest.approx(squares.mean().item())
    assert evaluate(nn.Identity(), [(output, target)])["loss"] == pytest.approx(squares.mean().item())
    for each in (loss, task_loss(output, target, "none").sum()):
        (gradient,) = torch.autograd.grad(each, output)
        assert bool(gradient.isfinite().all()) and not bool(gradient[3:, 1].any())


def test_values_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"target: shape \(4,\) is not allowed; .*output's, \(4, 1\)"):
        task_loss(torch.zeros(4, 1), torch.zeros(4))


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


def drawn(sequences: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and targets (T, B) of sequences that differ in level, and in how many targets they have."""
    level = torch.randn(sequences, generator=generator)
    output = torch.randn(7, sequences, 3, generator=generator)
    output[..., 0] += level
    target = torch.randint(2, (7, sequences), generator=generator)
    ends = torch.randint(1, 8, (sequences,), generator=generator)
    return output, target.masked_fill(torch.arange(7)[:, None] >= ends, NO_TARGET)


@pytest.mark.parametrize("continued", [False, True])
def test_standard_errors_are_the_spread_of_other_sequences(continued: bool) -> None:
    generator, told = torch.Generator().manual_seed(0), []
    for _ in range(400):
        parts = [drawn(40, generator)]
        if continued:  # the same sequences, so that the second batch says nothing new
            parts *= 2
        told.append(evaluate(nn.Identity(), parts, continued=continued))
    for name in ("loss", "accuracy", "bits", "perplexity"):
        spread = torch.tensor([one[name] for one in told]).std().item()
        errors = torch.tensor([one[f"{name}_error"] for one in told])
        assert errors.mean().item() == pytest.approx(spread, rel=0.12), name  # of 400 a spread is known to 4 %


def test_one_continued_sequence_has_the_error_of_its_batches() -> None:
    generator, told = torch.Generator().manual_seed(0), []
    for _ in range(400):
        parts = [drawn(1, generator) for _ in range(40)]
        told.append(evaluate(nn.Identity(), parts, continued=True))
    spread = torch.tensor([one["loss"] for one in told]).std().item()
    errors = torch.tensor([one["loss_error"] for one in told])
    assert errors.mean().item() == pytest.approx(spread, rel=0.12)  # of 400 a spread is known to 4 %


def test_an_accuracy_of_1_has_an_error_and_one_sequence_has_none() -> None:
    for batch in (10, 1000):
        found = evaluate(nn.Identity(), [(torch.eye(3)[[0] * batch], torch.zeros(batch, dtype=torch.int64))])
        assert found["accuracy"] == 1.0 and found["loss_error"] == pytest.approx(0, abs=1e-9)
        assert 1 / batch > found["accuracy_error"] > 0.8 / batch
    assert set(evaluate(nn.Identity(), [(torch.eye(3)[:1], torch.tensor([0]))])) == {"loss", "accuracy"}
