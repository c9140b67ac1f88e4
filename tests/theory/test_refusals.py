"""What is no spec, and arguments that are not allowed, are refused by name before anything is computed."""

from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

import isornn
from isornn.cells import LSTM, Gate, Spec, SpecError, Vanilla
from isornn.theory import (
    TheoryMissing,
    correlation_map,
    lstm_approximation,
    moment_dynamics,
    phase_diagram,
    spectrum,
    stationary_samples,
)

SPEC = Spec(Vanilla(), {"h": Gate(weight_var=0.5, input_var=1.0)})


@pytest.mark.parametrize("ask", [isornn.analyze, isornn.simulate, spectrum, stationary_samples])
@pytest.mark.parametrize("given", [LSTM(), nn.LSTM(3, 4), "lstm", None])
def test_what_is_no_spec(ask: Any, given: object) -> None:
    with pytest.raises(SpecError, match=r"^spec: .* is not allowed; it is an isornn.Spec; isornn.init.spec_of"):
        ask(given)


@pytest.mark.parametrize("given", [{"weight_var": 1.0}, 1.0, None])
def test_what_is_no_gate(given: Any) -> None:
    with pytest.raises(SpecError, match=r"^gates.f: .* it is an isornn.Gate"):
        Spec(LSTM(), {"f": given})


@pytest.mark.parametrize(
    "options",
    [{"engine": "quad"}, {"length": 0}, {"length": -5}, {"length": 2.5}, {"steps": 1}, {"generator": 3}],
)
def test_arguments(options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(SpecError, match=rf"^{name}: '?{value}'? is not allowed"):
        isornn.analyze(SPEC, **options)


def test_whole_numbers_of_numpy_are_lengths() -> None:
    assert isornn.analyze(SPEC, length=cast(int, np.int64(5))).profile.shape[-1] == 6


IDENTITIES = Spec(Vanilla(), {"h": Gate(weight_var=1.0, input_var=1.0, ensemble="identity")})
PAIRS = Spec(Vanilla("oplu"), {"h": Gate(weight_var=1.0, input_var=1.0)})


@pytest.mark.parametrize("spec", [IDENTITIES, PAIRS], ids=["identity", "pairs"])
@pytest.mark.parametrize(
    "ask",
    [
        partial(moment_dynamics, steps=3),
        partial(moment_dynamics, steps=3, tied=True),
        partial(correlation_map, correlation=torch.tensor([0.5])),
        stationary_samples,
        spectrum,
        partial(isornn.kernel, x=torch.ones(2, 3, 1)),
    ],
    ids=["untied", "tied", "map", "samples", "spectrum", "kernel"],
)
def test_networks_that_no_engine_covers(ask: Any, spec: Spec) -> None:
    with pytest.raises(TheoryMissing, match="identity matrices|several units together"):
        ask(spec)


def test_an_approximation_of_identity_matrices() -> None:
    spec = Spec(LSTM(), {"f": Gate(1.0, 1.0, ensemble="identity")})
    with pytest.raises(TheoryMissing, match="identity matrices"):
        lstm_approximation(spec)


@pytest.mark.parametrize("spec", [IDENTITIES, PAIRS], ids=["identity", "pairs"])
def test_a_map_of_what_no_engine_covers_says_why(spec: Spec) -> None:
    found = phase_diagram(spec, ("h.weight_var", [0.5, 1.0]), ("h.bias_mean", [0.0]))
    assert found.quantities["chi"].reasons and not bool(found.quantities["chi"].defined.any())
