"""What a batch may be: arguments, or a function that runs the model."""

import copy
import pickle
from collections import UserDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import isornn
from isornn.capture.modules import recurrent_modules
from isornn.capture.run import capture
from isornn.init import LayerStart, critical_

T, B, D, N = 40, 3, 2, 16


class Forecaster(nn.Module):
    """Has no forward."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(D, N), nn.Linear(N, 1)

    def predict(self, x, scale):
        return self.head(self.rnn(scale * x)[0][-1])


def test_a_function_runs_the_model():
    model, x = Forecaster(), torch.randn(T, B, D)
    captured = capture(model, recurrent_modules(model), lambda model: model.predict(x, 3.0), torch.sum)
    (call,) = captured.calls[model.rnn]
    assert isinstance(call.inputs, Tensor) and torch.equal(call.inputs, 3 * x)
    assert isinstance(call.of_output, Tensor) and call.of_output.abs().sum() > 0
    assert captured.loss == pytest.approx(float(model.predict(x, 3.0).sum().detach()))


def test_starts_reports_and_fixes_take_it():
    torch.manual_seed(0)
    found: list[LayerStart] = []
    x = torch.randn(T, B, D)
    model = critical_(Forecaster(), batch=lambda model: model.predict(x, 3.0), report=found.append)
    assert found[0].input.variance == pytest.approx(float((3 * x).var((0, 1), correction=0).mean()), rel=1e-5)
    model = Forecaster()
    report = isornn.diagnose(model, lambda model: model.predict(x, 1.0), target=torch.sum)
    assert [finding.kind for finding in report.findings] == ["default_start"]
    assert report.fix_(torch.Generator().manual_seed(0))[0].startswith("rnn l0: drawn again")
    assert isornn.diagnose(model, lambda model: model.predict(x, 1.0)).findings == ()


class WithStatic(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(D, N, batch_first=True)

    def forward(self, x, categories, static):
        return self.rnn(torch.cat((x, categories), -1))[0]


def test_a_batch_may_have_none_of_some_features():
    model = WithStatic()
    batch = {"x": torch.randn(B, T, D), "categories": torch.zeros(B, T, 0), "static": torch.zeros(B, 0)}
    assert len(capture(model, recurrent_modules(model), batch, None).calls[model.rnn]) == 1


@pytest.mark.parametrize(("sequences", "steps"), [(0, T), (B, 0)])
def test_a_recurrent_layer_needs_something_to_read(sequences, steps):
    model = WithStatic()
    batch = (torch.zeros(sequences, steps, D), torch.zeros(sequences, steps, 0), torch.zeros(sequences, 0))
    with pytest.raises(ValueError, match="batch: (a recurrent layer receives )?shape .* (is not allowed|from it)"):
        capture(model, recurrent_modules(model), batch, None)


@pytest.mark.parametrize(("function", "named"), [(lambda: None, ""), (lambda model, x: None, "model, x")])
def test_a_function_takes_the_model_alone(function, named):
    message = rf"batch: a function of \({named}\) is not allowed; it is called with the model alone"
    for call in (isornn.diagnose, lambda model, batch: critical_(model, batch=batch)):
        with pytest.raises(ValueError, match=message):
            call(nn.GRU(D, N), function)


class Untidy(nn.Module):
    """Writes to its batch, and takes entries from it."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(D, N)

    def forward(self, parts):
        x = parts.pop("x")
        parts["rest"].append(x.mul_(3.0).add_(1.0))
        return self.rnn(x)[0]


@pytest.mark.parametrize("kind", [dict, UserDict])  # the second as transformers' BatchEncoding
def test_the_batch_is_left_as_it_was(kind):
    x, rest, found = torch.randn(T, B, D), list[Tensor](), list[LayerStart]()
    batch, before = kind({"x": x, "rest": rest}), x.clone()
    model = critical_(Untidy(), batch=batch, report=found.append)
    report = isornn.diagnose(model, batch)
    assert report.diagnosis.layers[0].inputs.mean == pytest.approx(float(3 * before.mean() + 1), rel=1e-5)
    assert found[0].input.variance == pytest.approx(float((3 * before).var((0, 1), correction=0).mean()), rel=1e-5)
    assert list(batch) == ["x", "rest"] and batch["x"] is x and torch.equal(x, before) and not rest


class ByForward(nn.Module):
    """Calls its layers by their forward, which runs no hooks."""

    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.rnn, self.cell = kind(D, N), nn.GRUCell(N, N)

    def forward(self, x, by_forward: bool = True):
        states, state = self.rnn.forward(x) if by_forward else self.rnn(x), None
        for step in states[0]:
            state = self.cell.forward(step, state) if by_forward else self.cell(step, state)
        return state


@pytest.mark.parametrize("kind", [nn.LSTM, isornn.nn.LSTM])
def test_layers_that_are_called_by_their_forward_are_measured(kind):
    torch.manual_seed(0)
    model, x = ByForward(kind), torch.randn(T, B, D)
    by_forward, by_call = (isornn.diagnose(model, {"x": x, "by_forward": way}).to_json() for way in (True, False))
    assert [layer["info"]["name"] for layer in by_forward["layers"]] == ["rnn l0", "cell"]
    assert by_forward["layers"] == by_call["layers"] and by_forward["unmeasured"] == []
    starts: list[LayerStart] = []
    critical_(model, batch=x, report=starts.append)
    assert [start.input is None for start in starts] == [False, False]


def test_a_layers_own_forward_is_there_again():
    torch.manual_seed(0)
    model, x = ByForward(), torch.randn(T, B, D)
    isornn.diagnose(model, x)
    assert "forward" not in vars(model.rnn)
    own = model.rnn.forward  # some wrappers put one into the object
    model.rnn.forward = own
    isornn.diagnose(model, x)
    assert vars(model.rnn)["forward"] is own

    def refused(output: Any) -> Tensor:
        raise ValueError("nothing fits")

    with pytest.raises(ValueError, match="nothing fits"):
        isornn.diagnose(model, x, target=refused)
    assert vars(model.rnn)["forward"] is own


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_that_a_model_makes_of_a_layer_are_not_recorded(copied):
    class Averaged(ByForward):
        def forward(self, x, by_forward: bool = True):
            other = copied(self.rnn)
            other.weight_hh_l0.data.zero_()
            self.difference = (self.rnn.forward(x)[0] - other.forward(x)[0]).abs().max()
            return super().forward(x, by_forward) + 0 * self.difference

    torch.manual_seed(0)
    model, differences = Averaged(), []
    model.register_forward_hook(lambda *_: differences.append(float(model.difference)))
    assert isornn.diagnose(model, torch.randn(T, B, D)).diagnosis.layers[0].info.calls == 2
    assert differences[0] > 0.01
