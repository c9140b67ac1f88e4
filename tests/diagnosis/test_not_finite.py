"""NaN and overflow are named with their first step and layer."""

import math
import re

import numpy as np
import pytest
import torch
from torch import nn

import isornn
from isornn.cells import cell_named
from isornn.diagnosis import Monitor, findings, measure


def first(model, x, **options):
    found = findings(measure(model, x, **options))[0]
    assert found.kind == "not_finite"
    return found.sentence


def test_of_the_input():
    x = torch.randn(30, 2, 3)
    x[12, 1, 0] = x[20, 0, 0] = math.nan
    assert "first at step 13 of 30 (sequence 2 of 2)" in first(nn.GRU(3, 5), x)


def test_the_steps_are_those_of_the_sequence():
    assert measure(nn.GRU(3, 5), torch.full((30, 2, 3), math.nan)).length == 30


def test_of_a_cell_called_step_by_step():
    class ByHand(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(3, 5)

        def forward(self, x):
            h = None
            for row in x:
                h = self.cell(row, h)
            return h

    x = torch.randn(30, 2, 3)
    x[7, 0, 1] = math.inf
    assert "infinite, first at step 1 of 1" not in first(ByHand(), x)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_overflow_in_a_layer(layer, reverse):
    """The step is that of a loop in float32 by hand."""
    torch.manual_seed(0)
    rnn = nn.RNN(3, 8, 2, nonlinearity="relu", bidirectional=reverse)
    isornn.init.identity_(rnn)
    end = "_reverse" if reverse else ""
    with torch.no_grad():
        getattr(rnn, f"weight_hh_l{layer}{end}").mul_(30)
    x = torch.rand(60, 2, 3)
    sentence = first(rnn, x)
    place = re.search(
        r"first at step (\d+) of 60 \(sequence \d of 2\), in state h of layer (l\d(?:_reverse)?)", sentence
    )
    assert place is not None and place[2] == f"l{layer}{end}"
    assert "in float64 it is finite" in sentence and "float32 ends at 3.4e+38" in sentence
    if layer == 0:
        own = x.flip(0) if reverse else x
        h, steps = torch.zeros(2, 8), 0
        while bool(h.isfinite().all()):
            h = (own[steps] @ getattr(rnn, f"weight_ih_l0{end}").T + h @ getattr(rnn, f"weight_hh_l0{end}").T).relu()
            steps += 1
        assert int(place[1]) == steps


def test_of_the_gradient():
    def loss(output):
        return (output[0] * 0)[5].sqrt().sum() + (output[0] * 0)[9].sqrt().sum()

    sentence = first(nn.GRU(3, 5), torch.randn(20, 2, 3), target=loss)
    assert "gradient of the loss" in sentence and "going back, first at step 10 of 20 (sequence 1 of 2)" in sentence


def test_a_monitor_has_the_step_of_a_gradient():
    torch.manual_seed(0)
    model, x = nn.GRU(3, 5), torch.randn(20, 2, 3)
    with Monitor(model) as monitor:
        (model(x)[0] * 0)[9].sqrt().sum().backward()
        monitor.step()
    (line,) = monitor.record.findings
    assert line.startswith("GRU l0: The gradient that came to it is not finite, going back, first at step 10 of 20")


def test_a_monitor_goes_on_where_weights_become_nan():
    model = nn.LSTM(3, 8)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    with Monitor(model, every=1) as monitor:
        for update in range(4):
            optimiser.zero_grad()
            x = torch.randn(10, 4, 3)
            model(x * math.nan if update == 1 else x)[0].square().mean().backward()
            optimiser.step()
            monitor.step()
    (layer,) = monitor.record.layers
    assert np.isnan(layer.singular_values["f"]).all(-1).tolist() == [False, False, True, True]
    assert [bool(reason) for reason in layer.reasons] == [False, True, True, True]
    assert "not finite" in monitor.record.findings[0]


def test_a_gradient_that_overflows_has_its_step():
    torch.manual_seed(0)
    rnn = nn.RNN(3, 32)
    isornn.init.orthogonal_(rnn)
    with torch.no_grad():
        rnn.weight_hh_l0.mul_(8)
    (found,) = findings(measure(rnn, torch.randn(200, 4, 3)))
    (value,) = (text for name, text in found.evidence.items() if "overflows float32" in name)
    layer = measure(rnn, torch.randn(200, 4, 3)).layers[0]
    assert int(value.split()[0]) == pytest.approx(88.7 / layer.backward.rate.number(), rel=0.2)


def test_layers_above_are_given_outputs_that_are_no_states():
    model = isornn.nn.RNN(cell_named("t_lstm"), 8, 8, num_layers=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for layer, (gain, output) in enumerate([(1e10, 1e-9), (1e30, 1.0), (1e20, 1.0)]):
            model.gate_parameters("z", layer).input.copy_(gain * torch.eye(8))
            model.gate_parameters("o", layer).biases[0].fill_(output)  # c tanh(o) of c = 5e9 is 5
    assert "in state c of layer l2; in float64 it is finite" in first(model, torch.ones(6, 2, 8))


class WithHead(nn.Module):
    def __init__(self, made):
        super().__init__()
        self.rnn, self.head, self.made = nn.LSTM(3, 8), nn.Linear(8, 2), made

    def forward(self, x):
        return self.made(self.head(self.rnn(x)[0][-1]))


def test_of_what_is_outside_of_the_recurrent_layers():
    x, labels = torch.randn(30, 4, 3), torch.zeros(4, dtype=torch.long)
    model = WithHead(nn.Identity())
    with torch.no_grad():
        model.head.weight[1, :3] = math.nan
    assert first(model, x) == (
        "Outside of the recurrent layers, 3 of the 16 numbers in head.weight are NaN or infinite; 4 of the 8 numbers "
        "in the model's output are NaN."
    )
    of_gradient, of_weights = (one.sentence for one in findings(measure(model, x, target=labels))[:2])
    assert (
        "LSTM rnn gets NaN or infinite gradients from behind it: 32 of" in of_gradient
        and "in head.weight are NaN" in of_weights
    )
    assert first(WithHead(lambda out: torch.log(-out.square() - 1)), x).endswith("in the model's output are NaN.")
    masked = WithHead(lambda out: out.masked_fill(out > 0, -math.inf))
    assert "not_finite" not in {one.kind for one in findings(measure(masked, x))}
