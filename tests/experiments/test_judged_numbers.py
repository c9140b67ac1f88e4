"""Verdicts of targets without a file of tests of their own, on numbers made up so that one knows what must come out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from isornn.cells import Gate, Input, Spec, cell_named
from isornn.experiments.reproductions import gilboa_alg1, gilboa_slowest
from isornn.experiments.reproductions.balduzzi_clipping import log_gain, useless
from isornn.experiments.target import UNTESTED, target_named
from isornn.nn import SpectralRNN
from isornn.theory import analyze
from isornn.training import SequenceModel

SYMBOLS = 100


def _clipped(**changed: tuple[bool, bool, bool]) -> dict[str, Any]:
    """Of three rates, with two seeds each, which end useless: as claimed, the LSTM at the two larger ones."""
    lost = {"LSTM": (False, True, True), "T-LSTM": (False, False, True), "T-GRU": (False, False, False)}
    lost |= {name.replace("_", "-"): each for name, each in changed.items()}

    def run(ends: bool) -> dict[str, Any]:
        loss = math.log(SYMBOLS) + (0.1 if ends else -0.1)
        return {"norms": [1.0] * 60, "losses": [loss] * 60, "gains": [0.0], "ended": None}

    cells = {
        name: {rate: [run(ends)] * 2 for rate, ends in zip(("0.1", "0.3", "1.0"), each, strict=True)}
        for name, each in lost.items()
    }
    return {"symbols": SYMBOLS, "gain_every": 50, "cells": cells}


@pytest.mark.parametrize(
    ("changed", "answer"),
    [
        ({}, "holds"),
        ({"T_LSTM": (False, True, True)}, "does not hold"),  # useless where the LSTM is
        ({"T_LSTM": (True, True, True)}, "does not hold"),
        ({"LSTM": (False, False, False)}, "does not hold"),  # the T-LSTM alone is useless
        ({"LSTM": (False, False, False), "T_LSTM": (False, False, False)}, UNTESTED),
    ],
)
def test_training_without_clipping(changed: dict[str, tuple[bool, bool, bool]], answer: str) -> None:
    assert target_named("balduzzi-clipping").judge(_clipped(**changed)).answer == answer


def test_a_run_that_is_not_finite_is_useless_however_low_its_loss() -> None:
    run = {"losses": [1.0], "ended": None}
    assert not useless(run, SYMBOLS)
    assert useless({**run, "ended": "the loss is nan"}, SYMBOLS)
    assert useless({**run, "losses": [1.0, None]}, SYMBOLS)


def test_the_gain_per_step_of_an_orthogonal_linear_network_is_one_and_of_a_scaled_one_its_scale() -> None:
    torch.manual_seed(0)
    layer = SpectralRNN(4, 4, margin=None, nonlinearity="identity")
    model = SequenceModel(layer, 4, encoder=nn.Embedding(4, 4), every_step=True)
    with torch.no_grad():
        layer.get_parameter("weight_ih_l0").copy_(torch.eye(4))
    probe = torch.randint(4, (9, 3)), torch.randint(4, (9, 3))
    assert log_gain(model, probe) == pytest.approx(0.0, abs=1e-5)
    layer.weight_hh_l0 = 0.5 * layer.weight_hh_l0
    assert log_gain(model, probe) == pytest.approx(math.log(0.5), abs=1e-5)


def _values(mean: float = 1.05, share: float = 0.4, free: float = 0.1, glorot: float = 0.6) -> dict[str, Any]:
    """Rows of figure 3, of two seeds: mean, deviation, least and largest at two times, by how full margins are."""
    margins = {"m = .001": 0.001, "m = .01": 0.01, "m = .1": 0.1, "m = 1": 1.0}
    rows = {name: [[mean, 0.0, 1 - share * m, 1 + share * m]] for name, m in margins.items()}
    rows |= {"none": [[mean, free, 0.8, 1.2]], "none, Glorot": [[1.0, glorot, 0.0, 2.0]]}
    return {name: [row, row] for name, row in rows.items()}


@pytest.mark.parametrize(
    ("cases", "answer"),
    [
        ({"permuted, SGD": _values(), "permuted, RMSprop": _values(share=1.0)}, "holds"),  # with one of the two
        ({"permuted, SGD": _values(share=1.0), "permuted, RMSprop": _values(share=1.0)}, UNTESTED),
        ({"permuted, SGD": _values(), "ordered, SGD": _values(mean=0.99)}, "does not hold"),
        ({"permuted, SGD": _values(glorot=0.05)}, "does not hold"),
    ],
)
def test_singular_values_of_figure_3(cases: dict[str, Any], answer: str) -> None:
    assert target_named("vorontsov-fig3").judge({"every": 10, "cases": cases}).answer == answer


def _spreads(**changed: list[float]) -> dict[str, Any]:
    """Of two seeds, one of which has twice the spread of the other at every margin but 0."""
    ends = {"0": [1e-7, 1e-7], ".001": [0.1, 0.2], ".1": [0.15, 0.3], "none": [0.3, 0.6]}
    ends |= {name.replace("m", ".") if name != "zero" else "0": values for name, values in changed.items()}
    return {"every": 10, "spreads": {name: [[0.0, value] for value in values] for name, values in ends.items()}}


@pytest.mark.parametrize(
    ("changed", "answer"),
    [
        ({}, "holds"),  # seeds overlap between margins, and in each the spread grows
        ({"zero": [1e-3, 1e-7]}, "does not hold"),
        ({"m1": [0.05, 0.1]}, "does not hold"),
        ({"m1": [0.15, 0.1]}, UNTESTED),
    ],
)
def test_gradients_of_figure_2(changed: dict[str, list[float]], answer: str) -> None:
    assert target_named("vorontsov-fig2").judge(_spreads(**changed)).answer == answer


@pytest.mark.parametrize(("rate", "answer"), [(0.8, "holds"), (0.95, "does not hold")])
def test_the_slowest_direction(rate: float, answer: str) -> None:
    rows = [{"kind": "as drawn", "cell": "minimal", "chi": 0.9, "rate": each} for each in (0.5, rate)]
    assert target_named("gilboa-slowest").judge({"rows": rows}).answer == answer


def test_the_mean_of_a_gate_with_a_bias_settles_at_the_gates_mean_and_later_than_the_correlation() -> None:
    """With constant gates all is exact: the mean goes as f, the second moment's own mode as f^2, which is chi."""
    f = 1 / (1 + math.exp(-1.0))
    gates = {"f": Gate(bias_mean=1.0), "z": Gate(input_var=1.0, bias_mean=1.0)}
    spec = Spec(cell_named("t_rnn"), gates, Input(1.0, 1.0))
    biased, without = (gilboa_slowest._rates("t_rnn", each, 200) for each in (spec, gilboa_slowest.centred(spec)))
    assert biased is not None and without is not None
    assert (biased["chi"], without["chi"]) == pytest.approx((f**2, f**2))
    assert biased["rate"] == pytest.approx(f, abs=0.01)
    assert without["rate"] == pytest.approx(f**2, abs=1e-4)


def test_algorithm_1_with_many_samples_is_the_fixed_point() -> None:
    spec = gilboa_alg1._SPECS["forget bias 1"]
    exact = analyze(spec).fixed_point.second_moment.number()
    found = gilboa_alg1.second_moment(spec, 20_000, 40, 10, torch.Generator().manual_seed(0))
    assert found == pytest.approx(exact, rel=0.03)
    short = gilboa_alg1.second_moment(spec, 20_000, 1, 10, torch.Generator().manual_seed(0))
    assert short < 0.9 * found  # one iteration is no stationary law


@pytest.mark.parametrize(
    ("shift", "answer"), [(0.0, "holds"), (0.03, "holds"), (0.3, "does not hold"), (0.082, "not tested at this size")]
)
def test_algorithm_1_is_accurate_where_its_bias_is_below_its_spread(shift: float, answer: str) -> None:
    errors = [shift + error for error in (-0.1, 0.0, 0.1)] * 20
    case = {"exact": 0.05, "errors": {"100": errors}, "seconds": {"10": [1.0], "100": [9.0]}}
    case |= {"kurtosis": 0.1, "largest": 4.0, "samples": 1000}
    assert target_named("gilboa-alg1").judge({"cases": {"a": case}}).answer == answer
