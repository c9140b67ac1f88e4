"""Configurations: what is refused and how, what stays the same, and what makes another run."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from isornn.cells import CELLS
from isornn.training import Configuration, ConfigurationError
from isornn.training.configuration import OPTIMISERS, SCHEDULES, STARTS

GIVEN: dict[str, Any] = {
    "task": {"name": "copy", "length": 50},
    "model": {"name": "lstm", "hidden": 32},
    "optimiser": {"name": "adam", "rate": 1e-3},
    "updates": 100,
}


def changed(**changes: Any) -> dict[str, Any]:
    return {**GIVEN, **changes}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], r"\[\] is not allowed; it must be a table with task"),
        (changed(epochs=3), r"epochs: 3 is not allowed; fields are task, model"),
        (changed(updates=0), "updates: 0 is not allowed; it must be a whole number of at least 1"),
        (changed(updates=1e3), "updates: 1000.0 is not allowed; it must be a whole number"),
        (changed(updates=True), "updates: True is not allowed"),
        (
            {key: value for key, value in GIVEN.items() if key != "updates"},
            "updates is needed; it must be a whole number",
        ),
        ({key: value for key, value in GIVEN.items() if key != "model"}, "model is needed; it must be a table"),
        (changed(clip=0), "clip: 0 is not allowed; it must be a finite number above 0"),
        (changed(clip=float("nan")), "clip: nan is not allowed"),
        (changed(updates=10**20), "updates: 1000+ is not allowed; .* at most 1,000,000,000"),
        (changed(seed=2**63), "seed: 9223372036854775808 is not allowed; .* at most 9,223,372,036,854,775,807"),
        (changed(batch_size=10**20), "batch_size: 1000+ is not allowed"),
        (changed(clip=1e300), r"clip: 1e\+300 is not allowed; .* at most 3.4e\+38"),
        (changed(task={"name": "copy", "length": 10**20}), "task.length: 1000+ is not allowed; .* at most 1,000,000"),
        (changed(model={"name": "lru", "hidden": 2, "max_phase": 10**20}), "options.max_phase: 10+ is not allowed"),
        (changed(model={"name": "lstm", "hidden": 10**20}), "model.hidden: 1000+ is not allowed; .* at most 1,000,000"),
        (changed(start={"name": "chrono", "length": 1e300}), r"start.length: 1e\+300 is not allowed"),
        (
            changed(optimiser={"name": "adam", "rate": 1e300}),
            r"optimiser.rate: 1e\+300 is not allowed; .* at most",
        ),
        (changed(optimiser={"name": "adam", "rate": "x" * 1000}), "optimiser.rate: 'x{50,80}... is not allowed"),
        (changed(seed=-1), "seed: -1 is not allowed; it must be a whole number of at least 0"),
        (changed(precision="half"), "precision: 'half' is not allowed; it must be one of 32-true"),
        (changed(task="copy"), "task: 'copy' is not allowed; it must be a table with a name"),
        (changed(task={"length": 50}), "task.name is needed; it must be one of copy, adding"),
        (changed(task={"name": "reverse"}), "task.name: 'reverse' is not allowed; it must be one of copy, adding"),
        (changed(task={"name": "copy"}), "task.length is needed; it must be a whole number"),
        (changed(task={"name": "copy", "length": 9, "size": 1}), "task.size: 1 is not allowed; fields are length"),
        (changed(model={"name": "lstm"}), "model.hidden is needed; it must be a whole number"),
        (changed(model={"name": "lstm", "hidden": 2, "gate": "soft"}), "model: 'lstm' is not allowed; .*'soft'"),
        (changed(model={"name": "lstm", "hidden": 2, "dropout": 1}), "model.dropout: 1 is not allowed; .* below 1"),
        (changed(model={"name": "gru", "hidden": 2, "dropout": 0.5}), "model.dropout: 0.5 .* between layers, of which"),
        (changed(model={"name": "torch.nn.LSTM", "hidden": 2, "untied": True}), "model.untied: True is not allowed"),
        (changed(start={"name": "chrono", "length": 1}), "start.length: 1 is not allowed; .* from 2"),
        (changed(start={"name": "spec", "gates": {"q": {}}}), "start.gates: .* lstm has i, f, g, o"),
        (
            changed(start={"name": "spec", "gates": 3}),
            "start.gates: 3 is not allowed; gates: 3 is not allowed; it must be an object of gates",
        ),
        (changed(optimiser={"name": "adam", "rate": -1}), "optimiser.rate: -1 is not allowed; .* above 0"),
        (changed(optimiser={"name": "adam", "rate": 1, "momentum": 0.9}), "optimiser.momentum: 0.9 is not allowed"),
        (
            changed(optimiser={"name": "geodesic", "rate": 1e-3}),
            "optimiser.name: 'geodesic' is not allowed; it must be sgd, rmsprop or adam",
        ),
        (changed(optimiser={"name": "sgd", "rate": 1, "momentum": 1}), "optimiser.momentum: 1 is not allowed"),
        (
            changed(schedule={"name": "milestones", "factor": 0.5, "at": [5, 2]}),
            r"schedule.at: \[5, 2\] is not allowed",
        ),
        (
            changed(schedule={"name": "milestones", "factor": 0.5, "at": [2, 2]}),
            r"schedule.at: \[2, 2\] is not allowed; it must be a growing list",
        ),
        (changed(schedule={"name": "milestones", "factor": 0.5, "at": 5}), "schedule.at: 5 is not allowed"),
        (changed(schedule={"name": "plateau", "factor": 1, "patience": 0}), "schedule.factor: 1 .* from 0 to below 1"),
        (changed(penalty={"name": "prior"}), "penalty.name: 'prior' is not allowed; it must be one of orthogonality"),
        (changed(penalty={"name": "decay"}), "penalty.strength is needed; it must be a finite number above 0"),
        (
            changed(model={"name": "spectral", "hidden": 2}, start={"name": "standard"}),
            "start.name: 'standard' is not allowed; it must be torch",
        ),
        (
            changed(model={"name": "spectral", "hidden": 2, "margin": 0.1}, start={"name": "held", "gain": 1.1}),
            "start.name: 'held' is not allowed; it must be another: held is for spectral",
        ),
        (
            changed(model={"name": "torch.nn.GRU", "hidden": 2}, start={"name": "spec", "gates": {"f": {}}}),
            "start.gates: .* gru has r, z",
        ),
    ],
)
def test_what_is_not_allowed_is_named_with_what_is(data: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Configuration.from_mapping(data)


@pytest.mark.parametrize(
    "data",
    [
        GIVEN,
        changed(clip=1, validate_every=10, seed=3, precision="bf16-mixed", batch_size=8),
        *(changed(model={"name": cell, "hidden": 4}) for cell in CELLS),
        changed(model={"name": "spectral", "hidden": 4, "margin": 0.1, "nonlinearity": "prelu", "slope": 0.5}),
        changed(start={"name": "spec", "gates": {"f": {"bias_mean": 3}}, "biases": "fixed"}),
        changed(schedule={"name": "milestones", "factor": 0.5, "at": [2, 5]}, penalty={"name": "decay", "strength": 1}),
        changed(
            model={"name": "spectral", "hidden": 4},
            optimiser={"name": "geodesic", "rate": 1e-3, "geodesic_rate": 1e-4, "rest": "rmsprop"},
        ),
    ],
)
def test_what_is_written_is_read_again(data: dict[str, Any]) -> None:
    read = Configuration.from_mapping(data)
    again = Configuration.from_mapping(json.loads(json.dumps(read.to_mapping())))
    assert again == read and again.hash == read.hash
    assert pickle.loads(pickle.dumps(read)) == read


def test_the_hash_is_the_same_everywhere() -> None:
    """Folders are named by it: what changes it makes all earlier runs strangers. Printed by sha256sum."""
    text = (
        '{"batch_size":64,"model":{"before":"zero","dropout":0.0,"gate":"sigmoid","h_detach":0.0,"hidden":32,"layers":1,'
        '"name":"lstm","untied":false},"optimiser":{"name":"adam","rate":0.001},"precision":"32-true",'
        '"schedule":{"name":"constant"},"seed":0,"start":{"name":"torch"},"task":{"held_out":1000,"length":50,'
        '"name":"copy"},"updates":100,"validate_every":100}'
    )
    assert json.loads(text) == Configuration.from_mapping(GIVEN).to_mapping()
    assert Configuration.from_mapping(GIVEN).hash == "a6a0e9ebe6ac7e73"


def test_the_hash_is_of_what_is_meant() -> None:
    said = Configuration.from_mapping(
        changed(batch_size=64, clip=1, start={"name": "torch"}, schedule={"name": "constant"})
    )
    meant = Configuration.from_mapping(dict(reversed(changed(clip=1.0).items())))
    assert said.hash == meant.hash
    others = [changed(seed=1, clip=1), changed(clip=2), changed(clip=1, optimiser={"name": "adam", "rate": 2e-3})]
    assert len({meant.hash, *(Configuration.from_mapping(other).hash for other in others)}) == 4


def test_all_kinds_are_offered() -> None:
    assert {"sgd", "rmsprop", "adam", "geodesic"} <= OPTIMISERS.keys()
    assert {"step", "milestones", "exponential", "cosine", "plateau"} <= SCHEDULES.keys()
    assert {
        "torch",
        "standard",
        "orthogonal",
        "glorot",
        "identity",
        "chrono",
        "uniform_gate",
        "critical",
    } <= STARTS.keys()
