"""The gates of a spec are read-only, and specs are pickled, copied and compared as before."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from isornn.cells import LSTM, BiasLaw, Gate, Input, Spec

SPEC = Spec(
    LSTM(gate="hard_sigmoid"),
    {"f": Gate(1.0, bias_law=BiasLaw("chrono", 1.0, 9.0)), "i": Gate(0.5, input_var=1.0)},
    Input(2.0, 0.5),
    biases="fixed",
)


def test_gates_cannot_be_changed_in_place() -> None:
    """A negative variance put there would be read by no check."""
    gates: Any = SPEC.gates
    with pytest.raises(TypeError):
        gates["f"] = Gate(weight_var=1.0)
    with pytest.raises(AttributeError):
        gates.clear()
    given = {"f": Gate(weight_var=1.0)}
    spec = Spec(LSTM(), given)
    given["f"] = Gate(weight_var=2.0)
    assert spec.gates["f"].weight_var == 1.0


@pytest.mark.parametrize(
    "twin",
    [lambda s: pickle.loads(pickle.dumps(s)), copy.deepcopy, copy.copy, lambda s: s.replace("biases", "fixed")],
    ids=["pickle", "deepcopy", "copy", "replace"],
)
def test_twins_are_equal_and_as_read_only(twin: Any) -> None:
    found = twin(SPEC)
    assert found == SPEC and found.to_json() == SPEC.to_json() and repr(found) == repr(SPEC)
    with pytest.raises(TypeError):
        found.gates["f"] = Gate()
    assert found != SPEC.replace("f.weight_var", 2.0)
    assert {**SPEC.gates} == SPEC.gates and dict(SPEC.gates) == SPEC.gates


def test_a_batch_is_pickled_with_its_tensors() -> None:
    batch = SPEC.replace("f.weight_var", torch.tensor([1.0, 2.0]))
    found = pickle.loads(pickle.dumps(batch)).gates["f"].weight_var
    assert torch.equal(found, torch.tensor([1.0, 2.0]))
