"""The start that a layer has is named, whoever drew it; already a few updates leave none."""

import pytest
import torch
from torch import nn

import isornn.init
from isornn import diagnose
from isornn.cells import Cell, Input, Reads, cell_named
from isornn.diagnosis import measure
from isornn.diagnosis.known_starts import known_start
from isornn.diagnosis.weights import weight_facts
from isornn.init import critical_
from isornn.nn.gate_tensors import recurrent_layers


def names(model):
    found = [known_start(layer, weight_facts(layer)) for layer in recurrent_layers(model)]
    return {None if start is None else start.name for start in found}


@pytest.mark.parametrize("name", ["orthogonal", "glorot", "identity"])
def test_layers_without_biases(name):
    torch.manual_seed(0)
    assert names(nn.LSTM(5, 64, bias=False)) == {"torch"}
    assert names(getattr(isornn.init, f"{name}_")(nn.GRU(5, 64, bias=False))) == {name}


TIMED = {"chrono", "doubled_chrono", "critical"}
DRAWN = (
    *("standard", "orthogonal", "glorot", "identity", "uniform_gate", "chrono"),
    *("stacked_orthogonal", "forget_bias_3", "forget_bias_3_to_6", "doubled_chrono", "critical"),
)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("name", DRAWN)
def test_starts_that_isornn_draws(name, kind, seed):
    model = kind(5, 64, num_layers=2)
    draw = getattr(isornn.init, f"{name}_")
    draw(model, *[200] * (name in TIMED), generator=torch.Generator().manual_seed(seed))
    assert names(model) == {name}


def neuralhydrology(lstm):
    lstm.bias_hh_l0[64:128] = 3


def cleanrl(lstm):
    for name, parameter in lstm.named_parameters():
        nn.init.constant_(parameter, 0) if "bias" in name else nn.init.orthogonal_(parameter, 1.0)


def speechbrain(lstm):
    nn.init.orthogonal_(lstm.weight_hh_l0)


def sktime(lstm):
    for name, parameter in lstm.named_parameters():
        if "weight_ih" in name:
            nn.init.xavier_uniform_(parameter)
        elif "weight_hh" in name:
            nn.init.orthogonal_(parameter)
        else:
            parameter.fill_(0)


def nemo(lstm):
    for name, parameter in lstm.named_parameters():
        if "bias" in name:
            parameter.fill_(0)
            parameter[64:128] = torch.log(nn.init.uniform_(parameter[:64], 1, 99))
            parameter[:64] = -parameter[64:128]


def nemo_forget_bias(lstm):
    lstm.bias_ih_l0[64:128], lstm.bias_hh_l0[64:128] = 1, 0


@pytest.mark.parametrize(
    ("host", "name", "used"),
    [
        (lambda lstm: None, "torch", "the default of torch"),
        (neuralhydrology, "forget_bias_3", "neuralhydrology"),
        (cleanrl, "stacked_orthogonal", "CleanRL"),
        (speechbrain, "stacked_orthogonal", "speechbrain"),
        (sktime, "stacked_orthogonal", "sktime"),
        (nemo, "doubled_chrono", "NeMo"),
        (nemo_forget_bias, "forget_bias_1", "NeMo"),
    ],
)
def test_starts_as_their_libraries_draw_them(host, name, used):
    torch.manual_seed(0)
    lstm = nn.LSTM(5, 64)
    with torch.no_grad():
        host(lstm)
    report = diagnose(lstm, torch.randn(20, 4, 5))
    start = report.diagnosis.layers[0].start
    assert start.name == name and used in start.used
    assert f"start of LSTM l0: {name}: " in " ".join(str(report).split())
    assert report.to_json()["layers"][0]["start"]["name"] == name


def test_chrono_in_both_bias_vectors_says_for_how_many_steps():
    torch.manual_seed(0)
    lstm = nn.LSTM(5, 64)
    with torch.no_grad():
        nemo(lstm)
        longest = max(float(bias[64:128].exp().max()) for bias in (lstm.bias_ih_l0, lstm.bias_hh_l0))
    start = diagnose(lstm, torch.randn(20, 4, 5)).diagnosis.layers[0].start
    assert f"for some {1 + longest:.0f} steps in both" in start.law and 90 < longest < 99


@pytest.mark.parametrize(("hidden", "length"), [(16, 60), (16, 500), (32, 60), (128, 60)])
def test_chrono_is_not_named_doubled(hidden, length):
    for seed in range(20):
        torch.manual_seed(seed)
        assert names(isornn.init.chrono_(nn.LSTM(5, hidden), length)) == {"chrono"}


class TwoRetain(Cell):
    """What it retains is the product of two gates."""

    name = "two_retain"
    gates = {"a": Reads(), "b": Reads(), "n": Reads()}

    def update(self, s, u, x):
        kept = torch.sigmoid(u.a) * torch.sigmoid(u.b)
        return {"h": kept * s.h + (1 - kept) * torch.tanh(u.n)}


def test_two_gates_that_retain_are_not_two_bias_vectors_of_one():
    for seed in range(3):
        torch.manual_seed(seed)
        assert "doubled_chrono" not in names(isornn.init.chrono_(isornn.nn.RNN(TwoRetain(), 5, 64), 60))


def test_torchs_start_is_never_missed():
    for seed in range(100):
        torch.manual_seed(seed)
        assert names(nn.LSTM(5, 32)) == {"torch"}


@pytest.mark.parametrize("name", ["standard", "stacked_orthogonal", "forget_bias_3", "critical", "torch"])
def test_updates_leave_no_start(name):
    torch.manual_seed(0)
    model = nn.LSTM(5, 64)
    if name != "torch":
        getattr(isornn.init, f"{name}_")(model, *[100] * (name in TIMED))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(3):
        optimiser.zero_grad()
        model(torch.randn(10, 4, 5))[0].square().mean().backward()
        optimiser.step()
    assert names(model) == {None}
    assert "none known: trained" in str(diagnose(model, torch.randn(20, 4, 5)))


@pytest.mark.parametrize("name", ["t_rnn", "t_lstm", "minimal", "min_gru", "min_lstm", "mgu", "lstm_coupled"])
def test_torchs_own_draw_in_layers_of_other_cells(name):
    torch.manual_seed(0)
    layer = isornn.nn.RNN(isornn.cells.cell_named(name), 5, 64)
    assert names(layer) == {"torch"}
    layer(torch.randn(20, 4, 5))[0].sum().backward()
    torch.optim.SGD(layer.parameters(), 0.1).step()
    assert names(layer) == {None}


@pytest.mark.parametrize("name", ["minimal", "mgu", "cifg", "lstm", "gru"])
def test_the_critical_start_of_gates_that_retain_and_write(name):
    torch.manual_seed(0)
    model = critical_(isornn.nn.RNN(cell_named(name), 3, 32), 8, input=Input())
    report = isornn.diagnose(model, torch.randn(300, 8, 3), theory=False)
    (layer,) = report.diagnosis.layers
    assert layer.start is not None and layer.start.name == "critical"
    if any(finding.kind == "vanishing" for finding in report.findings):
        assert any("drawn again" in line for line in report.fix_())
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(3):
        model(torch.randn(50, 8, 3))[0].square().sum().backward()
        optimiser.step()
    assert measure(model, torch.randn(20, 8, 3), theory=False).layers[0].start is None
