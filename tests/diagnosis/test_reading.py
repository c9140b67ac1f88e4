"""A diagnosis read back from its JSON: the same in every number, and errors that name the field."""

import copy
import json
import math

import pytest
import torch
from torch import nn

import isornn
from isornn.diagnosis import measure
from isornn.diagnosis.reading import NOT_KEPT, diagnosis_from_json, findings_from_json
from isornn.nn import TLSTM
from isornn.records import RecordError

MODELS = {
    "lstm": (nn.LSTM(3, 12, num_layers=2, bidirectional=True), torch.randn(30, 4, 3)),
    "one sequence": (nn.LSTM(3, 12), torch.randn(30, 1, 3)),  # no correlations, no spread
    "vanilla": (nn.RNN(3, 12), torch.randn(30, 4, 3)),  # no gates
    "typed": (TLSTM(3, 12), torch.randn(30, 4, 3)),
    "vanishing at once": (nn.GRU(3, 70), torch.zeros(300, 2, 3)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", [None, lambda output: output[0][-1].sum()])
def test_all_numbers_come_back(name, target):
    model, batch = MODELS[name]
    written = json.loads(json.dumps(measure(model, batch, 100, target).to_json()))
    read = diagnosis_from_json(written)
    again = json.loads(json.dumps(read.to_json()))
    for layer, other in zip(written["layers"], again["layers"], strict=True):
        assert layer.pop("predicted")["reason"] and other.pop("predicted")["reason"]
    assert again == written
    assert {layer.predicted.untied for layer in read.layers} == {None}


def test_nulls_are_what_their_record_says():
    layer = measure(nn.RNN(3, 12), torch.randn(30, 4, 3)).to_json()
    layer["layers"][0]["backward"]["log_norm"]["all"][-1] = None
    layer["layers"][0]["moments"]["h"]["spread"][0] = None
    layer["layers"][0]["memory"]["time_constants"] = [1.0, None]
    (read,) = diagnosis_from_json(layer).layers
    assert read.backward.log_norm["all"][-1] == -math.inf
    assert read.moments["h"].spread[0].isnan()
    assert read.memory.time_constants.tolist() == [1.0, math.inf]


def test_unending_quantities_stay_infinite():
    value = measure(nn.RNN(3, 12), torch.randn(30, 4, 3)).to_json()
    value["layers"][0]["backward"]["xi"] = {"value": None, "stderr": None, "reason": "infinite: it does not fade"}
    value["layers"][0]["backward"]["reach"] = {"value": None, "stderr": None, "reason": "beyond 29 steps"}
    (layer,) = diagnosis_from_json(value).layers
    assert layer.backward.xi.value.isinf() and layer.backward.xi.reason() == "infinite: it does not fade"
    assert layer.backward.reach.number() is None and layer.backward.reach.reason() == "beyond 29 steps"


def test_the_theory_is_not_read_back():
    value = measure(nn.RNN(3, 12), torch.randn(30, 4, 3)).to_json()
    value["layers"][0]["predicted"] = {"untied": {"xi": 3}, "tied": None, "reason": None}
    assert diagnosis_from_json(value).layers[0].predicted.reason == NOT_KEPT


def test_findings():
    report = isornn.diagnose(nn.GRU(3, 32), torch.randn(60, 4, 3))
    read = findings_from_json(json.loads(json.dumps([one.to_json() for one in report.findings])))
    assert [one.to_json() for one in read] == [one.to_json() for one in report.findings] != []


CHANGES = {
    "length": ("3", "length: '3' is not allowed; it must be of type int"),
    "length ": (-3, "length: -3 is not allowed; it must be a number of steps, at least 1"),
    " length": (10**400, r"length: 10*\.\.\. is not allowed; it must be a number of steps"),
    "layers": ({}, "layers: {} is not allowed; it must be a list"),
    "layers.0": (3, r"layers\[0\]: 3 is not allowed; it must be an object"),
    "layers.0.backward": (None, r"layers\[0\].backward: None is not allowed; it must be an object"),
    "layers.0.backward.xi": (3, r"layers\[0\].backward.xi: 3 is not allowed; it must be an object of value"),
    "layers.0.backward.xi.value": ([], r"layers\[0\].backward.xi: .* it must be an object of value"),
    "layers.0.backward.xi.stderr": (math.nan, r"layers\[0\].backward.xi: .* it must be an object of value"),
    "layers.0.backward.reach.stderr": (-1, r"layers\[0\].backward.reach: .* it must be an object of value"),
    "layers.0.backward.spread": ([0.5], r"layers\[0\].backward.spread: length 1 is not allowed; lags has 21"),
    "layers.0.forward.log_norm.all": ([], r"layers\[0\].forward.log_norm: length 0 is not allowed; lags has \d+"),
    "layers.0.forward.log_norm": ({}, r"layers\[0\].forward.log_norm.all: it is missing"),
    "layers.0.forward.lags": ([], r"layers\[0\].forward.lags: it is empty"),
    "layers.0.moments.h.mean": ([0.5], r"layers\[0\].moments.h.mean: length 1 is not allowed; times has 20"),
    "layers.0.moments": ({}, r"layers\[0\].moments: it is empty"),
    "layers.0.lyapunov.exponents": ([], r"layers\[0\].lyapunov.exponents: it is empty"),
    "layers.0.memory.length": (0, r"layers\[0\].memory.length: 0 is not allowed; it must be a number of steps"),
    "layers.0.memory.time_constants": ([], r"layers\[0\].memory.time_constants: it is empty"),
    "layers.0.info.mean_steps": (10**400, r"layers\[0\].info.mean_steps: 10.* it must be a finite number"),
    "layers.0.check.residual": (
        math.inf,
        r"layers\[0\].check.residual: inf is not allowed; it must be a finite number",
    ),
    "layers.0.inputs.feature_means": ([math.nan], r"layers\[0\].inputs.feature_means: .* it must be a list of numbers"),
    "layers.0.backward.lags": (["1"], r"layers\[0\].backward.lags: .* it must be a list of numbers"),
    "layers.0.backward.window": ([1], r"layers\[0\].backward.window: \[1\] is not allowed; it must be a list"),
    "layers.0.gates": ([], r"layers\[0\].gates: \[\] is not allowed; it must be an object"),
    "layers.0.info.bias": (1, r"layers\[0\].info.bias: 1 is not allowed; it must be of type bool"),
    "layers.0.info.steps": (True, r"layers\[0\].info.steps: True is not allowed; it must be of type int"),
}


@pytest.mark.parametrize("where", CHANGES)
def test_a_field_of_another_type_is_named(where):
    changed, message = CHANGES[where]
    value = copy.deepcopy(SOUND)
    *above, last = (int(part) if part.isdigit() else part for part in where.strip().split("."))
    inside = value
    for part in above:
        inside = inside[part]
    inside[last] = changed
    with pytest.raises(RecordError, match=message):
        diagnosis_from_json(value)


def test_whole_numbers_beyond_64_bits_are_read():
    value = copy.deepcopy(SOUND)
    value["layers"][0]["backward"]["lags"][-1] = 10**30
    assert diagnosis_from_json(value).layers[0].backward.lags[-1] == 1e30


@pytest.mark.parametrize("name", ["model", "layers", "unmeasured", "loss"])
def test_a_missing_field_is_named(name):
    value = {field: one for field, one in SOUND.items() if field != name}
    with pytest.raises(RecordError, match=f"^{name}: it is missing"):
        diagnosis_from_json(value)


def test_a_file_of_before_a_measurement_is_read_without_it():
    value = copy.deepcopy(SOUND)
    del value["layers"][0]["start"], value["layers"][0]["memory"]["through_gates"]
    layer = diagnosis_from_json(value).layers[0]
    assert layer.start is None and layer.memory.through_gates is None


@pytest.mark.parametrize("value", [None, {}, [3], [{"kind": "vanishing"}], [{"kind": 3, "layer": None}]])
def test_what_are_no_findings(value):
    with pytest.raises(RecordError, match=r"^findings"):
        findings_from_json(value)


SOUND = json.loads(json.dumps(measure(nn.GRU(3, 8), torch.randn(20, 2, 3)).to_json()))
