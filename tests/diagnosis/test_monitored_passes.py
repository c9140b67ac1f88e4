"""Which passes a monitor counts to the loss, of all that a model makes between two updates."""

import numpy as np
import pytest
import torch
from torch import nn

from isornn.diagnosis import Monitor
from isornn.diagnosis.training_step import NOT_REACHED
from isornn.nn import VanillaRNN
from monitored_models import B, D, N, T


def test_evaluation_accumulation_and_several_losses():
    torch.manual_seed(0)
    rnn = nn.GRU(D, N)
    x, more = torch.randn(T, B, D), torch.randn(2 * T, B, D)

    def look(run):
        with Monitor(rnn) as monitor:
            run()
            monitor.step()
        return monitor.record.layers[0]

    def once():
        rnn(x)[0][-1].sum().backward()

    def busy():
        with torch.no_grad():
            rnn(more)
        rnn(more)  # never differentiated
        once()
        rnn.eval()
        rnn(more)[0].sum().backward()  # a second pass, not heard
        rnn.train()

    def two_losses():
        last = rnn(x)[0][-1].sum()
        (0.25 * last).backward(retain_graph=True)
        (0.75 * last).backward()

    expected = look(once)
    for run in (busy, two_losses):
        found = look(run)
        assert np.allclose(found.last["h"], expected.last["h"], atol=1e-6) and found.reasons == ("",)
    assert np.array_equal(expected.loss["h"], expected.last["h"])


def test_gradients_of_inputs_are_none_of_the_losss():
    torch.manual_seed(0)
    rnn = nn.GRU(D, N)
    x = torch.randn(T, B, D, requires_grad=True)

    def look(run):
        with Monitor(rnn) as monitor:
            run(rnn(x)[0][-1].sum())
            monitor.step()
        return monitor.record.layers[0]

    def saliency(last):
        torch.autograd.grad((7 * rnn(x)[0]).sum(), x)
        torch.autograd.grad(7 * last, x, retain_graph=True)
        last.backward()

    def of_a_leaf(last):
        (7 * last).backward(inputs=[x], retain_graph=True)
        last.backward()

    def by_hand(last):
        torch.autograd.grad(last, list(rnn.parameters()))

    expected = look(torch.Tensor.backward)
    for run in (saliency, of_a_leaf, by_hand):
        found = look(run)
        assert found.reasons == ("",) and np.allclose(found.last["h"], expected.last["h"], atol=1e-6)
    assert look(lambda last: torch.autograd.grad(last, x)).reasons == (NOT_REACHED,)


def test_a_gradient_penalty_is_a_part_of_the_loss_through_the_outputs():
    """Of D(x) + (dD/dx)^2 with an output that is squared: what autograd has at the output, by a graph of its own."""
    torch.manual_seed(0)
    rnn = VanillaRNN(D, N, dtype=torch.float64)
    x = torch.randn(T, B, D, dtype=torch.float64, requires_grad=True)

    def loss(output):
        score = output[-1].square().sum()
        return score + torch.autograd.grad(score, x, create_graph=True)[0].square().sum()

    output = rnn(x)[0]
    (expected,) = torch.autograd.grad(loss(output), output)
    with Monitor(rnn) as monitor:
        loss(rnn(x)[0]).backward()
        monitor.step()
    norm = expected[-1].square().sum(-1).mean().log() / 2
    assert monitor.record.layers[0].loss["h"][0, 0] == pytest.approx(float(norm), abs=1e-6)


def test_networks_with_a_loss_each_are_all_measured():
    torch.manual_seed(0)
    nets = nn.ModuleDict({name: nn.GRU(D, N) for name in ("critic", "actor")})
    x = torch.randn(T, B, D)

    def alone(name):
        with Monitor(nets[name]) as monitor:
            nets[name](x)[0][-1].sum().backward()
            monitor.step()
        return monitor.record.layers[0]

    expected = [alone(name) for name in nets]
    with Monitor(nets) as monitor:
        nets["actor"](x)[0].detach()  # as what a generator makes is while the discriminator learns
        for net in nets.values():
            net(x)[0][-1].sum().backward()
        monitor.step()
    for found, one in zip(monitor.record.layers, expected, strict=True):
        assert found.reasons == ("",) and np.allclose(found.last["h"], one.last["h"], atol=1e-6)
