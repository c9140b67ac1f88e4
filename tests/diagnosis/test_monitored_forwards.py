"""A monitor of modules whose forward is the user's own."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import isornn
from isornn.diagnosis import Monitor, measure
from isornn.diagnosis.training_step import NOT_CALLED
from monitored_models import B, D, N, T


class Output(nn.LSTM):
    def forward(self, x):  # type: ignore[override]
        return super().forward(x)[0]


class OutputOfOurs(isornn.nn.LSTM):
    def forward(self, x):  # type: ignore[override]
        return super().forward(x)[0]


class Halves(nn.GRU):
    """Calls its class's forward twice, and gives the second its state."""

    def forward(self, x):  # type: ignore[override]
        first, state = super().forward(x[: T // 2])
        return torch.cat([first, super().forward(x[T // 2 :], state)[0]])


class Normalised(isornn.nn.PeepholeLSTM):
    def forward(self, x, hx=None):  # type: ignore[override]
        out, last = super().forward(x, hx)
        return nn.functional.layer_norm(out, (N,)), last


class Failing(isornn.nn.GRU):
    fails = False

    def forward(self, x):  # type: ignore[override]
        out = super().forward(x)[0]
        if self.fails:
            raise ArithmeticError
        return out


KINDS = (Output, OutputOfOurs, Halves, Normalised, Failing)
every_kind = pytest.mark.parametrize("kind", KINDS)


def made(kind):
    torch.manual_seed(0)
    return kind(D, N), torch.randn(T, B, D)


def loss_of(result):
    return (result[0] if isinstance(result, tuple) else result)[-1].square().sum()


@every_kind
def test_its_gradients_are_those_of_the_layer_of_its_class(kind):
    rnn, x = made(kind)
    with Monitor(rnn) as monitor:
        loss_of(rnn(x)).backward()
        monitor.step()
    (found,) = monitor.record.layers
    (expected,) = measure(rnn, x, target=loss_of).layers
    assert found.reasons == ("",) and expected.loss is not None
    assert np.allclose(found.loss["all"][0], expected.loss.log_norm["all"].numpy(), atol=1e-5)


@every_kind
def test_training_is_the_same_to_the_bit(kind):
    rnn, x = made(kind)
    twin = copy.deepcopy(rnn)
    before = {name: dict(vars(part)) for name, part in rnn.named_modules()}
    gradients = []
    with Monitor(rnn), Monitor(rnn):
        for model in (rnn, twin):
            loss_of(model(x)).backward()
            gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert {name: dict(vars(part)) for name, part in rnn.named_modules()} == before


def test_a_call_that_fails_is_forgotten():
    rnn, x = made(Failing)
    with Monitor(rnn) as monitor:
        rnn.fails = True
        with pytest.raises(ArithmeticError):
            rnn(x)
        rnn.fails = False
        loss_of(rnn(x)).backward()
        monitor.step()
    assert monitor.record.layers[0].reasons == ("",)
    assert torch.overrides._get_current_function_mode() is None


def test_a_replica_of_data_parallel_training_is_left_out():
    rnn, x = made(nn.GRU)
    with Monitor(rnn) as monitor:
        replica = rnn._replicate_for_data_parallel()
        replica._parameters = dict(rnn._parameters)
        replica(x)
        monitor.step()
    assert monitor.record.layers[0].reasons == (NOT_CALLED,)
