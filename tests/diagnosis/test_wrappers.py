"""Modules around a recurrent module are seen through, or refused in a line that says what to give."""

from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.nn import functional

import isornn.init
from isornn import diagnose
from isornn.diagnosis import Monitor
from isornn.init import ModuleError

X = torch.randn(4, 30, 4, generator=torch.Generator().manual_seed(0))
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("DeprecationWarning", "FutureWarning", "UserWarning", "torch.jit.TracerWarning")
]


class Net(nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.rnn = nn.LSTM(4, 16, batch_first=True, **options)
        self.head = nn.Linear(options.get("proj_size", 16), 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class WeightDrop(nn.Module):
    """As of AWD-LSTM: before each forward the weight is computed from one of another name, here or in the module."""

    def __init__(self, module, inside):
        super().__init__()
        self.module, self.inside = module, inside
        weight = module.weight_hh_l0
        del module._parameters["weight_hh_l0"]
        (module if inside else self).register_parameter("weight_hh_l0_raw", nn.Parameter(weight.data))
        if not inside:
            module.weight_hh_l0 = weight.detach().clone()

    def forward(self, *arguments):
        raw = (self.module if self.inside else self).weight_hh_l0_raw
        self.module.weight_hh_l0 = functional.dropout(raw, 0.5, self.training)
        return self.module(*arguments)


def changed(change):
    model = Net()
    model.rnn = change(model.rnn)
    return model


def normed(norm):
    model = Net()
    norm(model.rnn, "weight_hh_l0")
    return model


def compiled_in_place():
    model = Net()
    model.compile()
    return model


class CompiledMethod(Net):
    @torch.compile(backend="eager")
    def forward(self, x):
        return super().forward(x)


def compiled_attribute():
    model: Any = Net()
    model.run, model.forward = torch.compile(model.forward, backend="eager"), lambda x: model.run(x)
    model(X)  # compiled before it is recorded
    return model


@pytest.fixture
def process_group(tmp_path):
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


AROUND = {
    "DataParallel": lambda: nn.DataParallel(Net()),
    "compiled": lambda: torch.compile(Net(), backend="eager"),
    "compiled in place": compiled_in_place,
    "compiled method": CompiledMethod,
    "compiled attribute": compiled_attribute,
    "compiled within": lambda: changed(lambda rnn: torch.compile(rnn, backend="eager")),
    "projected": lambda: Net(proj_size=8),
}
COMPUTED = {
    "weight norm": lambda: normed(nn.utils.parametrizations.weight_norm),
    "weight norm by hooks": lambda: normed(nn.utils.weight_norm),
    "weight drop inside": lambda: changed(lambda rnn: WeightDrop(rnn, inside=True)),
    "weight drop": lambda: changed(lambda rnn: WeightDrop(rnn, inside=False)),
}
CLOSED = {
    "scripted": (lambda: torch.jit.script(Net()), "compiled by torch.jit"),
    "traced": (lambda: torch.jit.trace(Net(), X), "compiled by torch.jit"),
    "quantised": (lambda: torch.ao.quantization.quantize_dynamic(Net(), {nn.LSTM}), "quantised"),
}


def seen_through(model):
    report = diagnose(model, X, 60)
    assert [(finding.kind, finding.layer) for finding in report.findings] == [("default_start", "rnn l0")]
    (layer,) = report.diagnosis.layers
    plain = diagnose(Net(), X, 60).diagnosis.layers[0]
    if layer.info.projection is None:
        torch.testing.assert_close(layer.backward.log_norm["all"], plain.backward.log_norm["all"])
    return report


@pytest.mark.parametrize("name", AROUND)
def test_what_is_around_is_seen_through(name):
    model = AROUND[name]()
    report = seen_through(model)
    assert report.fix_(torch.Generator().manual_seed(0))
    assert diagnose(model, X, 60).findings == ()
    isornn.init.critical_(model, 50, batch=X)
    model(X).sum().backward()


@pytest.mark.parametrize("compiled", [CompiledMethod, compiled_attribute])
def test_a_compiled_method_is_not_compiled_anew_to_be_recorded(compiled):
    model = compiled()
    model(X)
    with torch.compiler.set_stance("fail_on_recompile"):
        seen_through(model)


def test_a_distributed_model_is_seen_through_and_trains_on(process_group):
    model = nn.parallel.DistributedDataParallel(Net())
    for _ in range(2):
        seen_through(model)
        model(X).square().sum().backward()
    with Monitor(model) as monitor:
        model(X).square().sum().backward()
        monitor.step()
    assert monitor.record.layer("rnn l0").xi[0] > 0


@pytest.mark.parametrize("name", COMPUTED)
def test_computed_weights_are_measured_and_not_written(name):
    model = COMPUTED[name]().eval()
    report = diagnose(model, X, 60)
    (layer,) = report.diagnosis.layers
    plain = diagnose(Net(), X, 60).diagnosis.layers[0]
    torch.testing.assert_close(layer.backward.log_norm["all"], plain.backward.log_norm["all"], rtol=1e-4, atol=1e-4)
    with pytest.raises(ModuleError, match=r"are lost; set the module (first|before it is wrapped)"):
        isornn.init.critical_(model, 50)
    (line,) = report.fix_()
    assert "left alone" in line


def test_the_default_start_of_normed_weights_is_not_said_to_look_trained():
    (finding,) = diagnose(COMPUTED["weight norm"](), X, 60).findings
    assert finding.kind == "default_start"
    assert "computed from others" in finding.remedy and "looks trained" not in finding.remedy


class Dropped(nn.Module):
    """As of fastai's first AWD-LSTM: the dropped weight takes the parameter's place."""

    def __init__(self, module):
        super().__init__()
        self.module, self.raw = module, nn.Parameter(module.weight_hh_l0.data)

    def forward(self, *arguments):
        self.module._parameters["weight_hh_l0"] = functional.dropout(self.raw, 0.5, self.training)
        return self.module(*arguments)


@pytest.mark.parametrize("used", [False, True])
def test_weights_that_share_memory_with_what_they_are_computed_from_are_not_written(used):
    spectral, dropped = normed(nn.utils.spectral_norm), changed(Dropped)
    for model in (spectral, dropped)[: 1 + used]:
        if used:
            model(X)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        with pytest.raises(ModuleError, match="are lost; set the module first"):
            isornn.init.critical_(model, 50, batch=X)
        (line,) = diagnose(model, X, 60).fix_()
        assert "left alone" in line
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("name", COMPUTED)
def test_a_monitor_measures_the_weights_of_the_step(name):
    """Dropped ones too: the replay is checked against what the module returned."""
    model = COMPUTED[name]().train()
    with Monitor(model) as monitor:
        model(X).square().sum().backward()
        monitor.step()
    (layer,) = monitor.record.layers
    assert layer.reasons == ("",) and layer.xi[0] > 0


class Mask(nn.Module):
    """Weight drop as a parametrisation: another mask whenever the weight is read."""

    def forward(self, weight):
        return functional.dropout(weight, 0.5, self.training)


def test_a_monitor_measures_weights_that_are_drawn_when_they_are_read():
    losses = []
    for watched in (False, True):
        model = normed(lambda rnn, name: nn.utils.parametrize.register_parametrization(rnn, name, Mask()))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with Monitor(model, every=2) as monitor:
            for _ in range(4):
                loss = model(X).square().sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                if watched:
                    monitor.step()
    assert losses[:4] == losses[4:]
    (layer,) = monitor.record.layers
    assert layer.reasons == ("", "") and (layer.xi > 0).all()


def test_a_cell_whose_weights_are_drawn_at_each_step_is_not_measured():
    cell = nn.LSTMCell(4, 16)
    nn.utils.parametrize.register_parametrization(cell, "weight_hh", Mask())
    with Monitor(cell) as monitor:
        state = None
        for x in X.unbind(1):
            state = cell(x, state)
        state[0].sum().backward()
        monitor.step()
    (reason,) = monitor.record.layers[0].reasons
    assert "parametrised; they have to be the same" in reason and "forward" not in reason


@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm])
def test_layers_beside_one_with_computed_weights_are_fixed(norm):
    torch.manual_seed(0)
    rnn = nn.LSTM(4, 24, num_layers=2, batch_first=True)
    norm(rnn, "weight_hh_l0")
    report = diagnose(rnn, X, 60)
    assert [layer.info.parametrised for layer in report.diagnosis.layers] == [True, False]
    notes = ["computed from others" in finding.remedy for finding in report.findings]
    assert notes == [True, False]
    below, above = report.fix_()
    assert "left alone" in below and "a weight or bias of gate i is not a parameter" in below
    assert above.startswith("LSTM l1: drawn again")


def test_weights_that_a_model_gives_at_each_call_are_not_written():
    model = Net()
    given = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    report = diagnose(model, lambda model: torch.func.functional_call(model, given, (X,)), 60)
    (line,) = report.fix_()
    assert "torch.func.functional_call" in line


@pytest.mark.parametrize("name", ["weight drop", "weight drop inside"])
def test_dropped_weights_are_not_said_to_look_trained(name):
    """Before its first call in eval mode the module has a dropped one."""
    model = COMPUTED[name]().train()
    model(X)
    (line,) = diagnose(model, X, 60).fix_()
    assert "left alone (default_start)" in line and "looks trained" not in line and "are lost" in line


def test_a_weight_that_is_not_there_yet_has_no_spec():
    with pytest.raises(ModuleError, match=r"its weight_hh_l0 is set by another module"):
        isornn.init.spec_of(COMPUTED["weight drop inside"]())


@pytest.mark.parametrize("name", CLOSED)
@pytest.mark.parametrize(
    "use",
    [
        lambda model: diagnose(model, X),
        lambda model: isornn.init.critical_(model, 50),
        lambda model: isornn.init.critical_(model, batch=X),
        isornn.init.spec_of,
        Monitor,
    ],
    ids=["diagnose", "critical_", "critical_ with batch", "spec_of", "Monitor"],
)
def test_what_cannot_be_read_is_refused_with_what_to_give(name, use):
    make, why = CLOSED[name]
    with pytest.raises(ModuleError, match=rf"rnn is LSTM: it is {why}.*: give the model as it was before"):
        use(make())


def test_a_quantised_layer_beside_another_is_named():
    class Two(Net):
        def __init__(self):
            super().__init__()
            self.below = nn.GRU(4, 4, batch_first=True)

        def forward(self, x):
            return super().forward(self.below(x)[0])

    model = torch.ao.quantization.quantize_dynamic(Two(), {nn.LSTM})
    found = diagnose(model, X, 60).findings
    assert [(finding.kind, finding.layer) for finding in found] == [
        ("default_start", "below l0"),
        ("cannot_tell", "rnn"),
    ]
    assert "it is quantised: give the model as it was" in found[1].sentence


@pytest.mark.parametrize("attribute", ["model", "policy", "net"])
def test_a_host_that_has_made_none_yet_is_refused_with_what_to_do(attribute):
    class Host:
        pass

    host: Any = Host()
    setattr(host, attribute, None)
    with pytest.raises(
        ModuleError, match=rf"Host is no torch.nn.Module; its attribute {attribute} is None: fit it first"
    ):
        diagnose(host, X)


@pytest.mark.parametrize("attribute", ["model", "policy", "net"])
def test_a_host_is_refused_with_its_attribute(attribute):
    class Host:
        pass

    host: Any = Host()
    setattr(host, attribute, Net())
    for use in (lambda: diagnose(host, X), lambda: isornn.init.critical_(host, 50), lambda: Monitor(host)):
        with pytest.raises(ModuleError, match=rf"its attribute {attribute} \(Net\) is one with recurrent layers: give"):
            use()


def test_a_stack_that_is_kept_orthogonal_is_replaced_by_matrices_that_are():
    torch.manual_seed(0)
    lstm = isornn.init.critical_(nn.LSTM(4, 16), 30)
    nn.utils.parametrizations.orthogonal(lstm, "weight_hh_l0")
    report = diagnose(lstm, X.transpose(0, 1))
    assert [finding.kind for finding in report.findings] == ["stacked_orthogonal"]
    (done,) = report.fix_()
    assert "each gate's own recurrent matrix is kept orthogonal" in done
    for gate in lstm.weight_hh_l0.detach().split(16):
        torch.testing.assert_close(gate @ gate.T, torch.eye(16), rtol=0, atol=1e-4)
