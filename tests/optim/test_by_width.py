"""Rates by width: which parameters' rates fall, and that what an update changes no longer grows with the width."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from isornn.init import critical_
from isornn.nn import TRNN, parametrize_spectral_
from isornn.optim import rates_by_width


class Tagger(nn.Module):
    """Every kind of parameter: a table, two recurrent layers in two directions, a norm, a read-out."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.table = nn.Embedding(20, units)
        self.rnn = nn.LSTM(units, units, num_layers=2, bidirectional=True, batch_first=True)
        self.norm = nn.LayerNorm(2 * units)
        self.readout = nn.Linear(2 * units, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.norm(self.rnn(self.table(x))[0]))


def rates(model: nn.Module, groups: list[dict[str, Any]]) -> dict[str, float]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[one]: group["lr"] for group in groups for one in group["params"]}


def test_only_sums_over_more_inputs_get_less() -> None:
    model = Tagger(64)
    found = rates(model, rates_by_width(model, Tagger(16), 0.01))
    assert found.keys() == dict(model.named_parameters()).keys()
    for name, rate in found.items():
        matrix = name.startswith("rnn.weight") or name == "readout.weight"
        assert rate == (0.0025 if matrix else 0.01), name


def test_the_first_input_matrix_keeps_its_rate() -> None:
    model = TRNN(3, 100)
    assert rates(model, rates_by_width(model, TRNN(3, 10), 0.1)) == dict.fromkeys(dict(model.named_parameters()), 0.1)
    other = nn.ConvTranspose1d(30, 7, 2)
    assert rates(other, rates_by_width(other, nn.ConvTranspose1d(10, 7, 2), 0.3))["weight"] == pytest.approx(0.1)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM])
def test_singular_values_keep_their_rate_and_bases_do_not(kind: Callable[[int, int], nn.Module]) -> None:
    """Of one block and of a stack of them, where the values are a matrix that multiplies nothing."""
    model, base = (parametrize_spectral_(kind(3, units), "weight_hh_l0") for units in (40, 10))
    found = rates(model, rates_by_width(model, base, 0.1))
    of_factors = [found[f"parametrizations.weight_hh_l0.original{place}"] for place in range(3)]
    assert of_factors == [0.025, 0.1, 0.025]


@pytest.mark.parametrize(
    "wrap", [nn.DataParallel, partial(torch.compile, backend="eager")], ids=["parallel", "compiled"]
)
def test_wrapped_models_are_compared_with_plain_ones(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model, base = Tagger(64), Tagger(16)
    expected = rates(model, rates_by_width(model, base, 0.01))
    assert rates(model, rates_by_width(wrap(model), base, 0.01)) == expected
    assert rates(model, rates_by_width(model, wrap(base), 0.01)) == expected


def test_a_model_of_the_same_width_has_one_rate_and_frozen_parameters_none() -> None:
    model = Tagger(8)
    model.table.weight.requires_grad_(False)
    (group,) = rates_by_width(model, Tagger(8), 0.5)
    assert group["lr"] == 0.5 and len(group["params"]) == len(list(model.parameters())) - 1


@pytest.mark.parametrize(("by_width", "growth"), [(False, (4.0, 16.0)), (True, (0.5, 2.0))])
def test_what_an_update_changes_grows_with_the_width_unless_rates_fall(
    by_width: bool, growth: tuple[float, float]
) -> None:
    """Of the recurrent part of pre-activations; Adam's first step is the rate times the gradient's sign."""

    def changed(units: int) -> float:
        torch.manual_seed(0)
        model, base = (nn.GRU(4, one, batch_first=True) for one in (units, 32))
        x = torch.randn(16, 20, 4)
        critical_(model, batch=x, generator=torch.Generator().manual_seed(0))
        groups = rates_by_width(model, base, 1e-3) if by_width else [{"params": [*model.parameters()], "lr": 1e-3}]
        optimizer = torch.optim.Adam(groups)
        before = model.weight_hh_l0.detach().clone()
        states = model(x)[0]
        states[:, -1].sum().backward()
        optimizer.step()
        return float(((model.weight_hh_l0.detach() - before) @ states[:, -1].detach().T).square().mean().sqrt())

    low, high = growth
    assert low < changed(256) / changed(32) < high


@pytest.mark.parametrize(
    ("base", "rate", "said"),
    [
        (nn.LSTM(2, 4), 0.1, "only one of the two models has bias_hh_l1"),
        (nn.LSTM(2, 4, num_layers=2), 0.0, "rate: 0.0 is not allowed"),
        (nn.LSTM(2, 4, num_layers=2), float("nan"), "rate: nan is not allowed"),
        (nn.LSTM(2, 4, num_layers=2), float("inf"), "rate: inf is not allowed"),
        (nn.LSTM(2, 4, num_layers=2), "0.1", "rate: '0.1' is not allowed"),
    ],
)
def test_refusals(base: nn.Module, rate: float, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        rates_by_width(nn.LSTM(2, 8, num_layers=2), base, rate)
