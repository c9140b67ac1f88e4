"""The pictures of a watched training."""

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from isornn.diagnosis import LayerRecord, Monitor, TrainingRecord
from isornn.nn import SpectralRNN
from isornn.present.watching import _spectra, draw_gradients, draw_singular_values, draw_watch, normalised


def watched(model: nn.Module, *lengths: int) -> TrainingRecord:
    with Monitor(model, every=1) as monitor:
        for steps in lengths:
            model(torch.randn(steps, 2, 3))[0].square().sum().backward()
            monitor.step()
    return monitor.record


@pytest.mark.parametrize("lengths", [(5,), ()])
def test_draws_every_layer(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    record = watched(nn.LSTM(3, 4, bidirectional=True), *lengths)
    file = tmp_path / "watch.svg"
    draw_watch(record, file)
    text = file.read_text(encoding="utf-8")
    assert all(f"LSTM l0_reverse: {what}" in text for what in ("gradients", "singular values"))
    assert ("the gradient fades soonest in" in text) == bool(lengths) and ("nothing was measured" in text) != bool(
        lengths
    )
    assert ("nothing was watched" in text) == (not lengths) and list(tmp_path.iterdir()) == [file]


def test_figures_of_several_runs(tmp_path: Path) -> None:
    records = {f"m = {m}": watched(SpectralRNN(3, 4, margin=m), 6, 6) for m in (0.0, 1.5, None)}
    for draw in (draw_gradients, draw_singular_values):
        draw(records, tmp_path / "figure.svg")
        text = (tmp_path / "figure.svg").read_text(encoding="utf-8")
        assert all(title in text for title in records)
    assert "margin" in text
    with pytest.raises(ValueError, match="no layer"):
        draw_gradients({}, tmp_path / "figure.svg")


def test_what_is_drawn_is_the_recorded_norm_from_the_other_end() -> None:
    record = watched(nn.RNN(3, 4), 700, 5)
    (layer,) = record.layers
    times, values = normalised(layer)
    assert values.shape == (256, 2) and times[[0, -1]].tolist() == [0, 700]
    assert np.nanmax(values[:, 0]) == 0 >= np.nanmax(values)
    first = layer.last["h"][0]
    assert values[0, 0] == pytest.approx((first[-1] - first.max()) / np.log(10))
    assert np.isnan(values[times > 5, 1]).all() and np.isfinite(values[times <= 5, 1]).all()


def test_of_several_states_all_are_drawn_as_xi_is_fitted_to_all() -> None:
    record = watched(nn.LSTM(3, 4), 6)
    (layer,) = record.layers
    every, only_h = (layer.last[name][0] for name in ("all", "h"))
    _, values = normalised(layer)
    shown = np.log(10) * values[:, 0]
    assert shown == pytest.approx((every - every.max())[::-1])
    assert not np.allclose(shown, (only_h - only_h.max())[::-1], atol=0.1)
    labels = [axes.get_ylabel() for axes in draw_watch(record).axes]
    assert any("d(h, c)_t" in label for label in labels)


def test_gaps_are_named(tmp_path: Path) -> None:
    model = nn.ModuleDict({"idle": nn.GRU(3, 4), "used": nn.GRU(3, 4)})
    with Monitor(model) as monitor:
        model["used"](torch.randn(5, 2, 3))[0].sum().backward()
        monitor.step()
    draw_watch(monitor.record, tmp_path / "watch.svg")
    assert "not called in this update" in (tmp_path / "watch.svg").read_text(encoding="utf-8")


def test_the_band_of_singular_values_is_within_their_extremes() -> None:
    values = np.tile([0.5, 0.7, 0.1, 1.0], (3, 1))
    blank = np.full((3, 0), np.nan)
    layer = LayerRecord(
        "rnn l0", {"h": values}, {"h": np.full(3, np.inf)}, blank, {}, {}, values[:, 0], values[:, 0], ("",) * 3
    )
    _, draw = _spectra(TrainingRecord(np.arange(3), (layer,)), layer)
    axes = Figure().subplots()
    draw(axes)
    (band,) = axes.collections
    edges = np.asarray(band.get_paths()[0].vertices)[:, 1]
    assert (edges.min(), edges.max()) == (0.1, 1.0)
