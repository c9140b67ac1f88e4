"""How models are called and what they leave: pieces and packs, hooks and subclasses, dicts, wrappers, bad numbers."""

import copy
import json
import math
import pickle
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import isornn
from isornn.capture.preserve import preserve_state
from isornn.cells import CELLS, FURTHER_CELLS
from isornn.diagnosis import Monitor, findings, measure
from isornn.diagnosis.weights import untrained_evidence, weight_facts
from isornn.nn.gate_tensors import recurrent_layers


def diagnosed(model, batch, **options):
    report = measure(model, batch, theory=False, **options)
    json.dumps(report.to_json(), allow_nan=False)
    return report


class Continued(nn.Module):
    """Encodes sequences with lengths, then goes on a step at a time from the last states."""

    def __init__(self, rnn, lengths=None):
        super().__init__()
        self.rnn, self.lengths = rnn, lengths

    def forward(self, x):
        if self.lengths is None:
            out, state = self.rnn(pack_padded_sequence(x, [9, 7], enforce_sorted=False))
            out = pad_packed_sequence(out)[0]
        else:
            out, state = self.rnn(x, lengths=self.lengths)
        for _ in range(3):
            own, state = self.rnn(x[:1], state)
        return own.sum() + out.sum()


@pytest.mark.parametrize("lengths", [None, [9, 7]])
def test_plain_calls_from_the_state_of_one_with_lengths(lengths):
    rnn = nn.LSTM(3, 5) if lengths is None else isornn.nn.LSTM(3, 5)
    model, x = Continued(rnn, lengths), torch.randn(9, 2, 3)
    (layer,) = diagnosed(model, x, target=lambda loss: loss).layers
    assert (layer.info.calls, layer.info.chains, layer.info.steps) == (4, 2, 9)
    with Monitor(model) as monitor:
        model(x).backward()
        monitor.step()
    (record,) = monitor.record.layers
    assert record.reasons == ("",) and np.isfinite(record.loss["all"][0][:8]).all()


class Untidy(nn.Module):
    """Writes to whatever it holds."""

    def __init__(self):
        super().__init__()
        self.rnn, self.steps, self.table = nn.GRU(3, 5), [1], {"calls": [0]}
        self.carried, self.array, self.seen = torch.zeros(4), np.zeros(3), {1}
        self.nested = ([torch.ones(2)],)

    def forward(self, x):
        self.steps.append(len(x))
        self.table["calls"][0] += 1
        self.table["new"] = x
        self.carried += 1.0
        self.array += 1
        self.seen.add(len(self.seen) + 1)
        self.nested[0][0].mul_(2.0)
        for parameter in self.parameters():
            parameter.grad.mul_(0.5)
        return self.rnn(x)[0]


def test_what_modules_hold_is_left_as_it_was():
    model = Untidy()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    diagnosed(model, torch.randn(12, 2, 3))
    assert model.steps == [1] and model.table == {"calls": [0]} and model.seen == {1}
    assert not model.carried.any() and not model.array.any() and model.nested[0][0].tolist() == [1.0, 1.0]
    assert all(bool((parameter.grad == 1).all()) for parameter in model.parameters())


class Noisy(nn.Module):
    """Draws from generators of its own."""

    def __init__(self):
        super().__init__()
        self.rnn, self.torchs, self.pythons = nn.GRU(3, 5), torch.Generator(), random.Random(0)
        self.numpys: list[Any] = [np.random.default_rng(0), np.random.RandomState(0)]

    def drawn(self):
        first = torch.rand(1, generator=self.torchs).item()
        return (first, self.pythons.random(), *(one.normal() for one in self.numpys))

    def forward(self, x):
        return self.rnn(x + sum(self.drawn()))[0]


class Reshaping(nn.Module):
    """Gives a buffer another shape, another buffer another tensor's data, and a parameter another dtype."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 8, batch_first=True)
        self.register_buffer("resized", torch.zeros(0))
        self.register_buffer("replaced", torch.zeros(1, 1, 8))
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x):
        out, last = self.rnn(x)
        self.resized.resize_(last.shape).copy_(last.detach())
        self.replaced.data = last.detach()
        self.scale.data = self.scale.data.double()
        return out


@pytest.mark.parametrize("target", [None, torch.sum])
def test_shapes_and_memory_are_left_as_they_were(target):
    model = Reshaping()
    before = [(tensor.shape, tensor.dtype, tensor.data_ptr()) for tensor in model.state_dict(keep_vars=True).values()]
    diagnosed(model, torch.randn(4, 20, 3), target=target)
    after = [(tensor.shape, tensor.dtype, tensor.data_ptr()) for tensor in model.state_dict(keep_vars=True).values()]
    assert after == before


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(x)


def test_scripted_parts_stay_in_training_mode():
    model = nn.Sequential(torch.jit.script(Dropping()), nn.GRU(3, 8, batch_first=True))
    diagnosed(model, torch.randn(4, 20, 3))
    assert all(module.training for module in model.modules())


def test_generators_that_modules_hold_are_left_as_they_were():
    model = Noisy()
    expected = copy.deepcopy([model.pythons, *model.numpys])
    diagnosed(model, torch.randn(12, 2, 3))
    first = torch.rand(1, generator=torch.Generator()).item()
    assert model.drawn() == (first, expected[0].random(), *(one.normal() for one in expected[1:]))


def test_pythons_random_state_is_left_by_the_first_call_of_a_process():
    code = (
        "import random, torch, isornn; random.seed(1); before = random.getstate();"
        "isornn.diagnose(torch.nn.GRU(2, 4), torch.randn(9, 2, 2), theory=True); assert random.getstate() == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_users_hook_may_return_one_thing():
    gru, x = nn.GRU(3, 5), torch.randn(12, 2, 3)
    gru.register_forward_hook(lambda module, arguments, result: result[0])
    (layer,) = diagnosed(gru, x, target=lambda output: output[-1].sum()).layers
    assert layer.loss_steps == 1 / 12
    with Monitor(gru) as monitor:
        gru(x)[-1].sum().backward()
        monitor.step()
    assert monitor.record.layers[0].reasons == ("",)


class Unpadded(nn.LSTM):
    """Returns the steps of the longest sequence."""

    def forward(self, x, lengths):  # type: ignore[override]
        out, state = super().forward(pack_padded_sequence(x, lengths, enforce_sorted=False))
        return pad_packed_sequence(out)[0], state


class Outputs(nn.LSTM):
    def forward(self, x):  # type: ignore[override]
        return torch.tanh(x @ self.weight_ih_l0.T)


class Summed(Outputs):
    def forward(self, x):  # type: ignore[override]
        out = super().forward(x)[..., :5]
        return out.sum(0), (out[-1:], out[-1:])


def test_subclasses_with_a_forward_of_their_own():
    x = torch.randn(12, 2, 3)
    (layer,) = diagnosed(Unpadded(3, 5), (x, torch.tensor([7, 4]))).layers
    assert (layer.info.steps, layer.info.mean_steps) == (7, 5.5)
    for kind, why in (
        (Outputs, "it returns Tensor, not an output and a state"),
        (Summed, "which torch.nn.LSTM would not"),
    ):
        report = diagnosed(kind(3, 5), x)
        (module,) = report.unmeasured
        assert report.layers == () and why in module.reason
        assert [finding.kind for finding in findings(report)] == ["cannot_tell"]
        model = kind(3, 5)
        with Monitor(model) as monitor:
            torch.as_tensor(model(x)[0]).sum().backward()
            monitor.step()
        assert monitor.record.layers[0].reasons[0]


@pytest.mark.parametrize("where", ["weights", "input", "infinite input", "loss", "gradient"])
def test_numbers_that_are_not_finite_are_the_first_finding(where):
    gru, x, target = nn.GRU(3, 5), torch.randn(9, 2, 3), None
    if where == "weights":
        gru.weight_hh_l0.data[0, 0] = math.nan
    elif where == "input":
        x[4, 1, 2] = math.nan
    elif where == "infinite input":
        x[4, 1, 2] = math.inf
    elif where == "loss":
        target = lambda output: output[0].sum().clamp(max=1.0).detach() * math.inf + 0 * output[0].sum()  # noqa: E731
    else:
        target = lambda output: (output[0] * 0).sqrt().sum()  # noqa: E731
    report = diagnosed(gru, x, target=target)
    found = findings(report)[0]
    assert found.kind == "not_finite" and found.remedy == ""
    expected = {
        "weights": "1 of the 75 numbers in its weight_hh_l0 are NaN",
        "input": "1 of the 54 numbers in its input are NaN",
        "infinite input": "1 of the 54 numbers in its input are infinite",
        "loss": "loss on the batch is",
        "gradient": "the gradient of the loss with respect to its output are",
    }
    assert expected[where] in found.sentence


def test_padding_that_lengths_exclude_may_be_anything():
    rnn, x = isornn.nn.GRU(3, 5), torch.randn(9, 2, 3)
    x[7:, 1] = math.nan
    assert len(diagnosed(Continued(rnn, [9, 7]), x).layers) == 1


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", sorted(CELLS | FURTHER_CELLS))
def test_a_new_layer_counts_as_untrained(name, bias):
    torch.manual_seed(0)
    layer = isornn.nn.RNN((CELLS | FURTHER_CELLS)[name](), 8, 32, bias=bias)
    (found,) = recurrent_layers(layer)
    assert untrained_evidence(weight_facts(found)) is not None
    optimiser = torch.optim.Adam(layer.parameters(), 0.01)
    for _ in range(5):
        optimiser.zero_grad()
        (layer(torch.randn(9, 4, 8))[0] - 1).square().mean().backward()
        optimiser.step()
    (found,) = recurrent_layers(layer)
    assert untrained_evidence(weight_facts(found)) is None


def test_transient_growth_is_growth():
    """A linear chain carries a gradient through 30 of its units, each time tenfold; no exponent is above 0."""
    rnn = nn.RNN(3, 32, nonlinearity="relu", bias=False)
    with torch.no_grad():
        rnn.weight_hh_l0.copy_(10 * torch.diag(torch.ones(31), -1))
        rnn.weight_ih_l0.uniform_(0.1, 0.2)
    found = findings(diagnosed(rnn, torch.rand(20, 4, 3) + 0.1, length=10))
    assert "exploding" in {finding.kind for finding in found}


def test_a_monitor_can_be_copied_and_pickled_after_training():
    model, x = nn.GRU(3, 5), torch.randn(9, 2, 3)
    monitor = Monitor(model, log=lambda numbers: None)
    model(x)[0].sum().backward()
    monitor.step()
    monitor.close()
    for other in (copy.deepcopy(monitor), pickle.loads(pickle.dumps(monitor))):
        other.step()
        assert other.record.iterations.tolist() == [0] == monitor.record.iterations.tolist()


def test_the_input_law_that_was_measured_is_that_of_the_fix():
    torch.manual_seed(0)
    model, x = nn.LSTM(8, 64, num_layers=2), 0.1 * torch.randn(100, 4, 8)
    report = isornn.diagnose(model, x, theory=False)
    first, second = (finding for finding in report.findings if finding.kind == "default_start")
    assert all(finding.remedy.endswith(", 100, batch)") for finding in (first, second))
    lines = {}
    for kind in ("printed", "called"):
        torch.manual_seed(1)
        if kind == "printed":
            for finding in (first, second):
                exec(finding.remedy, {"model": model, "batch": x})
        else:
            report.fix_()
        lines[kind] = {name: value.clone() for name, value in model.state_dict().items()}
    assert all(torch.equal(value, lines["called"][name]) for name, value in lines["printed"].items())
    candidate = (x @ model.weight_ih_l0.detach().T).chunk(4, -1)[2]
    assert 2 < candidate.var() < 6  # of inputs of variance .01; the rule's 4
    assert "default_start" not in {f.kind for f in findings(measure(model, x, theory=False))}


def test_random_state_of_python_is_restored():
    class Draws(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 5)

        def forward(self, x):
            return self.rnn(x * random.random())[0]

    random.seed(3)
    before = random.getstate()
    diagnosed(Draws(), torch.randn(9, 2, 3))
    assert random.getstate() == before


def test_progress_names_the_parts_of_the_work():
    lines: list[str] = []
    isornn.diagnose(nn.GRU(3, 5, num_layers=2), torch.randn(9, 2, 3), progress=lines.append)
    assert lines[0] == "running the model" and [line.partition(":")[0] for line in lines[2:4]] == ["GRU l0", "GRU l1"]
    assert "(GRU l0: xi = " in lines[3] and "(GRU l1: xi = " in lines[4]


def test_arrays_that_cannot_be_written_are_left_and_all_else_is_put_back():
    model = nn.Sequential(nn.GRU(3, 5), nn.Identity()).train()
    model.__dict__["table"] = np.broadcast_to(np.zeros(3), (4, 3))
    diagnosed(model[0], torch.randn(9, 2, 3))
    with preserve_state(model):
        assert not model.training
    assert all(module.training for module in model.modules())


def test_of_a_wrapped_model_the_reports_name_is_its_own():
    model, batch = nn.Sequential(nn.GRU(3, 5)), torch.randn(9, 2, 3)
    assert diagnosed(nn.DataParallel(model), batch).model == diagnosed(model, batch).model == "Sequential"


def test_a_fresh_batch_norm_that_is_given_its_input_by_name_normalises_it_too():
    norm, x = nn.BatchNorm1d(5), 20 + torch.randn(30, 5)
    with preserve_state(norm):
        assert torch.equal(norm(input=x), norm(x)) and norm(x).mean().abs() < 1e-5
    assert not norm._forward_pre_hooks and not norm._forward_pre_hooks_with_kwargs
