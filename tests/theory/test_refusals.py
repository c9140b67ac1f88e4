"""What is no spec, and arguments that are not allowed, are refused by name before anything is computed."""

import math
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

import isornn
from isornn.cells import LSTM, Cell, Gate, Reads, Spec, SpecError, Values, Vanilla
from isornn.theory import (
    Bidirectional,
    Quantity,
    Range,
    TheoryMissing,
    analyze_stack,
    correlation_map,
    lstm_approximation,
    moment_dynamics,
    pareto_front,
    phase_diagram,
    spectrum,
    stationary_samples,
)
from isornn.theory.compared_starts import left_after
from isornn.theory.quantity import time_scale

SPEC = Spec(Vanilla(), {"h": Gate(weight_var=0.5, input_var=1.0)})


@pytest.mark.parametrize(
    "ask",
    [
        isornn.analyze,
        isornn.simulate,
        spectrum,
        stationary_samples,
        lstm_approximation,
        partial(phase_diagram, x=("h.bias_mean", [0.0]), y=("h.bias_var", [0.0])),
        partial(pareto_front, length=10, ranges=[Range("f.bias_mean", 0.0, 1.0)]),
        lambda given: Bidirectional(given, given),
    ],
)
@pytest.mark.parametrize("given", [LSTM(), nn.LSTM(3, 4), "lstm", None])
def test_what_is_no_spec(ask: Any, given: object) -> None:
    with pytest.raises(SpecError, match=r"^spec: .* is not allowed; it must be an isornn.Spec, as isornn.init.spec_of"):
        ask(given)


@pytest.mark.parametrize("given", [{"weight_var": 1.0}, 1.0, None])
def test_what_is_no_gate(given: Any) -> None:
    with pytest.raises(SpecError, match=r"^gates.f: .* it must be an isornn.Gate"):
        Spec(LSTM(), {"f": given})


@pytest.mark.parametrize(
    "options",
    [{"engine": "quad"}, {"length": 0}, {"length": -5}, {"length": 2.5}, {"steps": 1}, {"generator": 3}],
)
def test_arguments(options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(SpecError, match=rf"^{name}: '?{value}'? is not allowed"):
        isornn.analyze(SPEC, **options)


@pytest.mark.parametrize("steps", [2.0, True, 17])
def test_steps_of_a_spectrum(steps: Any) -> None:
    with pytest.raises(SpecError, match=rf"^steps: {steps} is not allowed; it must be a whole number from 1 to 16"):
        spectrum(SPEC, steps=steps)


def test_what_is_no_layer() -> None:
    with pytest.raises(SpecError, match=r"^layers\[1\]: 'lstm' is not allowed; it must be a Spec or a Bidirectional"):
        analyze_stack([SPEC, cast(Any, "lstm")])


def test_whole_numbers_of_numpy_are_lengths() -> None:
    assert isornn.analyze(SPEC, length=cast(int, np.int64(5))).profile.shape[-1] == 6


class OfTwoAxes(Cell):
    """It trains: layers give it (batch, units)."""

    name = "of_two_axes"
    gates = {"z": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.einsum("bn,bn->bn", torch.sigmoid(u.z), s.h) + torch.tanh(u.z)}


def test_a_cell_whose_operations_name_two_axes() -> None:
    assert isornn.nn.RNN(OfTwoAxes(), 3, 4)(torch.randn(5, 2, 3))[0].shape == (5, 2, 4)
    found = isornn.analyze(Spec(OfTwoAxes(), {"z": Gate(1.0, 1.0)}))
    assert "its update takes values (batch, N) only" in str(found.xi.reason())


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


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: moment_dynamics(cast(Any, "x"), 3), "spec: 'x'"),
        (lambda: moment_dynamics(SPEC, -3), "steps: -3"),
        (lambda: moment_dynamics(SPEC, 3, initial_variance=-1), "initial_variance: -1"),
        (lambda: moment_dynamics(SPEC, 3, initial_variance=math.nan), "initial_variance: nan"),
        (lambda: correlation_map(SPEC, torch.tensor([0.5, 1.5])), "correlation: "),
        (lambda: stationary_samples(SPEC, "q"), "state: 'q' is not allowed; vanilla has h"),
        (lambda: stationary_samples(SPEC, generator=cast(Any, 3)), "generator: 3"),
        (lambda: isornn.analyze(SPEC, steps=cast(Any, "3")), "steps: '3'"),
        (lambda: isornn.analyze(SPEC, length=cast(Any, True)), "length: True"),
        (lambda: isornn.analyze_stack([SPEC], length=0), "length: 0"),
        (lambda: isornn.analyze_stack([SPEC], generator=cast(Any, 3)), "generator: 3"),
        (lambda: isornn.simulate(SPEC, width=cast(Any, 2.5)), "width: 2.5"),
        (
            lambda: phase_diagram(SPEC, ("h.weight_var", [1.0]), ("h.bias_var", [0.0]), tied_steps=cast(Any, 4.5)),
            "tied_steps: 4.5",
        ),
        (lambda: Spec(LSTM(), cast(Any, [Gate()])), r"gates: \[Gate\(\)\] is not allowed; it must be a mapping"),
        (lambda: isornn.critical(LSTM(), 100, input=isornn.Input(variance=math.nan)), "input.variance: nan"),
        (lambda: isornn.isometric(LSTM(), 100, input=isornn.Input(variance=-1.0)), "input.variance: -1.0"),
        (lambda: isornn.critical(LSTM(), 100, input=isornn.Input(variance=torch.ones(2))), "input: .* not a batch"),
    ],
)
def test_arguments_of_the_other_questions(ask: Any, said: str) -> None:
    with pytest.raises(SpecError, match=f"^{said}"):
        ask()


@pytest.mark.parametrize("engine", ["quadrature", "population"])
def test_without_a_fixed_point_there_is_no_profile(engine: Any) -> None:
    answer = isornn.analyze(Spec(Vanilla("relu"), {"h": Gate(3.0, 1.0)}), length=5, engine=engine)
    assert answer.chi.number() is None
    assert bool(answer.profile.isnan().all()) and bool(answer.state_profiles["h"].isnan().all())
    assert left_after(answer, 5) is None


def test_numbers_that_are_none_say_so() -> None:
    found = Quantity.of(torch.tensor([1.0, torch.nan]))
    assert found.defined.tolist() == [True, False] and found.listed() == [1.0, None]
    assert str(time_scale(Quantity.of(torch.tensor(torch.nan)))).startswith("undefined: it could not be computed")
    assert str(time_scale(Quantity.of(torch.tensor(-1.5)))).startswith("infinite: |chi| >= 1")
    assert time_scale(Quantity.of(torch.tensor(0.0))).number() == 0
