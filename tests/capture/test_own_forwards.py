"""Modules whose forward is the user's own, or is called by its class."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import isornn
from isornn.diagnosis import measure
from isornn.init import LayerStart, critical_

T, B, D, N = 20, 4, 3, 6


class OutputAlone(nn.LSTM):
    def forward(self, x):  # type: ignore[override]
        out, _ = super().forward(x)
        return out


class LastOutput(nn.RNN):
    def forward(self, x):  # type: ignore[override]
        return super().forward(x)[0][-1]


class LastState(nn.GRU):
    def forward(self, x):  # type: ignore[override]
        return super().forward(x)[1][-1]


class Masked(nn.GRU):
    """Its first argument is not the input."""

    def forward(self, mask, x, scale=1.0):  # type: ignore[override]
        return scale * super().forward(mask * x)[0]


class BatchFirstByHand(nn.GRU):
    def forward(self, x):  # type: ignore[override]
        out, last = super().forward(x.transpose(0, 1))
        return out.transpose(0, 1), last


class Residual(nn.GRU):
    def forward(self, x):  # type: ignore[override]
        out, last = super().forward(x)
        return x + out, last


class ByItsClass(nn.LSTM):
    def forward(self, x):  # type: ignore[override]
        return nn.LSTM.forward(self, x)[0]


class InPieces(nn.GRU):
    def forward(self, x):  # type: ignore[override]
        state = None
        for piece in x.split(5):
            out, state = super().forward(piece, state)
            yield out


class CalledByItsClass(nn.Module):
    def __init__(self, *sizes):
        super().__init__()
        self.rnn = nn.GRU(*sizes)

    def forward(self, x):
        return nn.GRU.forward(self.rnn, x)[0]


class Joined(nn.Module):
    def __init__(self, *sizes):
        super().__init__()
        self.rnn = InPieces(*sizes)

    def forward(self, x):
        return torch.cat(list(self.rnn(x)))


class OutputOfOurs(isornn.nn.LSTM):
    def forward(self, x):  # type: ignore[override]
        return super().forward(x)[0]


class MaskedOurs(isornn.nn.PeepholeLSTM):
    def forward(self, mask, x, scale=1.0):  # type: ignore[override]
        return scale * super().forward(mask * x, lengths=mask[..., 0].sum(0).int())[0]


class NormalisedOurs(isornn.nn.GRU):
    def forward(self, x):  # type: ignore[override]
        out, last = super().forward(x)
        return nn.functional.layer_norm(out, out.shape[-1:]), last


class OursByItsClass(nn.Module):
    def __init__(self, *sizes):
        super().__init__()
        self.rnn = isornn.nn.GRU(*sizes)

    def forward(self, x):
        return isornn.nn.GRU.forward(self.rnn, x)[0]


def batch_of(kind):
    x = torch.randn(T, B, D, generator=torch.Generator().manual_seed(0))
    if kind in (Masked, MaskedOurs):
        return (torch.ones(T, B, 1), x)
    return x.transpose(0, 1) if kind is BatchFirstByHand else x


def first_tensor(output):
    return torch.cat(output) if isinstance(output, list) else output[0] if isinstance(output, tuple) else output


def rnn_of(model):
    """The layer itself."""
    return getattr(model, "rnn", model)


FORMS = [
    OutputAlone,
    LastOutput,
    LastState,
    Masked,
    BatchFirstByHand,
    Residual,
    ByItsClass,
    InPieces,
    CalledByItsClass,
    Joined,
    OutputOfOurs,
    MaskedOurs,
    NormalisedOurs,
    OursByItsClass,
]


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("given_loss", [False, True])
def test_it_is_measured_as_the_layer_of_its_class(kind, given_loss):
    torch.manual_seed(0)
    model = kind(D, D) if kind is Residual else kind(D, N)
    rnn, x = rnn_of(model), batch_of(LastState)
    own = next(base for base in type(rnn).__mro__ if base.__module__.startswith(("torch.", "isornn.")))
    plain = own(D, rnn.hidden_size)
    plain.load_state_dict(rnn.state_dict())
    target = (lambda output: first_tensor(output).square().sum()) if given_loss else None
    found = measure(model, batch_of(kind), target=target)
    (layer,), (expected,) = found.layers, measure(plain, x).layers
    torch.testing.assert_close(layer.backward.log_norm["all"], expected.backward.log_norm["all"])
    assert (layer.info.steps, layer.use.reached) == (T, True)
    if given_loss:
        assert layer.loss is not None and bool(layer.loss.log_norm["all"].isfinite().any())


@pytest.mark.parametrize("kind", FORMS)
def test_it_is_started_as_the_layer_of_its_class(kind):
    model, starts = kind(D, D) if kind is Residual else kind(D, N), list[LayerStart]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        critical_(model, batch=batch_of(kind), report=starts.append)
    (start,) = starts
    assert start.length == T and start.input is not None
    assert start.input.variance == pytest.approx(float(batch_of(LastState).var()), rel=0.1)


class Packed(nn.LSTM):
    def forward(self, x, lengths):  # type: ignore[override]
        out, _ = super().forward(pack_padded_sequence(x, lengths, enforce_sorted=False))
        return pad_packed_sequence(out)[0]


def test_lengths_within_a_forward_are_those_of_the_sequences():
    lengths = torch.tensor([5, 20, 7, 9])
    (layer,) = measure(Packed(D, N), (batch_of(Packed), lengths)).layers
    assert layer.info.packed and (layer.info.steps, layer.info.mean_steps) == (20, float(lengths.double().mean()))


def test_a_layer_of_several_directions_whose_output_is_all_that_it_returns():
    layers = measure(OutputAlone(D, N, 2, bidirectional=True), batch_of(OutputAlone)).layers
    assert len(layers) == 4 and all(layer.use.reached for layer in layers)


class HiddenAlone(nn.LSTMCell):
    """Keeps its own state."""

    def forward(self, x):  # type: ignore[override]
        self.state = super().forward(x, getattr(self, "state", None))
        return self.state[0]


class Stepped(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = HiddenAlone(D, N)

    def forward(self, x):
        self.cell.state = None
        return torch.stack([self.cell(row) for row in x])


def test_a_cell_that_returns_its_output_alone_is_one_sequence():
    (layer,) = measure(Stepped(), batch_of(Stepped)).layers
    assert (layer.info.steps, layer.info.calls) == (T, T)


class Recursing(nn.GRU):
    def forward(self, x):  # type: ignore[override]
        return super().__call__(x)


class NotCallable(nn.GRU):
    def forward(self, x):  # type: ignore[override]
        return super()(x)  # type: ignore[operator]


@pytest.mark.parametrize(("kind", "error"), [(Recursing, RecursionError), (NotCallable, TypeError)])
def test_a_forward_that_fails_fails_as_without_a_measurement(kind, error):
    model, x = kind(D, N), batch_of(kind)
    before = dict(vars(model))
    for run in (model, lambda x: measure(model, x), lambda x: critical_(model, batch=x)):
        with pytest.raises(error):
            run(x)
    assert vars(model) == before


class OfNumbers(nn.GRU):
    def forward(self, numbers):  # type: ignore[override]
        return super().forward(torch.tensor(numbers).view(-1, 1, D))[0]


def test_an_argument_that_is_no_tensor_is_none_of_the_layers_input():
    batch = (torch.randn(T * D).tolist(),)
    assert measure(OfNumbers(D, N), batch).layers[0].info.steps == T


class InMode(nn.GRU):
    """Its argument ``state`` is none of a layer."""

    def forward(self, x, state):  # type: ignore[override]
        return super().forward(x)[0], state


def test_an_argument_named_state_that_is_no_tensor_is_none_of_the_layers_state():
    assert measure(InMode(D, N), (batch_of(InMode), "evaluating")).layers[0].info.steps == T


class Reweighted(nn.GRU):
    """Sets its weights before each of its calls."""

    def forward(self, x):  # type: ignore[override]
        self.weight_hh_l0 = nn.Parameter(2 * self.weight_hh_l0)  # type: ignore[has-type]
        return super().forward(x)[0]


def test_weights_are_those_of_the_call():
    assert measure(Reweighted(D, N), batch_of(Reweighted)).layers[0].info.steps == T


class Silent(nn.GRU):
    """A generator that computes nothing with the weights."""

    def forward(self, x):  # type: ignore[override]
        yield from x


def test_a_generator_that_calls_nothing_of_its_class_says_so():
    report = measure(Silent(D, N), batch_of(Silent))
    (module,) = report.unmeasured
    assert "it returns generator, not an output and a state" in module.reason
