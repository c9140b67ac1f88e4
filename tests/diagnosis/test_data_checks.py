"""Inputs that are not normalised: of the data, or what the model computes; and levels of sequences."""

import json
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import isornn

RAW = 4 * torch.randn(4, 30, 5, generator=torch.Generator().manual_seed(0)) - 80


def unnormalised(model, batch):
    return {one.layer: one for one in isornn.diagnose(model, batch).findings if one.kind == "unnormalised_input"}


class Stacked(nn.Module):
    """A second module upon a first that raw data saturate."""

    def __init__(self, packed):
        super().__init__()
        self.packed = packed
        self.below, self.above = nn.LSTM(5, 16, batch_first=True), nn.LSTM(16, 16, batch_first=True)
        for weight in self.above.parameters():
            weight.data.mul_(8)

    def forward(self, x):
        if self.packed:
            x = pack_padded_sequence(x, torch.tensor([30, 20, 10, 30]), batch_first=True, enforce_sorted=False)
        return self.above(self.below(x)[0])[1][0]


@pytest.mark.parametrize("packed", [False, True])
def test_what_follows_from_raw_data_is_not_named_too(packed):
    assert list(unnormalised(Stacked(packed), RAW)) == ["below l0"]


@pytest.mark.parametrize(
    ("model", "batch", "computed"),
    [
        (nn.GRU(5, 16), RAW.transpose(0, 1), False),
        (nn.GRU(5, 16, batch_first=True), RAW.double().float(), False),
        (nn.Sequential(nn.Unflatten(1, (30, 5)), nn.GRU(5, 16, batch_first=True)), RAW.flatten(1), False),
        (nn.Sequential(nn.Linear(5, 5), nn.GRU(5, 16, batch_first=True)), RAW, True),
    ],
)
def test_inputs_that_the_model_computes_are_named_so(model, batch, computed):
    (found,) = unnormalised(model, batch).values()
    assert found.sentence.startswith("The inputs, which the model computes," if computed else "The inputs are")
    assert ("LayerNorm(5)" in found.remedy) == computed


def test_raw_inputs_hide_no_finding_of_a_layer_above_that_gets_what_is_computed_from_them():
    class Weather(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.GRU(3, 64, batch_first=True), nn.LSTM(64, 64, batch_first=True)

        def forward(self, x):
            return self.decoder(self.encoder(x)[0])[0][:, -1]

    torch.manual_seed(0)  # the first gates saturate, so that most of what the second layer gets hardly varies
    batch = torch.tensor([1013.0, 20.0, 0.5]) + torch.tensor([8.0, 5.0, 0.2]) * torch.randn(8, 100, 3)
    found = {(finding.kind, finding.layer) for finding in isornn.diagnose(Weather(), batch).findings}
    assert {("unnormalised_input", "encoder l0"), ("default_start", "decoder l0")} <= found
    assert ("unnormalised_input", "decoder l0") not in found


def test_an_embedding_is_not_normalised_by_the_data():
    model = nn.Sequential(nn.Embedding(50, 8), nn.GRU(8, 16, batch_first=True))
    model[0].weight.data.mul_(100)
    (found,) = unnormalised(model, torch.randint(0, 50, (4, 30))).values()
    assert "which the model computes" in found.sentence and "LayerNorm(8)" in found.remedy


def test_sequences_of_unlike_levels_are_named():
    levels = torch.tensor([0.3, 1.0, 0.5, 2.0, 0.2, 60.0, 0.4, 0.1])
    series = levels[:, None, None] * (1.5 + torch.sin(torch.arange(100.0) / 3))[:, None]
    torch.manual_seed(0)
    model = nn.LSTM(1, 32, batch_first=True)
    (found,) = unnormalised(model, series).values()
    assert "sequences have unlike levels" in found.sentence
    assert not unnormalised(model, series / levels[:, None, None])
    assert not unnormalised(model, torch.randn(8, 100, 1) * (1 + torch.rand(8, 1, 1)))


B, T, D = 32, 60, 8
NOISE = torch.randn(B, T, D, generator=torch.Generator().manual_seed(0))
UNIFORM = torch.rand(B, T, D, generator=torch.Generator().manual_seed(1))


def of_data(batch, model=None, **options):
    """The finding of what data has, if there is one, of a critical start."""
    if model is None:
        model = isornn.init.critical_(nn.GRU(D, 32, batch_first=True), T, input=isornn.Input())
    found = isornn.diagnose(model, batch, **options).findings
    return {one.kind: one for one in found if one.kind in ("small_features", "heavy_tails")}


def scaled(scale, *features):
    batch = NOISE.clone()
    batch[..., list(features)] *= scale
    return batch


def with_feature(values):
    batch = NOISE.clone()
    batch[..., 2] = values
    return batch


def test_small_features_beside_larger_ones_are_named():
    found = of_data(scaled(1e-3, 2, 5))["small_features"]
    assert "2 of 8 features (2, 5, counted from 0)" in found.sentence and "± 1.6e-05 (root mean" in found.sentence
    assert list(found.evidence.values())[1].endswith("(bar: 0.1)") and "scale.where" in found.remedy
    assert "small_features" in of_data(scaled(1e-3, 2)[:1])  # of one sequence the error is unknown
    assert "(0, 1, 2, 3, ...)" not in of_data(scaled(1e-3, 0, 1, 2))["small_features"].sentence
    json.dumps(found.to_json(), allow_nan=False)


SIZES = {
    "alike": NOISE,
    "ten times smaller": scaled(0.1, 2),
    "of falling size": NOISE * torch.logspace(0, -3, D),
    "a level of its own": with_feature(0.5 + 1e-3 * NOISE[..., 2]),
    "constant": with_feature(0.001),
    "rare indicator": with_feature((UNIFORM[..., 2] < 1e-3).float()),
    "all in one sequence": with_feature(1e-3 * NOISE[..., 2] * (torch.arange(B) == 3)[:, None]),
    "rare values": with_feature(1.5 * (UNIFORM[..., 2] < 1e-3).float()),
}


@pytest.mark.parametrize("name", SIZES)
def test_features_of_other_sizes_are_no_fault(name):
    assert "small_features" not in of_data(SIZES[name])


def test_features_that_the_model_computes_are_not_judged():
    model = nn.Sequential(nn.Linear(D, D), nn.GRU(D, 32, batch_first=True))
    model[0].weight.data[2], model[0].bias.data[2] = 1e-4, 0.0
    assert not of_data(NOISE, model)


def test_heavy_tails_are_named_with_their_size():
    found = of_data((2 * NOISE).exp() / 50)["heavy_tails"]
    assert "12.6 ± 3.3 times what is usual" in found.sentence and "asinh" in found.remedy
    assert "(bar: 5, by 2 errors over sequences)" in next(iter(found.evidence.values()))
    namespace: dict[str, Any] = {}
    exec(found.remedy, namespace)
    assert not of_data(namespace["compressed"]((2 * NOISE).exp(), (2 * NOISE).exp()))


def test_a_start_is_not_drawn_for_heavy_tails():
    torch.manual_seed(0)
    model, batch = nn.GRU(D, 32, batch_first=True), (2 * NOISE).exp() / 50
    before = model.weight_hh_l0.clone()
    report = isornn.diagnose(model, batch)
    assert [one.kind for one in report.findings] == ["heavy_tails", "default_start"]
    data, start = report.fix_()
    assert data.startswith("GRU l0: left alone (heavy_tails): it is in the data; take logarithms")
    assert start == (
        "GRU l0: left alone (default_start): take logarithms of the inputs of GRU l0, or clip them, first, then "
        "diagnose again."
    )
    assert torch.equal(model.weight_hh_l0, before)


def of_two_levels():
    """As speech: loud for some of the time."""
    loud = torch.rand(B, 6, 1, generator=torch.Generator().manual_seed(2)) ** 4
    return NOISE * loud.repeat_interleave(T // 6, 1)


TAILS = {
    "normal": NOISE,
    "lognormal": NOISE.exp(),
    "one outlier": torch.where((torch.arange(B * T * D) == 999).view(B, T, D), 30.0, NOISE),
    "of two levels": of_two_levels(),
    "counts": (UNIFORM < 0.02) * (1 + (200 * UNIFORM).floor()),
    "all in one sequence": torch.where((torch.arange(B) == 3)[:, None, None], (2 * NOISE).exp(), 0.0),
    "padded": NOISE * (torch.arange(T) < torch.arange(1, B + 1)[:, None] // 8 + 1)[..., None],
    "one-hot": nn.functional.one_hot((D * UNIFORM[..., 0] ** 3).long(), D).float(),
}


@pytest.mark.parametrize("name", TAILS)
def test_other_tails_are_no_fault(name):
    assert "heavy_tails" not in of_data(TAILS[name])


def test_of_sparse_data_it_is_known_that_it_is_the_batchs():
    """Many rows begin with 0, as the largest row does."""
    layer = isornn.diagnose(nn.GRU(D, 32, batch_first=True), TAILS["counts"]).diagnosis.layers[0]
    assert layer.use.reads_batch is True and layer.inputs.tails.number() < 5


class AtOwnEnds(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.rnn = nn.GRU(3, 16, batch_first=True, **options)

    def forward(self, x, lengths):
        return self.rnn(x)[0][torch.arange(len(x)), lengths - 1]


def padding(model, *batch):
    return "padding" in {one.kind for one in isornn.diagnose(model, batch).findings}


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_padding_at_which_nothing_is_read_is_no_fault(repeats, layers):
    x, lengths = torch.randn(6, 40, 3), torch.tensor([40, 30, 21, 35, 12, 9])
    for row, length in zip(x, lengths, strict=True):
        row[length:] = row[length - 1] if repeats else 0.0
    assert not padding(AtOwnEnds(num_layers=layers), x, lengths)
    assert padding(AtOwnEnds(num_layers=layers), x, torch.full((6,), 40))
    both = isornn.diagnose(AtOwnEnds(num_layers=layers, bidirectional=True), (x, lengths)).findings
    (ahead,) = (one for one in both if one.kind == "padding")
    assert ahead.layer == "rnn l0_reverse" and "ahead of each sequence" in ahead.sentence
    both = isornn.diagnose(AtOwnEnds(num_layers=layers, bidirectional=True), (x, torch.full((6,), 40))).findings
    assert [one.layer for one in both if one.kind == "padding"] == ["rnn l0"]
    assert padding(nn.GRU(3, 16, layers, batch_first=True), x)


def test_steps_at_the_end_of_every_sequence_are_no_padding_ahead_of_a_reverse_direction():
    class AtStep(AtOwnEnds):
        def forward(self, x, lengths=None):
            output = self.rnn(x)[0]
            return torch.cat([output[:, 29, :16], output[:, 0, 16:]], -1)

    x = torch.randn(6, 40, 3)
    x[:, 30:] = 0.0
    assert not padding(AtStep(bidirectional=True), x)
    x[0, 35:] = 1.0
    assert padding(AtStep(bidirectional=True), x)


class StepsWithMask(nn.Module):
    """A cell that is stepped by hand, and keeps each sequence's state from its own last step on."""

    def __init__(self, masked):
        super().__init__()
        self.cell, self.masked = nn.GRUCell(3, 16), masked

    def forward(self, x, lengths):
        h = x.new_zeros(len(x), 16)
        for time in range(x.shape[1]):
            new = self.cell(x[:, time], h)
            h = torch.where((time < lengths).unsqueeze(-1), new, h) if self.masked else new
        return h


def test_steps_at_which_a_copy_is_written_are_no_padding():
    """All sequences end in the same ten blanks, and are read there."""
    x, *_ = next(iter(isornn.tasks.loader(isornn.tasks.Copy(30), 8, 0)))
    x = nn.functional.one_hot(x).float()
    model = nn.LSTM(x.shape[-1], 16)
    assert (x[-9:] == x[-10]).all() and not padding(model, x)
    x[-16:, 0] = x[-1, 0]  # one sequence is shorter than the others
    assert padding(model, x)


def test_padding_of_a_cell_whose_states_are_masked_is_no_fault():
    x, lengths = torch.randn(6, 40, 3), torch.tensor([40, 30, 21, 35, 12, 9])
    for row, length in zip(x, lengths, strict=True):
        row[length:] = 0.0
    assert not padding(StepsWithMask(True), x, lengths) and padding(StepsWithMask(False), x, lengths)


def test_padding_ahead_of_sequences_is_read_by_a_reverse_direction_alone():
    lengths, x = torch.arange(20, 36), torch.randn(16, 35, 3)
    ahead = x * (torch.arange(35) >= 35 - lengths[:, None])[..., None]
    torch.manual_seed(0)
    kinds = {}
    for both in (False, True):
        found = isornn.diagnose(nn.GRU(3, 16, batch_first=True, bidirectional=both), ahead).findings
        kinds[both] = [finding.layer for finding in found if finding.kind == "padding"]
    assert kinds == {False: [], True: ["GRU l0_reverse"]}


class Codes(nn.Module):
    """Reads codes of what it is given: of slow states, the same one for a while."""

    def __init__(self):
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(16, 8), nn.GRU(8, 16, batch_first=True)

    def forward(self, x, statics):
        codes = self.embedding(x.cumsum(1).argmax(-1))
        return self.rnn(torch.cat([codes[..., :6], statics[:, None].expand(-1, x.shape[1], -1)], -1))[0]


def test_codes_that_stay_the_same_are_no_padding():
    torch.manual_seed(0)
    model, x, statics = Codes(), torch.randn(12, 60, 16), torch.randn(12, 2)
    x[:, 40:] *= 0.01  # the sums, and so the codes, hardly change
    assert not padding(model, x, statics)
    x[:, 40:] = 0
    x[:6, 30:] = 0
    assert padding(model, x, statics)
