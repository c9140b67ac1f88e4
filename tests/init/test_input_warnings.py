"""Which features of a batch `critical_` names: of unlike sizes, with means of their own, with rare large values."""

import warnings

import pytest
import torch
from torch import nn

import isornn
from isornn.init import UnnormalisedInput, critical_
from start_batches import seeded


def raw_features(kind: str) -> torch.Tensor:
    """(B, T, D) as data come: not normalised by anyone."""
    noise = torch.randn(8, 30, 4, generator=seeded())
    if kind == "kelvin":
        return 290 + 8 * noise
    if kind == "prices and returns":
        return noise * torch.tensor([0.01, 1e4, 0.02, 0.03])
    if kind == "a year":  # the others are so large that the mean of all is not
        return torch.cat([1000 * noise[..., :3], 2020 + 0.5 * noise[..., 3:]], -1)
    if kind == "constants and flags":
        return torch.cat([noise, torch.full_like(noise[..., :1], 50.0), (noise[..., :1] < 2.6).float()], -1)
    symbols = (noise[..., 0].abs() * 40).long().clamp(max=99)  # some of 100 are rare
    return nn.functional.one_hot(symbols, 100).float() if kind == "symbols" else noise


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("kelvin", "means of up to 3[6-9] times their standard deviations"),
        ("prices and returns", r"0\.021? \(median\) to"),
        ("a year", "means of up to [34][0-9]{3} times their standard deviations"),
    ],
)
def test_features_that_are_not_normalised_are_named(kind, words):
    batch = raw_features(kind)
    with pytest.warns(UnnormalisedInput, match=f"LSTM l0: the features of its input have .*{words}.*standardise"):
        critical_(nn.LSTM(batch.shape[-1], 8, batch_first=True), batch=batch, generator=seeded())
    report = isornn.diagnose(nn.LSTM(batch.shape[-1], 8, batch_first=True), batch)
    assert "unnormalised_input" in [finding.kind for finding in report.findings]


def test_features_that_are_far_smaller_than_the_others_are_named():
    batch = torch.randn(8, 40, 6, generator=seeded())
    batch[..., [1, 4]] *= 1e-3
    with pytest.warns(UnnormalisedInput, match=r"2 of them \(1, 4, counted from 0\) are below a hundredth of that"):
        critical_(nn.LSTM(6, 8, batch_first=True), batch=batch, generator=seeded())
    report = isornn.diagnose(nn.LSTM(6, 8, batch_first=True), batch)
    assert "small_features" in [finding.kind for finding in report.findings]


@pytest.mark.parametrize("kind", ["symbols", "normalised", "constants and flags"])
def test_features_that_need_no_normalisation_are_not_named(kind):
    batch, model = raw_features(kind), nn.LSTM(raw_features(kind).shape[-1], 8, batch_first=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        critical_(model, batch=batch, generator=seeded())
    assert "unnormalised_input" not in [finding.kind for finding in isornn.diagnose(model, batch).findings]


def test_features_that_the_model_computes_of_one_number_may_vary_little():
    """``w x + b`` with |b| above 10 |w| for one feature in 20; the others have what it lacks."""
    torch.manual_seed(0)
    model, batch = (
        nn.Sequential(nn.Linear(1, 64), nn.LSTM(64, 8, batch_first=True)),
        raw_features("normalised")[..., :1],
    )
    assert (model[0].bias / model[0].weight[:, 0]).abs().max() > 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        critical_(model, batch=batch, generator=seeded())
    assert "unnormalised_input" not in [finding.kind for finding in isornn.diagnose(model, batch).findings]


def heavy_tails(kind: str) -> torch.Tensor:
    """(B, T, D) of which rare values are far larger than the others."""
    noise = torch.randn(16, 100, 3, generator=seeded())
    if kind == "volumes":
        return (2 * noise).exp()
    noise[3, 50, 1] = 1000  # one faulty measurement
    return noise


@pytest.mark.parametrize("kind", ["volumes", "a faulty measurement"])
def test_rare_values_far_beyond_the_others_are_named(kind):
    with pytest.warns(UnnormalisedInput, match="l0: the features of its input have rare values so large .* clip them"):
        critical_(nn.LSTM(3, 8, batch_first=True), batch=heavy_tails(kind), generator=seeded())


def events(kind: str) -> torch.Tensor:
    """(B, T, D) whose large values are rare, and all of a size."""
    chance, noise = (draw(32, 100, 3, generator=seeded()) for draw in (torch.rand, torch.randn))
    return {
        "flags": (chance < 0.001).float(),
        "counts": torch.poisson(torch.full((32, 100, 3), 0.001), generator=seeded()),
        "rain": torch.where(chance < 0.1, -(10 * chance).clamp(min=1e-9).log(), 0.0),
        "prices": (0.5 * noise).exp(),
        "pixels": torch.where(chance < torch.tensor([0.001, 0.2, 0.3]), chance.sqrt(), 0.0),
        "mostly padding": torch.where(torch.arange(100)[:, None] < 5, 3 + noise, 0.0),
    }[kind]


@pytest.mark.parametrize("kind", ["flags", "counts", "rain", "prices", "pixels", "mostly padding"])
def test_rare_events_are_no_rare_large_values(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        critical_(nn.LSTM(3, 8, batch_first=True), batch=events(kind), generator=seeded())
