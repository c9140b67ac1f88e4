"""Findings: models with a known flaw are found out, sound ones are not, and fixes correct."""

import json
import warnings
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from scipy import stats
from torch import nn

import isornn
import known_models
import known_models_held_out
import own_cells
from isornn.diagnosis import CANNOT_TELL, KINDS, Finding, advice, findings, fix_, measure
from isornn.diagnosis.fixes import Fix, redraw_, redraw_fix
from isornn.diagnosis.kolmogorov_smirnov import kolmogorov_smirnov
from isornn.diagnosis.weights import untrained_evidence, weight_facts
from isornn.nn.gate_tensors import recurrent_layers


def told(known):
    said = findings(measure(known.model, known.batch, known.length, theory=False))
    # What denormal numbers cost is the machine's, not the known's; see below.
    found = [finding for finding in said if finding.kind != "denormals"]
    for finding in found:
        json.dumps(finding.to_json(), allow_nan=False)
        assert any(sign.isdigit() for sign in finding.sentence)
        assert any("bar: " in value for value in finding.evidence.values())
        assert finding.remedy or finding.kind == CANNOT_TELL
    return found


def test_there_is_a_model_for_every_kind():
    assert (
        set(KINDS) - {"denormals", "not_finite"}
        == set(known_models.KINDS)
        == {made().kind for made in known_models.FLAWED}
    )


def names(found):
    return {finding.kind for finding in found} - {CANNOT_TELL}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("made", [*known_models.FLAWED, *known_models_held_out.FLAWED], ids=lambda made: made.__name__)
def test_the_kind_is_named_and_no_other(made):
    known = made()
    found = told(known)
    assert known.kind in names(found)
    assert names(found) <= {known.kind} | known.also
    order = [*KINDS, CANNOT_TELL]
    assert [finding.kind for finding in found] == sorted((v.kind for v in found), key=order.index)


@pytest.mark.parametrize("made", [*known_models.SOUND, *known_models_held_out.SOUND], ids=lambda made: made.__name__)
def test_the_healthy_are_not_called_ill(made):
    assert names(told(made())) == set()


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
    (length,) = known_models.SOLVED[cell]
    written = known_models.critical_spec(cell, length)
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


QUICK = (known_models.default_rnn, known_models.exploding_relu, known_models.doubled_deep_gru)


@pytest.mark.parametrize("made", [*QUICK[:2], known_models.stacked_gru], ids=lambda made: made.__name__)
def test_fix_corrects_the_weights(made):
    known = made()
    assert fix_(known.model, told(known), generator=torch.Generator().manual_seed(1))
    assert names(told(known)) == set()


def test_which_of_two_biases_is_meant_is_left_to_the_user():
    """Half of the bias shortens the memory: tasks that were learnt with the sum may not be with one."""
    lstm = nn.LSTM(4, 32, batch_first=True)
    for bias in (lstm.bias_ih_l0, lstm.bias_hh_l0):
        bias.data[32:64] = 1.0
    batch = torch.randn(8, 20, 4)
    doubled = [finding for finding in findings(measure(lstm, batch)) if finding.kind == "doubled_bias"]
    before = lstm.bias_hh_l0.clone()
    (said,) = fix_(lstm, doubled, batch)
    assert said == (
        "LSTM l0: left alone (doubled_bias): which of 1 and 2 is meant only you know; single_bias_ makes it 1, so that "
        "the memory becomes shorter."
    )
    assert torch.equal(lstm.bias_hh_l0, before)


@pytest.mark.parametrize("made", QUICK, ids=lambda made: made.__name__)
def test_remedies_run_as_printed_and_mend(made):
    known = made()
    found = told(known)
    assert {finding.kind for finding in found} >= {known.kind}
    torch.manual_seed(2)
    for remedy in dict.fromkeys(finding.remedy for finding in found):
        exec(remedy, {"model": known.model, "batch": known.batch})
    assert names(told(known)) == set()


def test_orthogonal_by_gate_keeps_all_else():
    known = known_models.stacked_lstm()
    lstm = known.model.recurrent
    before = {name: value.clone() for name, value in lstm.state_dict().items()}
    stacked = [finding for finding in told(known) if finding.kind == "stacked_orthogonal"]
    for mend in (
        lambda: fix_(known.model, stacked, generator=torch.Generator().manual_seed(0)),
        lambda: exec(stacked[0].remedy, {"model": known.model}),
    ):
        lstm.load_state_dict(before)
        mend()
        for matrix in lstm.weight_hh_l0.detach().split(64):
            torch.testing.assert_close(matrix @ matrix.T, torch.eye(64), atol=1e-5, rtol=0)
        assert all(torch.equal(value, before[name]) for name, value in lstm.state_dict().items() if "hh" not in name)


def test_remedies_of_data():
    packing, scaling = known_models.padded_gru(), known_models.raw_sensor()
    known: dict[str, Any] = {}
    exec(told(packing)[0].remedy, known)
    packed = known["packed"](packing.batch, torch.tensor([100, 95, 60, 50, 50, 40, 30, 25]))
    whole = known_models.LastOfPacked(packing.model.recurrent, 64)
    assert names(findings(measure(whole, packed, packing.length, theory=False))) == set()
    exec(told(scaling)[0].remedy, known)
    scaled = known["normalised"](scaling.batch, scaling.batch)
    assert "unnormalised_input" not in names(findings(measure(scaling.model, scaled, 100, theory=False)))


def test_what_lies_in_the_data_is_left_to_the_user():
    known = known_models.padded_gru()
    before = [value.clone() for value in known.model.state_dict().values()]
    (said,) = fix_(known.model, told(known))
    assert said.startswith("recurrent l0: left alone (padding): it is in the data; ")
    unsure = Finding(CANNOT_TELL, "recurrent l0", "", {})
    assert fix_(known.model, [*told(known), unsure])[0] == said
    assert all(torch.equal(a, b) for a, b in zip(before, known.model.state_dict().values(), strict=True))


@pytest.mark.parametrize("steps", [1, 30])
def test_a_trained_layer_is_left_alone(steps):
    """Already one step of an optimiser moves biases apart that were equal, and matrices off the orthogonal ones."""
    known = known_models.vanishing_rnn()
    optimiser = torch.optim.Adam(known.model.parameters(), 0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        known.model(known.batch[:10]).square().mean().backward()
        optimiser.step()
    before = [value.clone() for value in known.model.state_dict().values()]
    found = told(known)
    assert "throws away # what it has learnt" in " ".join(found[0].remedy.split())
    (said,) = fix_(known.model, found)
    assert said.startswith("recurrent l0: left alone (vanishing): it looks trained")
    assert all(torch.equal(a, b) for a, b in zip(before, known.model.state_dict().values(), strict=True))


def test_a_narrow_layer_is_left_alone_for_its_few_weights():
    model = nn.RNN(3, 5)
    (finding,) = findings(measure(model, torch.randn(40, 8, 3)))
    (said,) = fix_(model, [finding])
    assert said.startswith("RNN l0: left alone (default_start): it has too few weights to tell whether it is trained")


def test_a_cell_that_is_not_pointwise_is_drawn_orthogonal():
    layer = isornn.nn.VanillaRNN(4, 32, nonlinearity="oplu")
    assert redraw_(layer, "VanillaRNN l0", 50, torch.randn(20, 4, 4)) == "drawn again by the orthogonal start"
    weight = layer.weight_hh_l0.detach()
    torch.testing.assert_close(weight @ weight.T, torch.eye(32), rtol=0, atol=1e-5)


def test_parametrised_weights_are_left_alone():
    rnn = nn.RNN(4, 32)
    nn.utils.parametrizations.orthogonal(rnn, "weight_hh_l0")
    found = Finding("vanishing", "RNN l0", "", {}, Fix(redraw_, "RNN l0", (50,)))
    (said,) = fix_(rnn, [found])
    assert said.startswith("RNN l0: left alone (vanishing): ") and "is not a parameter" in said


def test_a_stack_that_is_kept_orthogonal_is_fixed_too():
    """torch's own parametrisation of an LSTM's matrix does to the stack what is meant for each gate."""
    lstm = nn.LSTM(4, 24)
    nn.utils.parametrizations.orthogonal(lstm, "weight_hh_l0")
    x = torch.randn(20, 6, 4)
    found = findings(measure(lstm, x, 20, theory=False))[0]
    assert found.kind == "stacked_orthogonal"
    exec(found.remedy, {"model": lstm})
    assert "stacked_orthogonal" not in names(findings(measure(lstm, x, 20, theory=False)))


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


@pytest.mark.parametrize(
    ("advice", "action"),
    [
        (advice.clip(), "torch.nn.utils.clip_grad_norm_"),
        (advice.flush(), "torch.set_flush_denormal(True)"),
        (advice.pack(True), "torch.nn.utils.rnn.pack_padded_sequence"),
        (advice.pack(None), "torch.where"),
        (advice.normalise(), "standard deviation"),
    ],
)
def test_what_is_left_to_the_user_says_what_to_do(advice, action):
    finding = Finding("vanishing", "RNN l0", "The gradient vanishes.", {}, advice)
    (said,) = fix_(nn.RNN(2, 3), [finding])
    assert said == f"RNN l0: left alone (vanishing): {advice.why}."
    assert action in said
    assert not action.startswith("torch") or action.rpartition(".")[2] in advice.code


def test_findings_of_the_whole_model_are_left_by_name():
    finding = Finding("not_finite", None, "The loss on the batch is nan.", {})
    assert fix_(nn.RNN(2, 3), [finding]) == ["the whole model: left alone (not_finite): The loss on the batch is nan."]


def test_a_layer_that_is_not_the_models_is_refused():
    with pytest.raises(ValueError, match=r"layer: 'LSTM l3' is not allowed; the model has LSTM l0"):
        fix_(nn.LSTM(2, 3), [Finding("vanishing", "LSTM l3", "", {}, Fix(redraw_, "LSTM l3", (50,)))])


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
    assert "doubled_bias" not in names(findings(measure(model, batch, theory=False)))
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
    assert (
        redraw_fix(layer, 20, trained=False)(model, generator=torch.Generator()) == "drawn again by the critical start"
    )


def test_fix_draws_each_layer_for_what_it_then_receives():
    """The upper module is registered first; its input is what the redrawn one below gives."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"top": nn.GRU(24, 16, batch_first=True), "low": nn.GRU(3, 24, batch_first=True)})
    model.forward = lambda x: model["top"](model["low"](x)[0])[0]
    batch = 2 + torch.randn(8, 120, 3).cumsum(1) / 5
    found = findings(measure(model, batch))
    assert names(found) == {"default_start"}
    done = fix_(model, found, batch, generator=torch.Generator().manual_seed(0))
    assert [line.partition(":")[0] for line in done] == ["low l0", "top l0"]
    with torch.no_grad():
        low = model["low"](batch)[0]
        for layer, x in ((model["low"], batch), (model["top"], low)):
            candidate = (x @ layer.weight_ih_l0.T + layer.bias_ih_l0).chunk(3, -1)[2]
            assert candidate.mean((0, 1)).abs().max() < 1e-3
            assert 1 < candidate.var((0, 1)).mean() < 6


@pytest.mark.parametrize(
    ("kind", "evidence"),
    [(nn.LSTM, "the input matrix is 0 in f, o"), (nn.GRU, "biases are the same for all units in r, nh")],
)
def test_a_start_for_a_batch_does_not_look_trained(kind, evidence):
    """Its biases make up for the mean of the input, and so differ over units in most gates."""
    torch.manual_seed(0)
    batch = 2 + torch.randn(8, 30, 3)
    model = isornn.init.critical_(kind(3, 16, batch_first=True), batch=batch)
    (layer,) = recurrent_layers(model)
    assert untrained_evidence(weight_facts(layer)) == evidence
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    model(batch)[0].square().mean().backward()
    optimiser.step()
    assert untrained_evidence(weight_facts(layer)) is None


def test_packed_sequences_of_one_length_are_given_lengths():
    torch.manual_seed(0)
    x = torch.randn(200, 4, 3)
    x[100:], x[90:, 0] = 0.5, 0.5
    packed = nn.utils.rnn.pack_padded_sequence(x, [200] * 4)
    kinds = [{one.kind for one in findings(measure(nn.GRU(3, 8), batch, theory=False))} for batch in (x, packed)]
    assert "padding" in kinds[0] and "padding" not in kinds[1]


def test_relu_layers_are_drawn_again_as_identity_draws_them():
    """Glorot's uniform entries, whose bound normal ones exceed."""
    model = nn.RNN(50, 64, nonlinearity="relu")
    redraw_(model, "RNN l0", 100, generator=torch.Generator().manual_seed(0))
    drawn = isornn.init.identity_(nn.RNN(50, 64, nonlinearity="relu"), generator=torch.Generator().manual_seed(0))
    assert torch.equal(model.weight_ih_l0, drawn.weight_ih_l0) and torch.equal(model.weight_hh_l0, torch.eye(64))


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


def test_what_one_run_in_eval_mode_does_not_show_is_said():
    torch.manual_seed(0)
    found = {one.layer: one for one in findings(measure(Hierarchical(), torch.randn(12, 60, 3), 30, theory=False))}
    assert found["words l0"].kind == "cannot_tell" and "or give length=12" in found["words l0"].sentence
    assert found["extra"].kind == "not_reached" and "in training mode alone" in found["extra"].sentence


def test_a_redraw_says_that_wrapped_weights_come_first():
    torch.manual_seed(0)
    plain, batch = nn.LSTM(4, 24), torch.randn(60, 6, 4)
    notes = {}
    for wrapped in (False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own advice on weight_norm
            lstm = nn.utils.weight_norm(plain, "weight_hh_l0") if wrapped else plain
        found = measure(lstm, batch, theory=False)
        assert found.layers[0].info.parametrised == wrapped
        notes[wrapped] = next(one for one in findings(found) if one.kind == "default_start").remedy
    assert "before it is wrapped" in notes[True] and "wrapped" not in notes[False]
