"""Findings: models with a known flaw are found out, sound ones are not, and fixes correct."""

import json
from dataclasses import dataclass, replace

import pytest
import torch
from scipy import stats
from torch import nn

import isornn
import known_models
import known_models_held_out
import own_cells
from isornn.diagnosis import CANNOT_TELL, KINDS, findings, fix_, measure
from isornn.diagnosis.fixes import redraw_fix
from isornn.diagnosis.kolmogorov_smirnov import kolmogorov_smirnov
from isornn.diagnosis.weights import untrained_evidence, weight_facts
from isornn.nn.gate_tensors import recurrent_layers
from model_parts import SOLVED, critical_spec, findings_of, kinds_of


def test_there_is_a_model_for_every_kind():
    assert (
        set(KINDS) - {"denormals", "not_finite"}
        == set(known_models.KINDS)
        == {made().kind for made in known_models.FLAWED}
    )


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("made", [*known_models.FLAWED, *known_models_held_out.FLAWED], ids=lambda made: made.__name__)
def test_the_kind_is_named_and_no_other(made):
    known = made()
    found = findings_of(known)
    assert known.kind in kinds_of(found)
    assert kinds_of(found) <= {known.kind} | known.also
    order = [*KINDS, CANNOT_TELL]
    assert [finding.kind for finding in found] == sorted((v.kind for v in found), key=order.index)


@pytest.mark.parametrize("made", [*known_models.SOUND, *known_models_held_out.SOUND], ids=lambda made: made.__name__)
def test_sound_models_have_no_findings(made):
    assert kinds_of(findings_of(made())) == set()


LOSSES = {
    "mean": lambda output: output[0].mean(),
    "sum": lambda output: output[0].sum(),
    "square": lambda output: output[0].square().sum(),
    "last": lambda output: 1e6 * output[0][-1].mean(),
    "squared error": lambda output: nn.functional.mse_loss(output[0], torch.ones_like(output[0])),
}


def amplifications(model, x, target):
    diagnosis = measure(model, x, target=target)
    return [finding for finding in findings(diagnosis) if finding.kind == "amplified"], diagnosis.layers[0]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_gradient_of_any_loss_is_called_amplified_by_the_recurrence_alone(loss):
    """Whatever the loss's units: a sum over 60 x 16 x 64 entries is not, in a network that amplifies nothing."""
    known = known_models.coupled_relu()
    (found,), layer = amplifications(known.model.recurrent, known.batch, LOSSES[loss])
    assert layer.amplification.of_loss and layer.amplification.log.error() == 0
    assert "the gradient of the loss" in found.sentence
    for make in (nn.RNN, nn.GRU, nn.LSTM):
        for start in (None, isornn.init.critical_):
            torch.manual_seed(0)
            model = make(8, 64)
            if start is not None:
                start(model, 60)
            found, layer = amplifications(model, known.batch, LOSSES[loss])
            assert not found and layer.amplification.log.number() < 1


def test_growth_that_the_loss_does_not_see_does_not_count():
    known = known_models.coupled_relu()
    found, layer = amplifications(known.model.recurrent, known.batch, lambda output: output[0][..., 1:].mean())
    assert not found and layer.amplification.log.number() < 1


@pytest.mark.parametrize("target", [None, lambda output: output[0].square().sum()])
def test_amplification_is_that_of_autograd(target):
    """Every state of a stepped cell's loop is a leaf's equal; norms by time, from the sequences' common end."""
    torch.manual_seed(0)
    cell = nn.GRUCell(3, 5, dtype=torch.float64)
    layer, x = nn.GRU(3, 5, dtype=torch.float64), torch.randn(12, 4, 3, dtype=torch.float64)
    for name, value in cell.named_parameters():
        value.data.mul_(6)
        getattr(layer, f"{name}_l0").data.copy_(value)
    found = measure(layer, x, target=target, generator=torch.Generator().manual_seed(1)).layers[0].amplification
    h = torch.zeros(4, 5, dtype=torch.float64, requires_grad=True)
    states = [h]
    for row in x:
        states.append(cell(row, states[-1]))
    if target is None:
        drawn = torch.Generator().manual_seed(1)
        torch.randn(4, 4, 5, generator=drawn, dtype=torch.float64)  # the displacements of states, forwards
        vectors = torch.randn(4, 5, generator=drawn, dtype=torch.float64)
        loss, entering = (vectors * states[-1]).sum(), [torch.zeros(4)] * 12 + [vectors.norm(dim=1)]
    else:
        loss = target((torch.stack(states[1:]),))
        entering = [torch.zeros(4), *(2 * state.detach().norm(dim=1) for state in states[1:])]
    gradients = torch.autograd.grad(loss, states)
    ratios = [gradients[t].norm() / torch.stack(entering[t:]).sum(0).norm() for t in range(13)]
    largest = max(range(13), key=lambda t: float(ratios[t]))
    assert found.log.number() == pytest.approx(float(ratios[largest].log()), rel=1e-9)
    assert found.lag == 12 - largest
    assert (found.log.error() > 0) is (target is None)


def test_the_law_of_the_largest_distance_is_that_of_scipy():
    for count, tolerance in ((64, 3e-4), (1000, 3e-5), (65_536, 1e-6)):
        distances = torch.linspace(0.3, 2.5, 40).double() / count**0.5
        exact = stats.kstwo.sf(distances.numpy(), count)
        ours = [kolmogorov_smirnov(distance, count) for distance in distances.tolist()]
        assert ours == pytest.approx(exact.tolist(), abs=tolerance, rel=0)
    layer = nn.GRU(4, 32)
    draw = weight_facts(recurrent_layers(layer)[0]).recurrent_default
    bound = 32**-0.5
    expected = stats.kstest(layer.weight_hh_l0.detach().double().flatten().numpy(), "uniform", (-bound, 2 * bound))
    assert draw.distance == pytest.approx(expected.statistic, rel=1e-12)
    assert draw.p_value == pytest.approx(expected.pvalue, abs=3e-5)


@pytest.mark.parametrize("cell", ["peephole", "t_lstm"])
def test_known_models_start_as_isometric_does(cell):
    (length,) = SOLVED[cell]
    written = critical_spec(cell, length)
    solved = isornn.isometric(written.cell, length).spec
    assert solved.gates.keys() == written.gates.keys()
    for name, gate in solved.gates.items():
        own = written.gates[name]
        assert replace(gate, bias_law=None) == replace(own, bias_law=None)
        if gate.bias_law is None:
            assert own.bias_law is None
        else:
            assert gate.bias_law.sign == own.bias_law.sign
            assert (gate.bias_law.low, gate.bias_law.high) == pytest.approx((own.bias_law.low, own.bias_law.high))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_weights_from_elsewhere_do_not_pass_for_a_start(kind):
    """Frameworks with one bias leave the second at 0; a stray row of equal values says nothing either."""
    layer = kind(6, 40)
    with torch.no_grad():
        for number, parameter in enumerate(layer.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)) / 5)
        layer.bias_hh_l0.zero_()
    (place,) = recurrent_layers(layer)
    assert untrained_evidence(weight_facts(place)) is None
    isornn.init.standard_(layer, generator=torch.Generator().manual_seed(0))
    assert untrained_evidence(weight_facts(place)) is not None


def test_what_cannot_be_told():
    model = nn.ModuleDict({"used": nn.GRU(3, 16), "unused": nn.LSTM(3, 16)})
    model.forward = lambda x: model["used"](x)[0]
    isornn.init.standard_(model["used"], generator=torch.Generator().manual_seed(0))
    short = findings(measure(model, torch.randn(6, 8, 3), 100, theory=False))
    assert [(finding.kind, finding.layer) for finding in short] == [
        ("not_reached", "unused"),
        (CANNOT_TELL, "used l0"),
    ]
    assert "6" in short[1].sentence and "never called" in short[0].sentence
    # What has vanished within the steps that there are needs no more of them.
    long = findings(measure(model, torch.randn(40, 8, 3), 100, theory=False))
    assert [finding.kind for finding in long] == ["not_reached", "vanishing"]
    reached, unsure = fix_(model, short)
    assert reached.startswith("unused: left alone (not_reached): the batch does not reach it")
    assert unsure == f"used l0: left alone (cannot_tell): {short[1].sentence}"


@dataclass(frozen=True)
class Named(own_cells.Gated):
    """A cell of the user's own, in a module that need not be importable."""

    name = "named"


@pytest.mark.parametrize("cell", [own_cells.Gated(), own_cells.Gated("hard_sigmoid"), Named()], ids=repr)
def test_an_own_cells_doubled_bias_is_named_and_fixed(cell):
    torch.manual_seed(0)
    model = nn.Sequential(isornn.nn.RNN(cell, 4, 64, num_layers=2))
    for layer in range(2):
        for bias in model[0].gate_parameters("f", layer).biases:
            bias.data.fill_(1.0)
    batch = torch.randn(40, 8, 4)
    found = [finding for finding in findings(measure(model, batch, theory=False)) if finding.kind == "doubled_bias"]
    assert [finding.layer for finding in found] == ["0 l0", "0 l1"]
    for finding in found:
        exec(finding.remedy, {"model": model})
    assert "doubled_bias" not in kinds_of(findings(measure(model, batch, theory=False)))
    for layer in range(2):
        first, second = model[0].gate_parameters("f", layer).biases
        assert bool((first == 1).all() and (second == 0).all())


def test_records_have_an_own_cells_full_name():
    model = isornn.nn.RNN(own_cells.Many((0.5, 0.25)), 4, 16)
    (layer,) = measure(model, torch.randn(20, 2, 4), theory=False).layers
    assert layer.info.cell == "own_cells:Many" and layer.info.options == {"rates": (0.5, 0.25)}
    json.dumps(layer.to_json(), allow_nan=False)


def test_an_own_cells_nonlinearity_is_not_the_vanilla_networks():
    @dataclass(frozen=True)
    class Other(own_cells.Gated):
        name = "other"
        nonlinearity: str = "tanh"

    model = isornn.nn.RNN(Other(nonlinearity="relu"), 4, 16)
    (layer,) = measure(model, torch.randn(20, 2, 4), theory=False).layers
    assert redraw_fix(layer, trained=False)(model, generator=torch.Generator()) == "drawn again by the critical start"


def test_packed_sequences_of_one_length_are_given_lengths():
    torch.manual_seed(0)
    x = torch.randn(200, 4, 3)
    x[100:], x[90:, 0] = 0.5, 0.5
    packed = nn.utils.rnn.pack_padded_sequence(x, [200] * 4)
    kinds = [{one.kind for one in findings(measure(nn.GRU(3, 8), batch, theory=False))} for batch in (x, packed)]
    assert "padding" in kinds[0] and "padding" not in kinds[1]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("mean", [2.5, 4.0])
def test_means_of_some_deviations_are_no_finding_once_biases_make_up_for_them(kind, mean):
    """The biases of gates that write hold time scales as well, which are as large as what such means add."""
    torch.manual_seed(0)
    batch = mean + torch.randn(60, 8, 8)
    model = isornn.init.critical_(kind(8, 64), batch=batch)
    assert findings(measure(model, batch, theory=False)) == ()


def test_means_that_biases_make_up_for_saturate_nothing():
    torch.manual_seed(0)
    batch = 1e4 + torch.randn(60, 8, 3)
    plain = nn.LSTM(3, 64)
    (found,) = (one for one in findings(measure(plain, batch, theory=False)) if one.kind == "unnormalised_input")
    assert "saturates a gate" in found.sentence
    with pytest.warns(isornn.init.UnnormalisedInput):
        isornn.init.critical_(plain, batch=batch)
    report = measure(plain, batch, theory=False)
    (found,) = (one for one in findings(report) if one.kind == "unnormalised_input")
    assert "times their standard deviations" in found.sentence and "saturates" not in found.sentence


class Hierarchical(nn.Module):
    """Words of 12 steps in texts of 30; an auxiliary layer in training alone."""

    def __init__(self):
        super().__init__()
        self.words, self.texts, self.extra = nn.GRU(3, 8), nn.GRU(8, 8), nn.GRU(8, 8)

    def forward(self, x):
        words = self.words(x)[1].reshape(30, -1, 8)
        return self.extra(words)[0] if self.training else self.texts(words)[0]


@pytest.mark.parametrize("steps", [1, 40])
def test_gates_are_not_held_to_the_length_of_single_steps(steps):
    """Of a policy that is called with one observation, and of a loop whose state is smoothed after every step."""

    class Smoothed(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.LSTMCell(6, 32)

        def forward(self, x):
            h = c = x.new_zeros(len(x), 32)
            for now in x.unbind(1):
                h, c = (0.9 * new + 0.1 * old for new, old in zip(self.cell(now, (h, c)), (h, c), strict=True))
            return h

    torch.manual_seed(0)
    model, x = Smoothed(), torch.randn(6, steps, 6)
    isornn.init.critical_(model, 400, input=isornn.Input())
    measured = measure(model, x, theory=False)
    assert (measured.layers[0].memory.time_constants > 100).any()
    assert {one.kind for one in findings(measured)} == {"cannot_tell"}
    model.cell.bias_hh.data[32:64] = 20  # units that never forget are found by the length that is given
    assert "saturated_forget_gate" in kinds_of(findings(measure(model, x, 40, theory=False)))


def test_what_one_run_in_eval_mode_does_not_show_is_said():
    torch.manual_seed(0)
    found = {one.layer: one for one in findings(measure(Hierarchical(), torch.randn(12, 60, 3), 30, theory=False))}
    assert found["words l0"].kind == "cannot_tell" and "or give length=12" in found["words l0"].sentence
    assert found["extra"].kind == "not_reached" and "in training mode alone" in found["extra"].sentence
