"""The record that a monitor makes: its size, its file, its summary, and the rows for a log."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from isornn.diagnosis import Monitor, TrainingRecord
from isornn.diagnosis import monitor as monitor_file
from isornn.records import RecordError
from monitored_models import MODELS, B, D, N, T, trained


def test_lengths_that_change_and_long_ones_are_kept_in_bounded_columns(tmp_path: Path):
    rnn = nn.RNN(D, N)
    with Monitor(rnn, every=1) as monitor:
        for steps in (8, 700, 3):
            rnn(torch.randn(steps, 2, D))[0].sum().backward()
            monitor.step()
    record = monitor.record
    (layer,) = record.layers
    assert layer.lags.shape == (3, 256) and layer.lags[1].max() == 700
    assert (layer.lags >= 0).sum(1).tolist() == [9, 256, 4]
    assert np.isnan(layer.loss["h"][0, 9:]).all() and np.isfinite(layer.loss["h"][0, :8]).all()
    record.save(tmp_path / "watch.npz")
    found = TrainingRecord.load(tmp_path / "watch.npz")
    assert found.iterations.tolist() == [0, 1, 2] and [p.name for p in tmp_path.iterdir()] == ["watch.npz"]
    for name, value in vars(layer).items():
        other = getattr(found.layers[0], name)
        if isinstance(value, dict):
            assert value.keys() == other.keys()
            assert all(np.array_equal(value[key], other[key], equal_nan=True) for key in value)
        elif isinstance(value, np.ndarray):
            assert np.array_equal(value, other, equal_nan=True)
        else:
            assert value == other


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"{}"])
def test_what_is_no_watch_is_refused(tmp_path: Path, content: bytes):
    file = tmp_path / "watch.npz"
    with pytest.raises(RecordError, match="not readable"):
        TrainingRecord.load(file)
    file.write_bytes(content)
    with pytest.raises(RecordError, match="not a training record"):
        TrainingRecord.load(file)
    np.savez(file, other=np.zeros(2))
    with pytest.raises(RecordError, match="not a training record"):
        TrainingRecord.load(file)
    with pytest.raises(ValueError, match=r"ending is .npz"):
        TrainingRecord(np.zeros(0), ()).save(tmp_path / "watch.json")


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(monitor_file, "ROWS", 4)
    rnn = nn.RNN(D, N)
    with Monitor(rnn, every=1) as monitor:
        for _ in range(20):
            rnn(torch.ones(3, 1, D))[0].sum().backward()
            monitor.step()
            assert len(monitor.record.iterations) <= 4
    assert np.ptp(np.diff(monitor.record.iterations)) == 0 and monitor.record.iterations[0] == 0


def test_the_summary_names_the_layer_that_fades_soonest_first_of_all():
    torch.manual_seed(0)
    rnn = nn.RNN(D, N, num_layers=2)
    with torch.no_grad():
        rnn.weight_hh_l1.mul_(0.1)
    rows: list[dict[str, float]] = []
    with Monitor(rnn, every=1, log=rows.append) as monitor:
        for steps in (T, T + 3):
            rnn(torch.randn(steps, B, D))[0][-1].sum().backward()
            monitor.step()
            if steps == T:
                assert str(monitor.record).endswith("\n1 iteration measured")
    xi = monitor.record.layer("RNN l1").xi
    first, *lines = str(monitor.record).splitlines()
    assert first == monitor.record.summary
    assert first.startswith(f"the gradient fades soonest in RNN l1: xi = {xi[1]:.2g}"[:-1])
    assert f"sequences have up to {T + 3} steps" in first and "at iteration 0" in first
    assert [line.split(":")[0] for line in lines] == ["RNN l0", "RNN l1", "2 iterations measured"]
    assert [name.split("/")[1] for name in rows[1] if name.startswith("RNN l1")][:2] == ["xi", "xi_error"]


def test_tensorboard_is_told_what_log_is(tmp_path: Path):
    told, rows = {}, list[dict[str, float]]()

    class Writer:
        def add_scalar(self, tag, value, step):
            told[tag, step] = value

    trained(MODELS["own lstm"], True, updates=2, log=rows.append, writer=Writer())
    assert [row.pop("iteration") for row in rows] == [0, 1]
    assert told == {(tag, step): value for step, row in enumerate(rows) for tag, value in row.items()}
    assert {"rnn l1/xi", "rnn l0/singular_values/f/largest", "rnn l0/ln_gradient_norm/last/t=0T"} <= rows[0].keys()
