"""What is measured along a replay, against routes of its own: autograd through torch's layers, dense matrices."""

import json

import pytest
import torch
from torch import nn

import isornn
from isornn.diagnosis.backward import LastOutput, gradient_norms
from isornn.diagnosis.capture import run
from isornn.diagnosis.heard import heard
from isornn.diagnosis.layers import recurrent_modules
from isornn.diagnosis.replaying import replayed


def replay_of(layer, x):
    (module,) = recurrent_modules(layer)
    calls = run(layer, [module], x, None).calls[layer]
    return replayed(module, heard(module, calls))[-1].replay


def first_state(layer, batch, hidden):
    zeros = torch.zeros(1, batch, hidden, dtype=torch.float64)
    return (zeros, zeros) if isinstance(layer, nn.LSTM) else zeros


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_every_torch_layer_from_end_to_end(kind):
    report = isornn.diagnose(kind(3, 8), torch.randn(40, 4, 3), theory=False)
    (layer,) = report.layers
    assert layer.place.kind == kind.__name__ and layer.place.hidden == 8 and layer.place.steps == 40
    assert 0 < layer.backward.xi.number() < 5 and 0 < layer.forward.xi.number() < 5
    assert layer.lyapunov.exponents[0].number() < 0
    json.dumps(report.to_json(), allow_nan=False)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_the_backward_profile_is_autograds(kind):
    """The layer cut in two at every step: the state between is a leaf, the rest is torch's own layer."""
    torch.manual_seed(0)
    layer, x = kind(3, 6, dtype=torch.float64), torch.randn(150, 2, 3, dtype=torch.float64)
    replay = replay_of(layer, x)
    cotangent = LastOutput.drawn(replay, torch.Generator().manual_seed(0))
    norms = gradient_norms(replay, cotangent)
    for time in (0, 1, 63, 64, 65, 100, 149):
        _, state = layer(x[:time]) if time else (None, first_state(layer, 2, 6))
        states = [part.detach().requires_grad_(True) for part in (state if isinstance(state, tuple) else (state,))]
        out, _ = layer(x[time:], tuple(states) if len(states) > 1 else states[0])
        found = torch.autograd.grad((out[-1] * cotangent.vectors).sum(), states)
        for name, gradient in zip(replay.step.cell.states, found, strict=True):
            expected = gradient[0].norm(dim=-1)
            assert ((norms[name][time].exp() - expected).abs() <= 1e-6 * expected).all()
