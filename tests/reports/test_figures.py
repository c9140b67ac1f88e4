"""The figures show what was measured: their points against the measurements."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from isornn.cells.min_rnn import MinLSTM
from isornn.diagnosis import Memory, measure
from isornn.diagnosis.json_record import single
from isornn.diagnosis.profiles import profile_of
from isornn.nn.rnn import RNN
from isornn.reports.decades import decades, left_after
from isornn.reports.gates import time_scales_panel
from isornn.reports.jacobian import lyapunov_panel
from isornn.reports.layer import panels
from isornn.reports.overview import overview
from isornn.reports.panel import ReportPanel, log_axis
from isornn.reports.profiles import _fit_in_words


def panels_of(layer: nn.Module, batch: torch.Tensor, **options: Any) -> dict[str, ReportPanel]:
    found = measure(layer, batch, theory=False, **options)
    return {panel.title: panel for panel in panels(found.layers[0])}


def line(panel: ReportPanel, name: str) -> tuple[np.ndarray, np.ndarray]:
    (trace,) = [trace for trace in panel.figure.data if trace.name == name]
    return np.asarray(trace.x, dtype=float), np.asarray(trace.y, dtype=float)


@pytest.fixture
def linear() -> nn.RNN:
    """A relu network of one positive unit, whose gradient falls by 0.8 each step."""
    layer = nn.RNN(1, 1, nonlinearity="relu")
    with torch.no_grad():
        for name, value in (("weight_hh_l0", 0.8), ("weight_ih_l0", 0.0), ("bias_ih_l0", 1.0), ("bias_hh_l0", 0.0)):
            getattr(layer, name).fill_(value)
    return layer


def test_a_known_decay_is_drawn(linear: nn.RNN) -> None:
    shown = panels_of(linear, torch.randn(31, 3, 1))
    for title in ("Gradient, backwards", "Nearby states, forwards"):
        lags, values = line(shown[title], "measured")
        assert values == pytest.approx((lags - 1) * math.log10(0.8), abs=1e-6)
        ends, fitted = line(shown[title], "fit")
        assert fitted == pytest.approx((ends - 1) * math.log10(0.8), abs=1e-6)
    assert left_after(measure(linear, torch.randn(31, 3, 1), theory=False).layers[0].backward, 31) == f"{0.8**30:.3g}"
    assert f"ξ = {-0.5 / math.log(0.8):.4g} " in shown["Gradient, backwards"].caption
    assert ("1", "1") in [row[:2] for row in shown["Gradient, backwards"].rows]
    jacobian = shown["Singular values of one step"]
    assert all(10 ** np.asarray(trace.y) == pytest.approx([0.8]) for trace in jacobian.figure.data)
    (growth,) = shown["Lyapunov exponents"].figure.data
    assert list(growth.y) == pytest.approx([math.log(0.8)], abs=1e-6)
    assert f"to 1/e every {-1 / math.log(0.8):.4g} steps" in shown["Lyapunov exponents"].caption


def test_the_factor_of_a_step_has_the_error_of_its_logarithm(linear: nn.RNN) -> None:
    profile = measure(linear, torch.randn(31, 3, 1), theory=False).layers[0].backward
    words = _fit_in_words(replace(profile, rate=single(math.log(0.8), 0.05)), 31)
    assert "a factor 0.800 ± 0.040 each step" in words  # 0.8 times 0.05


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (0.05, 0.03, "not distinguishable from 0"),
        (0.05, 0.02, "e-fold every 20 steps: chaos"),
        (-0.05, 0.02, "to 1/e every 20 steps"),
        (5.0, 3.0, "not distinguishable from 0"),
        (5.0, 2.0, "e-fold every 0.2 steps: chaos"),
    ],
)
def test_two_standard_errors_decide_on_chaos(linear: nn.RNN, value: float, error: float, words: str) -> None:
    layer = measure(linear, torch.randn(31, 3, 1), theory=False).layers[0]
    exponents = (single(value, error),)
    assert words in lyapunov_panel(replace(layer, lyapunov=replace(layer.lyapunov, exponents=exponents))).caption


def test_gates_and_time_constants() -> None:
    gru = nn.GRU(2, 4)
    with torch.no_grad():
        for parameter in gru.parameters():
            parameter.zero_()
        gru.bias_ih_l0[4:8] = torch.tensor([0.0, 2.0, 6.0, 12.0])
    shown = panels_of(gru, torch.randn(20, 3, 2), length=50)
    scales = (-1 / torch.tensor([0.0, 2.0, 6.0, 12.0], dtype=torch.float64).sigmoid().log()).numpy()
    (units,) = shown["Time constants of units"].figure.data
    assert np.asarray(units.x)[1:-1] == pytest.approx(scales)
    assert list(units.y) == [1.0, 1.0, 0.75, 0.5, 0.25, 0.0][: len(units.y)]
    assert "50 % of the 4 units under T / 2 = 25 steps, 0 % near T, 50 % beyond 2 T" in (
        shown["Time constants of units"].caption
    )
    bars = {trace.name: dict(zip(trace.y, trace.x, strict=True)) for trace in shown["Gates"].figure.data}
    assert bars["open, above 0.99"] == {"r": 0.0, "z": 0.5}
    assert bars["mean value"]["r"] == pytest.approx(0.5)


def test_mixed_gates_have_no_values_and_the_page_says_why() -> None:
    shown = panels_of(RNN(MinLSTM(), 2, 4), torch.randn(10, 2, 2))
    assert shown["Gates"].figure is None
    assert shown["Gates"].caption.startswith("One function of several pre-activations makes the cell's gates")
    assert shown["Time constants of units"].figure is not None


def test_what_there_is_not_has_a_reason_instead_of_a_figure(linear: nn.RNN) -> None:
    with torch.no_grad():
        linear.weight_hh_l0.zero_()
    shown = panels_of(linear, torch.randn(10, 2, 1))
    assert shown["Gates"].figure is None and shown["Gates"].caption == "The cell has no gates."
    assert shown["Time constants of units"].figure is None
    assert "no state depends on the one before" in shown["Singular values of one step"].caption
    assert shown["Lyapunov exponents"].figure is None and "nothing" in shown["Lyapunov exponents"].caption
    assert "nothing arrives" in shown["Gradient, backwards"].caption


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_short_sequences_are_drawn(steps: int) -> None:
    found = measure(nn.LSTM(2, 3, bidirectional=True), torch.randn(steps, 2, 2), theory=False)
    assert len(panels(found.layers[1])) == 7
    json.dumps(found.to_json(), allow_nan=False)
    overview(found)


def test_a_loss_of_many_steps_has_no_fit() -> None:
    gru, x = nn.GRU(2, 8), torch.randn(30, 3, 2)
    many = panels_of(gru, x, target=lambda output: output[0].square().sum())["Gradient of your loss"]
    last = panels_of(gru, x, target=lambda output: output[0][-1].square().sum())["Gradient of your loss"]
    assert "no fit" in many.caption and "fit" not in [trace.name for trace in many.figure.data]
    assert "ξ = " in last.caption and "fit" in [trace.name for trace in last.figure.data]


def test_theory_is_drawn_beside_it() -> None:
    layer = nn.RNN(8, 64)
    (found,) = measure(layer, torch.randn(40, 4, 8), theory=True).layers
    first = panels(found)[0]
    untied = found.predicted.untied
    assert untied is not None and found.predicted.tied is not None
    lags, values = line(first, "theory, untied")
    profile = untied.profile.numpy()
    assert values == pytest.approx(np.log10(profile[lags.astype(int)] / profile[1]) / 2)
    lags, values = line(first, "theory, tied")
    assert values == pytest.approx((lags - 1) * found.predicted.tied.lyapunov.number() / math.log(10))


def test_far_below_the_range_of_floats() -> None:
    profile = profile_of({"all": -50.0 * torch.arange(30, dtype=torch.float64).unsqueeze(1)})
    assert decades(profile)[29] == pytest.approx(-28 * 50 / math.log(10))
    assert log_axis(-630, 0)["ticktext"][-1] == "1"


def test_the_overview_has_a_colour_a_layer() -> None:
    found = measure(nn.GRU(2, 4, num_layers=2), torch.randn(20, 3, 2), theory=False)
    named = [trace.name for trace in overview(found).data if trace.showlegend]
    assert named == ["GRU l0", "GRU l1"]


def test_the_drawn_share_of_units_is_that_of_the_time_constants():
    constants = torch.tensor([1.25, 1.5, 1.75, 1.75], dtype=torch.float64)
    share = single(1.0)
    (curve,) = time_scales_panel(Memory("f", 1000, constants, share, share, share, "c")).figure.data
    assert curve.line.shape == "vh"
    for t in (1.1, 1.3, 1.6, 1.8, 100.0):
        # Of a "vh" line the value between two points is that of the second.
        drawn = curve.y[np.searchsorted(curve.x, t)]
        assert drawn == pytest.approx(float((constants >= t).double().mean()))
