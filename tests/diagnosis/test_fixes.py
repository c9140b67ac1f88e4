"""Fixes: they correct what is found, and leave to the user what lies elsewhere."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import isornn
import known_models
from isornn.diagnosis import CANNOT_TELL, Finding, advice, findings, fix_, measure
from isornn.diagnosis.fixes import Fix, redraw_
from isornn.diagnosis.weights import untrained_evidence, weight_facts
from isornn.nn.gate_tensors import recurrent_layers
from model_parts import LastOfPacked, findings_of, kinds_of

QUICK = (known_models.default_rnn, known_models.exploding_relu, known_models.doubled_deep_gru)


@pytest.mark.parametrize("made", [*QUICK[:2], known_models.stacked_gru], ids=lambda made: made.__name__)
def test_fix_corrects_the_weights(made):
    known = made()
    assert fix_(known.model, findings_of(known), generator=torch.Generator().manual_seed(1))
    assert kinds_of(findings_of(known)) == set()


@pytest.mark.filterwarnings("ignore:.*it shares parameters with")
def test_a_layer_that_shares_a_matrix_does_not_look_trained_once_that_is_drawn():
    class Sharing(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.GRU(4, 16), nn.GRU(4, 16)
            self.other.weight_hh_l0 = self.one.weight_hh_l0

        def forward(self, x):
            return self.one(x)[0] + self.other(x)[0]

    torch.manual_seed(0)
    model, batch = Sharing(), torch.randn(40, 8, 4)
    said = fix_(model, findings(measure(model, batch)), batch)
    assert [line.partition(":")[0] for line in said if "drawn again" in line] == ["one l0", "other l0"]
    assert findings(measure(model, batch)) == ()


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
def test_remedies_run_as_printed_and_correct(made):
    known = made()
    found = findings_of(known)
    assert {finding.kind for finding in found} >= {known.kind}
    torch.manual_seed(2)
    for remedy in dict.fromkeys(finding.remedy for finding in found):
        exec(remedy, {"model": known.model, "batch": known.batch})
    assert kinds_of(findings_of(known)) == set()


def test_orthogonal_by_gate_keeps_all_else():
    known = known_models.stacked_lstm()
    lstm = known.model.recurrent
    before = {name: value.clone() for name, value in lstm.state_dict().items()}
    stacked = [finding for finding in findings_of(known) if finding.kind == "stacked_orthogonal"]
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
    exec(findings_of(packing)[0].remedy, known)
    packed = known["packed"](packing.batch, torch.tensor([100, 95, 60, 50, 50, 40, 30, 25]))
    whole = LastOfPacked(packing.model.recurrent, 64)
    assert kinds_of(findings(measure(whole, packed, packing.length, theory=False))) == set()
    exec(findings_of(scaling)[0].remedy, known)
    scaled = known["normalised"](scaling.batch, scaling.batch)
    assert "unnormalised_input" not in kinds_of(findings(measure(scaling.model, scaled, 100, theory=False)))


def test_what_lies_in_the_data_is_left_to_the_user():
    known = known_models.padded_gru()
    before = [value.clone() for value in known.model.state_dict().values()]
    (said,) = fix_(known.model, findings_of(known))
    assert said.startswith("recurrent l0: left alone (padding): it is in the data; ")
    unsure = Finding(CANNOT_TELL, "recurrent l0", "", {})
    assert fix_(known.model, [*findings_of(known), unsure])[0] == said
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
    found = findings_of(known)
    assert "throws away # what it has learnt" in " ".join(found[0].remedy.split())
    (said,) = fix_(known.model, found)
    assert said.startswith("recurrent l0: left alone (vanishing): it looks trained")
    assert all(torch.equal(a, b) for a, b in zip(before, known.model.state_dict().values(), strict=True))


def test_a_narrow_layer_is_left_alone_for_its_few_weights():
    model = nn.RNN(3, 5)
    (finding,) = findings(measure(model, torch.randn(40, 8, 3)))
    assert "default initialisation, as far as 25 recurrent entries can tell" in finding.sentence
    assert "too few weights to tell whether it is trained" in finding.remedy and "looks trained" not in finding.remedy
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
    assert "stacked_orthogonal" not in kinds_of(findings(measure(lstm, x, 20, theory=False)))


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


def test_fix_draws_each_layer_for_what_it_then_receives():
    """The upper module is registered first; its input is what the redrawn one below gives."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"top": nn.GRU(24, 16, batch_first=True), "low": nn.GRU(3, 24, batch_first=True)})
    model.forward = lambda x: model["top"](model["low"](x)[0])[0]
    batch = 2 + torch.randn(8, 120, 3).cumsum(1) / 5
    found = findings(measure(model, batch))
    assert kinds_of(found) == {"default_start"}
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


def test_relu_layers_are_drawn_again_as_critical_draws_them():
    model = nn.RNN(50, 64, nonlinearity="relu")
    assert (
        redraw_(model, "RNN l0", 100, generator=torch.Generator().manual_seed(0)) == "drawn again by the critical start"
    )
    assert torch.equal(model.weight_hh_l0, torch.eye(64))
    assert model.weight_ih_l0.var().item() == pytest.approx(1 / 50 / 100, rel=0.1)


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
