"""Denormal numbers are counted in the layer's own dtype, timed on this CPU, named where they cost, and nowhere else."""

import json
import math
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from isornn.capture.calls import as_tuple
from isornn.diagnosis import Denormals, Monitor, TrainingRecord, findings, fix_, measure
from isornn.diagnosis import denormals as denormals_file
from isornn.init import critical_
from isornn.modes import denormals_flushed, flushes_denormals

T, B, D, N = 200, 4, 5, 16


def default_lstm(**options):
    torch.manual_seed(0)
    return nn.LSTM(D, N, **options), torch.randn(T, B, D)


def last_step(output):
    return output[0][-1].square().mean()


def slow_cpu(monkeypatch, seconds):
    """A clock for which a pass with denormal numbers takes ``seconds[0]``, and one without ``seconds[1]``."""
    now = [0.0]

    def clock():
        now[0] += seconds[flushes_denormals()] / 2
        return now[0]

    monkeypatch.setattr(time, "perf_counter", clock)


def test_the_share_is_that_of_autograds_own_gradient():
    model, x = default_lstm()
    found = measure(model, x, target=last_step, theory=False).layers[0].denormals
    leaf = x.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(last_step(model(leaf)), leaf)
    small = (gradient != 0) & (gradient.double().abs() < torch.finfo(torch.float32).tiny)
    assert small.any()
    assert found.gradients == pytest.approx(float(small.double().mean()), abs=1e-3)
    assert found.states == 0
    assert (found.sequences, found.steps) == (B, T)
    assert found.seconds > 0 and found.flushed_seconds > 0
    json.dumps(found.to_json(), allow_nan=False)


class Flagged(nn.LSTM):
    def forward(self, x, flag, hx=None):  # type: ignore[override]
        return super().forward(x, hx)


class Flagging(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = Flagged(D, N)

    def forward(self, x):
        return self.rnn(x, True)


def test_a_forward_that_needs_more_than_the_input_is_measured_without():
    x = default_lstm()[1]
    assert measure(Flagging(), x).layers[0].denormals is None
    model = Flagging()
    with Monitor(model) as monitor:
        last_step(model(x)).backward()
        monitor.step()
    assert monitor.record.layers[0].reasons == ("",)


def test_none_are_looked_for_in_half_precision(monkeypatch):
    monkeypatch.setattr(denormals_file, "_in_thread", lambda *_: pytest.fail("a pass was run"))
    model, x = default_lstm()
    found = measure(model.bfloat16(), x.bfloat16(), theory=False).layers[0]
    assert found.denormals is None
    assert float(found.backward.log_norm["all"][-1]) < math.log(torch.finfo(torch.bfloat16).tiny)


@pytest.mark.parametrize("sound", ["critical", "all steps are read", "short", "float64"])
def test_nothing_is_timed_where_there_are_none(sound, monkeypatch):
    monkeypatch.setattr(denormals_file, "_in_thread", lambda *_: pytest.fail("a pass was run"))
    model, x = default_lstm()
    target = last_step
    if sound == "critical":
        critical_(model, T)
    elif sound == "all steps are read":
        target = lambda output: output[0].square().mean()  # noqa: E731
    elif sound == "short":
        x = x[:60]
    else:
        model, x = model.double(), x.double()
    assert measure(model, x, target=target, theory=False).layers[0].denormals is None


def test_it_is_named_where_it_costs_and_the_line_ends_it(monkeypatch):
    model, x = default_lstm(num_layers=2)
    slow_cpu(monkeypatch, (2.0, 0.25))
    diagnosis = measure(model, x, target=last_step, theory=False)
    (found,) = [finding for finding in findings(diagnosis) if finding.kind == "denormals"]
    assert found.layer == "LSTM l0"
    assert "takes 1 s, and 0.125 s with torch.set_flush_denormal(True)" in found.sentence
    assert diagnosis.layers[0].denormals.device in found.sentence
    assert all("bar: " in value for name, value in found.evidence.items() if name != "device")
    (left,) = fix_(model, [found])
    assert (
        left.startswith("LSTM l0: left alone (denormals): it is a mode of torch") and "set_flush_denormal(True)" in left
    )
    with denormals_flushed(False):
        exec(found.remedy, {"model": model, "length": T})
        assert flushes_denormals()
        again = findings(measure(model, x, target=last_step, theory=False))
    assert "denormals" not in {finding.kind for finding in again}


@pytest.mark.parametrize(("seconds", "passes"), [((1.0, 1.0), 2), ((1.0, 1.2), 2), ((1.2, 1.0), 6), ((2.0, 1.0), 6)])
def test_passes_are_repeated_where_the_first_differ(monkeypatch, seconds, passes):
    model, x = default_lstm()
    slow_cpu(monkeypatch, seconds)
    made = []
    run = denormals_file._Pass.__call__

    def counted(own):
        made.append(flushes_denormals())
        return run(own)

    monkeypatch.setattr(denormals_file._Pass, "__call__", counted)
    measure(model, x, target=last_step, theory=False)
    assert len(made) == passes and sum(made) == passes / 2


@pytest.mark.parametrize("seconds", [(1.0, 1.0), (1.2, 1.0)])
def test_on_a_cpu_that_is_not_slow_it_is_measured_and_not_named(monkeypatch, seconds):
    model, x = default_lstm()
    slow_cpu(monkeypatch, seconds)
    diagnosis = measure(model, x, target=last_step, theory=False)
    assert diagnosis.layers[0].denormals.gradients > Denormals.MANY
    assert "denormals" not in {finding.kind for finding in findings(diagnosis)}
    one = replace(diagnosis.layers[0].denormals, gradients=0.005, flushed_seconds=1e-9)
    assert not one.costly


def test_states_that_have_decayed():
    model = nn.RNN(D, N, nonlinearity="relu", bias=False)
    with torch.no_grad():
        model.weight_hh_l0.copy_(0.5 * torch.eye(N))
    x = torch.zeros(T, B, D)
    x[0] = 1
    found = measure(model, x, theory=False).layers[0].denormals
    assert found.states == pytest.approx(23 / T * 0.5, rel=0.5)


class Stepped(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(D, N)

    def forward(self, x):
        h = torch.zeros(x.shape[1], N)
        for row in x:
            h = self.cell(row, h)
        return h


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_cells_stepped_by_hand_layouts_and_directions():
    torch.manual_seed(0)
    for model in (
        Stepped(),
        nn.GRU(D, N, batch_first=True),
        nn.GRU(D, N, 2, bidirectional=True),
        nn.LSTM(D, N, proj_size=4),
    ):
        batch_first = getattr(model, "batch_first", False)
        x = torch.randn(B, 400, D) if batch_first else torch.randn(400, B, D)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        found = (
            measure(model, x, theory=False, target=lambda output: as_tuple(output)[0].flatten()[-1]).layers[0].denormals
        )
        assert found is not None and (found.sequences, found.steps) == (B, 400)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert all(parameter.grad is None for parameter in model.parameters())


def watched(model, x, **options):
    with Monitor(model, every=1, **options) as monitor:
        for _ in range(3):
            last_step(model(x)).backward()
            monitor.step()
    return monitor.record


def test_a_monitor_says_so_once(monkeypatch, tmp_path):
    model, x = default_lstm()
    slow_cpu(monkeypatch, (2.0, 0.25))
    rows: list[dict[str, float]] = []
    record = watched(model, x, log=rows.append)
    (finding,) = record.findings
    assert finding.startswith("LSTM l0: ") and "takes 1 s, and 0.125 s" in finding
    assert [row.get("LSTM l0/denormals/flushed_seconds") for row in rows] == [0.125, None, None]
    record.save(tmp_path / "watch.npz")
    assert TrainingRecord.load(tmp_path / "watch.npz").findings == record.findings
    with denormals_flushed():
        assert watched(model, x).findings == ()
    critical_(model, T)
    assert watched(model, x).findings == ()


def interrupted(flush):
    with denormals_flushed(flush):
        assert flushes_denormals() is flush
        raise KeyboardInterrupt


@pytest.mark.parametrize("before", [False, True])
def test_the_mode_is_left_as_it_was(before):
    model, x = default_lstm()
    with denormals_flushed(before):
        measure(model, x, theory=False)
        assert flushes_denormals() is before
        watched(model, x)
        assert flushes_denormals() is before
        with pytest.raises(KeyboardInterrupt):
            interrupted(not before)
        assert flushes_denormals() is before


def numbers(value, path=""):
    if isinstance(value, dict):
        return {k: v for name, one in value.items() for k, v in numbers(one, f"{path}/{name}").items()}
    if isinstance(value, list):
        return {k: v for name, one in enumerate(value) for k, v in numbers(one, f"{path}/{name}").items()}
    return {path: value}


def test_a_diagnosis_does_not_depend_on_the_mode():
    model, x = default_lstm()
    found = []
    for flush in (False, True):
        with denormals_flushed(flush):
            found.append(numbers(measure(model, x, target=last_step, theory=True).to_json()))
    plain, flushed = found
    assert plain.keys() == flushed.keys()
    for name, value in plain.items():
        if name.endswith("seconds") or name.endswith("denormals/flushed"):
            continue
        if isinstance(value, float) and math.isfinite(value):
            assert flushed[name] == pytest.approx(value, rel=1e-6, abs=1e-12), name
        else:
            assert flushed[name] == value, name
