"""Matrices that can have been drawn, and trained ones, which cannot."""

import copy

import pytest
import torch
from torch import nn

import isornn
from isornn.diagnosis.drawn import can_be_drawn
from isornn.diagnosis.weights import untrained_evidence, weight_facts
from isornn.nn.gate_tensors import recurrent_layers

SHAPES = [(8, 8), (32, 32), (128, 128), (64, 1), (64, 4), (96, 28)]
DRAWS = {
    "uniform": lambda w: nn.init.uniform_(w, -0.08, 0.08),
    "normal": lambda w: nn.init.normal_(w, 0, 0.3),
    "glorot": nn.init.xavier_uniform_,
    "orthogonal": nn.init.orthogonal_,
    "zeros": nn.init.zeros_,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("draw", DRAWS)
def test_draws_are_recognised(draw, shape):
    torch.manual_seed(0)
    assert all(can_be_drawn(DRAWS[draw](torch.empty(shape))) for _ in range(40))


class Recall(nn.Module):
    """Recalls the sum of two inputs."""

    def __init__(self, kind):
        super().__init__()
        self.rnn, self.out = kind(5, 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


def trained(kind, updates, after):
    torch.manual_seed(0)
    model = Recall(kind)
    after(model.rnn)
    biases = [bias for name, bias in model.rnn.named_parameters() if "bias" in name]
    for bias in biases:
        nn.init.zeros_(bias).requires_grad_(False)
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 5e-3)
    for _ in range(updates):
        x = torch.randn(32, 20, 5)
        loss = (model(x).squeeze(1) - x[:, -1, 0] - x[:, -2, 0]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        after(model.rnn)
    return model


@torch.no_grad()
def made_orthogonal(rnn):
    left, _, right = torch.linalg.svd(rnn.weight_hh_l0, full_matrices=False)
    rnn.weight_hh_l0.copy_(left @ right)


@pytest.mark.parametrize(
    ("kind", "after"), [(nn.LSTM, lambda _: None), (nn.RNN, lambda _: None), (nn.RNN, made_orthogonal)]
)
def test_a_trained_layer_keeps_its_weights_where_biases_are_frozen(kind, after):
    model = trained(kind, 150, after)
    (layer,) = recurrent_layers(model.rnn)
    assert weight_facts(layer).not_drawn and untrained_evidence(weight_facts(layer)) is None
    before = copy.deepcopy(model.state_dict())
    isornn.diagnose(model, torch.randn(16, 100, 5)).fix_()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    (fresh,) = recurrent_layers(trained(kind, 0, after).rnn)
    assert untrained_evidence(weight_facts(fresh)) is not None


def test_inputs_are_normalised_before_layers_are_redrawn():
    torch.manual_seed(0)
    model = nn.Sequential(Recall(nn.LSTM))
    batch = 1e-3 * torch.randn(16, 100, 5)
    before = copy.deepcopy(model.state_dict())
    report = isornn.diagnose(model, batch)
    assert [finding.kind for finding in report.findings] == ["unnormalised_input"]
    report.fix_()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    stack = nn.LSTM(5, 32, 2, batch_first=True)
    done = isornn.diagnose(stack, batch).fix_()
    assert any("LSTM l1: left alone (default_start): normalise the inputs of LSTM l0 first" in line for line in done)
    report = isornn.diagnose(model, batch / batch.std((0, 1)))
    assert [finding.kind for finding in report.findings] == ["default_start"]
