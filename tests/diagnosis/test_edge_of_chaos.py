"""Gradients that recurrent matrices pass on by chance are told from those that gates keep."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import isornn
from isornn.cells.catalogue import CELLS, cell_named
from isornn.diagnosis import findings, fix_, measure
from isornn.diagnosis.json_record import plain, single
from isornn.diagnosis.states import _through_gates


def kinds(model, x, length=None):
    return [finding.kind for finding in findings(measure(model, x, length))]


def forget_bias_3(seed, width):
    torch.manual_seed(seed)
    lstm = nn.LSTM(5, width)
    with torch.no_grad():
        lstm.bias_hh_l0[width : 2 * width] = 3
    return lstm


@pytest.mark.parametrize("seed", range(4))
def test_neuralhydrologys_start_is_at_the_edge(seed):
    model, x = forget_bias_3(seed, 128), torch.randn(365, 8, 5)
    found = findings(measure(model, x))
    assert [finding.kind for finding in found] == ["edge_of_chaos"]
    assert "gradient through gates alone after 365 steps relative to one" in found[0].evidence
    assert fix_(model, found, x, generator=torch.Generator().manual_seed(0))
    assert kinds(model, x) == []


def test_what_gates_keep_is_the_product_of_their_values():
    """Of a loop by hand: the root mean square over units and sequences of the product of f over all steps but one."""
    torch.manual_seed(0)
    cell, x = nn.LSTMCell(3, 7).double(), torch.randn(30, 4, 3, dtype=torch.float64)
    lstm = nn.LSTM(3, 7).double()
    for name, value in cell.named_parameters():
        getattr(lstm, f"{name}_l0").data.copy_(value)
    h = c = torch.zeros(4, 7, dtype=torch.float64)
    log = torch.zeros(4, 7, dtype=torch.float64)
    for row in x:
        u = row @ cell.weight_ih.T + cell.bias_ih + h @ cell.weight_hh.T + cell.bias_hh
        log += nn.functional.logsigmoid(u[:, 7:14]).detach()
        h, c = cell(row, (h, c))
    expected = (2 * 49 * log / 30).exp().mean().log() / 2
    found = measure(lstm, x, 50).layers[0].memory.through_gates
    assert found.number() == pytest.approx(float(expected), rel=1e-9)
    assert found.error() > 0


@pytest.mark.parametrize("name", [name for name in CELLS if name != "vanilla"])
@pytest.mark.parametrize("steps", [30, 365])
@pytest.mark.parametrize("data", ["noise", "slow", "symbols"])
def test_critical_starts_keep_gradients_by_gates(name, steps, data):
    torch.manual_seed(1)
    x = torch.randn(steps, 6, 5)
    if data == "slow":
        x = x.cumsum(0) / 10
    elif data == "symbols":
        x = nn.functional.one_hot(torch.randint(0, 5, (steps, 6)), 5).float()
    model = isornn.nn.RNN(cell_named(name), 5, 48)
    isornn.init.critical_(model, steps, batch=x)
    assert "edge_of_chaos" not in kinds(model, x)
    layer = measure(model, x).layers[0]
    assert layer.memory.through_gates.number() > -2


@pytest.mark.parametrize("start", ["standard", "chrono"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("steps", [20, 40, 100, 365])
def test_ordered_states_are_not_at_the_edge(start, kind, steps):
    torch.manual_seed(1)
    model = kind(5, 64)
    getattr(isornn.init, f"{start}_")(model, *[steps] * (start == "chrono"))
    assert "edge_of_chaos" not in kinds(model, torch.randn(steps, 6, 5))


def test_orthogonal_networks_without_gates_have_no_other_way():
    model = isornn.init.orthogonal_(nn.RNN(5, 64, nonlinearity="relu"))
    isornn.init.identity_(model)
    assert kinds(model, torch.randn(200, 6, 5) / 10) == []
    assert kinds(isornn.init.critical_(nn.RNN(5, 64), 200), torch.randn(200, 6, 5)) == []


def test_a_trained_layer_is_not_called():
    """What training has made of the recurrent matrices is no chance."""
    model, x = forget_bias_3(0, 64), torch.randn(365, 8, 5)
    assert kinds(model, x) == ["edge_of_chaos"]
    with torch.no_grad():
        model.weight_hh_l0 += 1e-4 * torch.randn_like(model.weight_hh_l0)
        for gate in (0, 1):
            model.bias_hh_l0[gate * 64 : gate * 64 + 64] += 0.3 * torch.randn(64)
    assert kinds(model, x) == []


def test_a_second_state_whose_gate_is_open_throughout_keeps_the_gradient():
    diagnosis = measure(forget_bias_3(0, 64), torch.randn(365, 8, 5))
    (layer,) = diagnosis.layers
    assert "edge_of_chaos" in [finding.kind for finding in findings(diagnosis)]
    second = replace(layer.memory, state="k", through_gates=single(0.0))  # ln of 1, which is kept as it is
    memory = replace(layer.memory, others=(second,))
    assert "edge_of_chaos" not in [
        finding.kind for finding in findings(replace(diagnosis, layers=(replace(layer, memory=memory),)))
    ]


def test_closed_gates_leave_the_gradient_to_recurrent_matrices():
    diagnosis = measure(forget_bias_3(0, 64), torch.randn(365, 8, 5))
    (layer,) = diagnosis.layers
    closed = _through_gates(torch.full((8, 64), -math.inf, dtype=torch.float64), 365)
    memory = replace(layer.memory, through_gates=closed)
    found = findings(replace(diagnosis, layers=(replace(layer, memory=memory),)))
    assert [finding.kind for finding in found] == ["edge_of_chaos"]
    assert "through the gates alone it would be 0." in found[0].sentence


@pytest.mark.parametrize(
    ("closed", "value", "error"), [(0, -2.0, 0.0), (1, -2.0 - math.log(2) / 2, None), (2, None, None)]
)
def test_gates_that_are_0_leave_nothing_and_no_false_certainty(closed, value, error):
    per_step = torch.full((2, 3), -0.2, dtype=torch.float64)
    per_step[:closed] = -math.inf
    found = json.loads(json.dumps(plain(_through_gates(per_step, 11)), allow_nan=False))
    assert found["value"] == (None if value is None else pytest.approx(value))
    assert found["stderr"] == (None if error is None else pytest.approx(error, abs=1e-9))
    assert ("reason" in found) == (closed == 2)
