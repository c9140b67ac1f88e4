"""Models as people build them: everything is found, replayed, measured, and left as it was."""

import copy
import json
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence

import isornn
from isornn.diagnosis import ReplayError, measure
from isornn.init import ModuleError


def diagnosed(model, batch, **options):
    report = measure(model, batch, theory=False, **options)
    json.dumps(report.to_json(), allow_nan=False)
    assert all(layer.check.residual <= layer.check.tolerance for layer in report.layers)
    return report


class Busy(nn.Module):
    """Normalises, drops out, writes in place, keeps a state and a count, and takes keyword arguments."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.lstm, self.gru = nn.LSTM(4, 6, batch_first=True), nn.GRU(6, 5)
        self.head, self.unused = nn.Linear(5, 3), nn.RNN(2, 2)
        self.register_buffer("count", torch.zeros(()))
        self.last = None

    def forward(self, *, tokens, scale=1.0):
        self.count += 1
        x = self.drop(self.norm(tokens.mT).mT) * scale
        out, self.last = self.lstm(x)
        out.mul_(2.0)
        out, _ = self.gru(out.transpose(0, 1))
        torch.relu_(out)
        return self.head(out[-1] + torch.rand(()) + random.random() + float(np.random.rand()))  # noqa: NPY002


def everything(model):
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    grads = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    flags = {name: p.requires_grad for name, p in model.named_parameters()}
    modules = {n: (m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for n, m in model.named_modules()}
    numbers = torch.get_rng_state(), np.random.get_state(legacy=False)["state"]["key"].copy(), random.getstate()  # noqa: NPY002
    cudnn = torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.is_grad_enabled()
    return tensors, grads, flags, modules, numbers, cudnn, model.last


def assert_same(before, after):
    for a, b in zip(before[:2], after[:2], strict=True):
        assert a.keys() == b.keys()
        assert all(a[k] is b[k] is None or torch.equal(a[k], b[k]) for k in a)
    assert before[2:4] == after[2:4] and before[5:] == after[5:]
    (cpu, numpy, python), (cpu_after, numpy_after, python_after) = before[4], after[4]
    assert torch.equal(cpu, cpu_after) and (numpy == numpy_after).all() and python == python_after


@pytest.mark.parametrize("target", [None, torch.tensor([0, 1, 2])])
def test_the_model_is_left_as_it_was(target):
    torch.manual_seed(0)
    model = Busy()
    model.lstm.weight_hh_l0.requires_grad_(False)
    model.norm.eval()
    batch = {"tokens": torch.randn(3, 30, 4), "scale": 1.5}
    with torch.no_grad():
        model(**batch)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    twin = copy.deepcopy(model.state_dict())
    before = everything(model)
    report = diagnosed(model, batch, target=target)
    assert_same(before, everything(model))
    assert [layer.info.name for layer in report.layers] == ["lstm l0", "gru l0"]
    assert [(module.module, "never called" in module.reason) for module in report.unmeasured] == [("unused", True)]
    assert (report.loss is None) == (target is None)
    assert all(torch.equal(value, twin[name]) for name, value in model.state_dict().items())


def test_the_model_is_left_as_it_was_by_an_error_too():
    model, batch = Busy(), {"tokens": torch.randn(3, 30, 4)}
    before = everything(model)
    with pytest.raises(ZeroDivisionError):
        measure(model, batch, target=lambda output: 1 / 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tokens"):
        measure(model, {})
    assert_same(before, everything(model))


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_three_layers_two_directions_projections_and_packed_sequences():
    torch.manual_seed(0)
    lstm = nn.LSTM(3, 8, num_layers=3, bidirectional=True, proj_size=4, dropout=0.5)
    x = pack_padded_sequence(torch.randn(20, 3, 3), torch.tensor([7, 20, 12]), enforce_sorted=False)
    report = diagnosed(lstm, x, target=lambda output: output[1][0].square().sum())
    assert [(layer.info.layer, layer.info.direction) for layer in report.layers] == [
        (layer, direction) for layer in range(3) for direction in range(2)
    ]
    first = report.layers[0]
    assert first.info.projection == 4 and first.info.packed and first.info.mean_steps == 13
    assert first.inputs.padding == 0 and len(first.backward.lags) == 21


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_precisions(dtype):
    report = diagnosed(nn.Sequential(nn.GRU(3, 8, dtype=dtype)), torch.randn(30, 2, 3, dtype=dtype))
    assert report.layers[0].info.dtype == str(dtype).removeprefix("torch.") and report.layers[0].info.name == "0 l0"


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (nn.LSTM, torch.bfloat16),  # torch has none in float16 on a CPU
        (nn.GRU, torch.float16),
        (nn.GRU, torch.bfloat16),
        (nn.RNN, torch.bfloat16),
        (nn.GRUCell, torch.float16),
        (nn.LSTMCell, torch.bfloat16),
        (isornn.nn.GRU, torch.float16),
    ],
)
def test_a_forward_under_autocast(kind, dtype):
    """torch's GRU has float32 states then, and products in half precision."""

    class Autocast(nn.Module):
        def __init__(self):
            super().__init__()
            cell = issubclass(kind, nn.RNNCellBase)
            self.model = ByHand(kind(3, 16)) if cell else kind(3, 16)

        def forward(self, x):
            with torch.autocast("cpu", dtype=dtype):
                return self.model(x)

    torch.manual_seed(0)
    model, x = Autocast(), torch.randn(40, 4, 3)
    try:
        model(x)
    except RuntimeError as error:
        if "primitive descriptor" not in str(error):
            raise
        pytest.skip("torch has no LSTM in half precision on this processor")  # as on those without AVX-512
    found, exact = (diagnosed(one, x).layers[0] for one in (model, model.model))
    assert exact.check.residual < 1e-5 < found.check.residual < found.check.tolerance
    torch.testing.assert_close(found.backward.log_norm["all"], exact.backward.log_norm["all"])


def test_a_forward_of_its_own_under_autocast_is_refused():
    class Halved(nn.GRU):
        def forward(self, x):  # type: ignore[override]
            hx, weights = x.new_zeros(1, x.shape[1], 16), [weight / 2 for weight in self._flat_weights]
            with torch.autocast("cpu"):
                return torch.gru(x, hx, weights, True, 1, 0.0, False, False, False)

    with pytest.raises(ReplayError, match="differs from what the module returned"):
        diagnosed(Halved(3, 16), torch.randn(40, 4, 3))


class ByHand(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        state = None
        for step in x:
            state = self.cell(step, state)
        return state[0] if isinstance(state, tuple) else state


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_cell_stepped_by_hand_is_the_layer(kind):
    torch.manual_seed(0)
    layer = getattr(nn, kind)(3, 5, dtype=torch.float64)
    cell = getattr(nn, kind + "Cell")(3, 5, dtype=torch.float64)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
    x = torch.randn(25, 2, 3, dtype=torch.float64)
    by_hand = diagnosed(ByHand(cell), x, target=lambda h: h.square().sum()).layers[0]
    whole = diagnosed(layer, x, target=lambda output: output[0][-1].square().sum()).layers[0]
    assert by_hand.info.calls == 25 and by_hand.info.chains == 1 and by_hand.info.steps == 25
    assert by_hand.info.name == "cell" and whole.info.name == kind + " l0"
    for name in ("forward", "backward", "loss"):
        torch.testing.assert_close(getattr(by_hand, name).log_norm["all"], getattr(whole, name).log_norm["all"])
    assert by_hand.loss_steps is None and whole.loss_steps == 1 / 25


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_layers_above_amplify_the_rounding_of_those_below(kind, dtype):
    """The critical start divides by the small standard deviation of what a layer below gives."""
    model = kind(3, 64, 3, batch_first=True, bidirectional=True).to(dtype)
    x = torch.randn(8, 60, 3).to(dtype)
    isornn.init.critical_(model, batch=x, generator=torch.Generator().manual_seed(0))
    assert len(diagnosed(model, x).layers) == 6


def test_one_step_and_one_unbatched_sequence():
    layer = diagnosed(nn.LSTM(3, 5), torch.randn(1, 2, 3)).layers[0]
    assert layer.backward.xi.number() is None and "too short" in layer.backward.xi.reason()
    assert layer.backward.reach.number() is None and "too short" in layer.backward.reach.reason()
    assert "too short" in layer.lyapunov.exponents[0].reason()
    two = diagnosed(nn.LSTM(3, 5), torch.randn(2, 2, 3)).layers[0]
    assert two.backward.reach.number() is not None or "1 steps measured" in two.backward.reach.reason()
    assert diagnosed(nn.LSTM(3, 5), torch.randn(9, 3)).layers[0].info.sequences == 1


def test_layers_fed_in_pieces_and_layers_shared():
    class Twice(nn.Module):
        def __init__(self, carried):
            super().__init__()
            self.gru, self.carried = nn.GRU(3, 5), carried

        def forward(self, a, b):
            out, h = self.gru(a)
            return out, self.gru(b, h if self.carried else None)

    batch = (torch.randn(10, 2, 3), torch.randn(7, 2, 3))
    carried, apart = (diagnosed(Twice(c), batch).layers[0].info for c in (True, False))
    assert (carried.calls, carried.chains, carried.steps) == (2, 1, 17)
    assert (apart.calls, apart.chains, apart.steps) == (2, 2, 10)


@pytest.mark.parametrize("kind", ["ChoGRU", "PeepholeLSTM", "MinimalRNN", "TLSTM", "TMR", "GersLSTM", "VanillaRNN"])
def test_our_own_layers(kind):
    torch.manual_seed(0)
    layer = getattr(isornn.nn, kind)(4, 6, num_layers=2, bidirectional=True)
    report = diagnosed(layer, torch.randn(20, 3, 4), target=lambda output: output[0].square().sum())
    assert len(report.layers) == 4 and all(found.loss.log_norm["all"].isfinite().any() for found in report.layers)


def test_a_parametrised_layer():
    gru = nn.GRU(3, 5)
    parametrizations.weight_norm(gru, "weight_hh_l0")
    place = diagnosed(gru, torch.randn(10, 2, 3)).layers[0].info
    assert place.parametrised and place.kind == "GRU"


def test_a_chaotic_network_is_replayed_as_far_as_that_can_be_asked():
    torch.manual_seed(0)
    rnn = nn.RNN(3, 64)
    with torch.no_grad():
        rnn.weight_hh_l0.mul_(6)
    layer = diagnosed(rnn, torch.randn(300, 2, 3)).layers[0]
    assert layer.check.rounding > 1e-3 and layer.lyapunov.exponents[0].number() > 0
    assert layer.backward.xi.number() is None and "do not fade" in layer.backward.xi.reason()


def test_a_chaotic_network_whose_layer_has_a_kernel_of_its_own_is_replayed():
    layer = isornn.init.standard_(isornn.nn.PeepholeLSTM(16, 64), generator=torch.Generator().manual_seed(2))
    found = diagnosed(layer, torch.randn(100, 8, 16, generator=torch.Generator().manual_seed(5))).layers[0]
    assert found.check.rounding > found.check.tolerance and found.lyapunov.exponents[0].number() > 0


def test_gates_that_leave_nothing_but_rounding_are_replayed():
    torch.manual_seed(0)
    gru = nn.GRU(3, 8)
    with torch.no_grad():
        gru.bias_ih_l0[8:16] = 16.0
    layer = diagnosed(gru, torch.randn(50, 2, 3)).layers[0]
    assert layer.gates["z"].open == 1 and layer.check.rounding > layer.check.tolerance


def test_a_replay_that_is_not_the_model_is_an_error(monkeypatch):
    layer = isornn.nn.PeepholeLSTM(3, 4)
    monkeypatch.setattr(layer, "forward", lambda x: (torch.ones(5, 2, 4), torch.ones(1, 2, 4)))
    with pytest.raises(ReplayError, match="differs from what the module returned"):
        measure(layer, torch.randn(5, 2, 3), theory=False)


def test_bad_questions_are_refused():
    with pytest.raises(ModuleError, match="no recurrent layer"):
        measure(nn.Linear(2, 2), torch.randn(3, 2))
    with pytest.raises(ValueError, match="length: 1"):
        measure(nn.GRU(2, 2), torch.randn(3, 1, 2), length=1)
    with pytest.raises(ValueError, match="generator: 5 is not allowed; it must be a torch.Generator"):
        measure(nn.GRU(2, 2), torch.randn(3, 1, 2), generator=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"target: shape \(2,\) does not fit"):
        measure(nn.GRU(2, 2), torch.randn(3, 1, 2), target=torch.zeros(2))
    with pytest.raises(ValueError, match=r"target: 1 of its 6 numbers are NaN or infinite"):
        measure(nn.GRU(2, 2), torch.randn(3, 1, 2), target=torch.tensor([0, 0, 0, torch.nan, 0, 0]).view(3, 1, 2))
    with pytest.raises(ValueError, match="a tensor of one number"):
        measure(nn.GRU(2, 2), torch.randn(3, 1, 2), target=lambda output: output[0])
    for labels in (torch.tensor([[0], [1], [2]]), torch.tensor([[0], [-1], [1]])):
        with pytest.raises(ValueError, match=r"target: label (2|-1) is not allowed; the output has 2 classes"):
            measure(nn.GRU(2, 2), torch.randn(3, 1, 2), target=labels)
    with pytest.raises(ValueError, match=r"target: label 3 is not allowed; the output has 3 classes"):
        measure(nn.GRU(2, 5), torch.randn(2, 3, 2), target=torch.full((2, 5), 3))
    with pytest.raises(ValueError, match="target: no label is left; -100 leaves one out"):
        measure(nn.GRU(2, 2), torch.randn(3, 1, 2), target=torch.full((3, 1), -100))
    for labels in (torch.zeros(3, 1, 1).long(), torch.zeros(3, 1).long(), torch.zeros(3, 1, dtype=torch.bool)):
        with pytest.raises(ValueError, match=r"target: \w+ labels are classes, and the output \(3, 1, 1\) has one num"):
            measure(nn.GRU(2, 1), torch.randn(3, 1, 2), target=labels)


def test_the_label_that_torch_ignores_is_ignored():
    gru, x = nn.GRU(2, 2), torch.randn(3, 1, 2)
    found = [measure(gru, x, target=torch.tensor(labels)).loss for labels in ([[1], [-100], [-100]], [[1], [0], [0]])]
    output = gru(x)[0].detach()
    assert found[0] == pytest.approx(float(nn.functional.cross_entropy(output[0], torch.tensor([1]))), rel=1e-5)
    assert found[1] != pytest.approx(found[0], rel=1e-5)


class Doubled(nn.GRU):
    def forward(self, x):  # type: ignore[override]
        hx, weights = x.new_zeros(1, x.shape[1], 5), [2 * weight for weight in self._flat_weights]
        return torch.gru(x, hx, weights, True, 1, 0.0, False, False, False)


def test_a_module_that_is_not_its_class_is_left_out_beside_others():
    model, x = nn.Sequential(Doubled(3, 5), Last(), nn.GRU(5, 4)), torch.randn(20, 2, 3)
    report = diagnosed(model, x)
    assert [layer.info.name for layer in report.layers] == ["2 l0"]
    (left_out,) = report.unmeasured
    assert left_out.module == "0" and "differs from what the module returned" in left_out.reason
    with pytest.raises(ReplayError, match="Doubled l0: .* differs from what the module returned"):
        measure(model[0], x)


class Last(nn.Module):
    def forward(self, result):
        return result[0]


def test_spectral_norms_buffers_stay_in_training_mode() -> None:
    torch.manual_seed(0)
    model, x = nn.LSTM(4, 16), torch.randn(20, 3, 4)
    nn.utils.parametrizations.spectral_norm(model, "weight_hh_l0")
    before = {name: buffer.clone() for name, buffer in model.train().named_buffers()}
    isornn.diagnose(model, x)
    with pytest.raises(ModuleError, match="is not a parameter of the module"):
        isornn.init.critical_(model, batch=x)
    assert before and all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert all(part.training for part in model.modules())


def test_spectral_norms_first_estimates_are_not_measured() -> None:
    """They are random until a training step has iterated; the largest singular value is then not far from 1."""
    torch.manual_seed(0)
    model, x = nn.GRU(8, 32, batch_first=True), torch.randn(8, 50, 8)
    torch.nn.utils.spectral_norm(model, "weight_hh_l0")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    (fresh,) = diagnosed(model, x).layers
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model(x)
    (later,) = diagnosed(model, x).layers
    assert fresh.backward.xi.number() == pytest.approx(later.backward.xi.number(), rel=0.2)


class Hypernetwork(nn.Module):
    """It computes an LSTM's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 8)
        self.weights = nn.Linear(3, sum(parameter.numel() for parameter in self.rnn.parameters()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sizes = {name: parameter.shape for name, parameter in self.rnn.named_parameters()}
        parts = (0.1 * self.weights(torch.ones(3))).split([size.numel() for size in sizes.values()])
        given = {name: part.view(size) for (name, size), part in zip(sizes.items(), parts, strict=True)}
        out: torch.Tensor = torch.func.functional_call(self.rnn, given, (x,))[0]
        return out


def test_weights_that_are_given_at_each_call_are_not_set() -> None:
    torch.manual_seed(0)
    model, x = Hypernetwork(), torch.randn(60, 3, 4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ModuleError, match=r"rnn: it computes with tensors that the model gives it at each call"):
        isornn.init.critical_(model, batch=x)
    (said,) = isornn.diagnose(model, x).fix_()
    assert "left alone" in said and "gives it at each call" in said
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Translator(nn.Module):
    """An encoder of long sequences, and a decoder of short ones that starts from its end."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = (nn.GRU(3, 16, batch_first=True) for _ in range(2))

    def forward(self, x):
        return self.decoder(x.new_ones(len(x), 12, 3), self.encoder(x)[1])[0]


def test_each_layer_is_judged_over_its_own_length():
    torch.manual_seed(0)
    model, x = Translator(), torch.randn(8, 60, 3)
    report = isornn.diagnose(model, x, theory=False)
    assert report.diagnosis.length == 60
    lengths = {layer.info.module: layer.length for layer in report.diagnosis.layers}
    assert lengths == {"encoder": 60, "decoder": 12}
    assert "T is 60 for encoder l0 and 12 for decoder l0." in " ".join(str(report).split())
    steps = {finding.layer: finding.remedy.splitlines()[-1] for finding in report.findings}
    assert steps["encoder l0"] == "isornn.diagnosis.redraw_(model, 'encoder l0', 60, batch)"
    assert all("12" in line for layer, line in steps.items() if layer == "decoder l0")
    given = isornn.diagnose(model, x, 30, theory=False).diagnosis
    assert {given.length, *(layer.length for layer in given.layers)} == {30}
