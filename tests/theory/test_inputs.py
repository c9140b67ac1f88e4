"""Inputs with means and inputs that are correlated over time, against closed forms, transfer operators and networks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor

from isornn.cells import GRU, LSTM, TLSTM, Cell, Gate, Input, Minimal, Spec, SpecError, Vanilla
from isornn.cells.structure import NotPolynomial
from isornn.simulation import simulate
from isornn.theory import analyze, analyze_stack, correlation_map, critical, isometric, moment_dynamics
from isornn.theory.carry import carry_of
from isornn.theory.critical_points.costs import costs
from isornn.theory.inputs import centred, memory_limits
from isornn.theory.reasons import BEYOND, TheoryMissing
from isornn.theory.records import Analysis

GATED = {"i": Gate(0.5, 1.0), "f": Gate(0.5, 1.0, bias_mean=1.0), "g": Gate(0.5, 1.0), "o": Gate(0.5, 1.0)}
HALF = Input(1.0, 0.5)
NUMBERS = ("fixed_point.second_moment", "fixed_point.correlation", "reach", "chi_1", "jacobian.mean")


def fixed(cell: Cell, gates: dict[str, Gate], input: Input) -> Spec:
    return Spec(cell, gates, input, biases="fixed")


def numbers(answer: Analysis) -> list[float | None]:
    found = dict(answer.quantities())
    return [found[name].number() for name in NUMBERS]


def test_a_reach_beyond_the_steps_followed_is_not_called_endless() -> None:
    """The gate stays below 1, so changes fade; in four times the three steps asked for they do not fall to 1/e."""
    gates = {"u": Gate(input_var=1.0, bias_mean=5.0, bias_var=1.0)}
    spec = fixed(Minimal(), gates, Input(autocorrelation=0.9))
    answer = analyze(spec, length=3, generator=torch.Generator().manual_seed(0))
    assert answer.reach.reason() == BEYOND


# -- white standardised input, as it was ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "known", "simulated"),
    [
        (
            Spec(LSTM(), {k: Gate(1, 0.5, bias_mean=float(k == "f")) for k in "ifgo"}),
            [0.0352734915644522, 1.0, 1.72087216070924, 0.5624363393501595, 0.43170665192899504],
            [0.05142174929753711, 1.0, 0.563984617746639],
        ),
        (
            fixed(
                GRU(),
                {n: Gate(0.5 * r.state, 1.0 * r.input, bias_var=0.1) for n, r in GRU.gates.items()},
                Input(1, 0.5),
            ),
            [0.20205238431752176, 0.5378507747049817, 0.8496064515792858, 0.0, 0.3313285150020089],
            [0.1991545021628075, 0.45604435893059314, 0.30397937326405455],
        ),
    ],
)
def test_white_input_gives_what_it_always_gave(spec: Spec, known: list[float], simulated: list[float]) -> None:
    """Recorded numbers, equal but for the rounding of another processor. Those of theory are of the last change of its
    sampling, within three standard errors of what they were before inputs had means or memory."""
    assert [x or 0.0 for x in numbers(analyze(spec, length=10))] == pytest.approx(known, rel=1e-9)
    found = simulate(spec, width=20, steps=5, networks=2, generator=torch.Generator().manual_seed(0))
    values = [found.second_moment.value[-1], found.correlation.value[-1], found.chi_1.value]
    assert [float(value) for value in values] == pytest.approx(simulated, rel=1e-9)


# -- means ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["quadrature", "population"])
def test_beside_fixed_biases_a_mean_is_a_larger_bias_variance(engine: Literal["quadrature", "population"]) -> None:
    spec = fixed(Vanilla(), {"h": Gate(0.8, 0.5, bias_var=0.1)}, Input(1.0, 0.3, mean=0.7))
    other = spec.replace("input.mean", 0.0).replace("h.bias_var", 0.1 + 0.5 * 0.7**2)
    assert numbers(analyze(spec, engine=engine)) == numbers(analyze(other, engine=engine))
    assert numbers(analyze(spec, engine=engine)) != numbers(analyze(spec.replace("input.mean", 0.0), engine=engine))


def test_previous_inputs_have_means_too() -> None:
    spec = fixed(TLSTM(), {gate: Gate(0.0, 1.0, 0.5) for gate in "fzo"}, Input(1.0, 0.5, mean=2.0))
    assert {gate.bias_var for gate in centred(spec).gates.values()} == {6.0}


def test_where_all_is_redrawn_a_mean_adds_to_the_second_moments() -> None:
    gates = {"h": Gate(0.8, 0.5)}
    spec = Spec(Vanilla(), gates, Input(1.0, 0.5, mean=1.0))
    assert numbers(analyze(spec)) == numbers(analyze(Spec(Vanilla(), gates, Input(2.0, 0.75))))
    for cell in (Vanilla(), LSTM()):
        gates = {gate: Gate(0.8, 0.5) for gate in cell.gates}
        one, other = (Spec(cell, gates, law) for law in (Input(1.0, 0.5, mean=1.0), Input(2.0, 0.75)))
        for given in (None, 0.2):
            known = moment_dynamics(other, 3, input_correlation=None if given is None else 0.6)
            assert torch.equal(moment_dynamics(one, 3, input_correlation=given).correlation, known.correlation)


@pytest.mark.parametrize("biases", ["fixed", "redrawn"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_mean_that_is_read_pointwise_too_is_that_of_networks(biases: Literal["fixed", "redrawn"], tied: bool) -> None:
    spec = Spec(Minimal(), {"u": Gate(0.5, 1.0, bias_mean=1.0)}, Input(1.0, 0.5, mean=1.0), biases)
    assert_like_networks(spec, 10, tied=tied)


def test_costs_and_carry_know_of_means() -> None:
    gates = {"f": Gate(0, 0.5, bias_mean=3.0), "i": Gate(0, 1.0), "g": Gate(0, 1.0), "o": Gate(0.1, 1.0)}
    spec = fixed(LSTM(), gates, Input(1.0, mean=1.0))
    other = spec.replace("input.mean", 0.0)
    for gate in "figo":
        other = other.replace(f"{gate}.bias_var", other.gates[gate].input_var)
    assert torch.equal(carry_of(spec).rates, carry_of(other).rates)
    one, two = (costs(s, 20, generator=torch.Generator().manual_seed(0)) for s in (spec, other))
    assert {name: cost.number() for name, cost in one.items()} == {name: cost.number() for name, cost in two.items()}


def test_the_lowest_layer_of_a_stack_has_the_mean() -> None:
    spec = fixed(Vanilla(), {"h": Gate(0.8, 0.5)}, Input(1.0, 0.5, mean=1.0))
    ((lowest,), _) = analyze_stack([spec, replace(spec, input=Input())], length=4).layers
    assert lowest.spec == analyze(spec).spec or lowest.spec.input.mean == 1.0
    assert lowest.fixed_point.second_moment.number() == analyze(spec).fixed_point.second_moment.number()


def test_starts_are_scaled_by_the_second_moment() -> None:
    spread = critical(GRU(), 50, input=Input(0.5, mean=math.sqrt(1.5)))
    alike = critical(GRU(), 50, input=Input(2.0))
    for name, gate in spread.spec.gates.items():
        assert float(gate.input_var) == pytest.approx(float(alike.spec.gates[name].input_var), rel=1e-12)
    assert "input=isornn.Input(0.5, 1, mean=1.224744871391589)" in spread.python


# -- inputs correlated over time --------------------------------------------------------------------------------------


@pytest.mark.parametrize("a", [0.5, 0.9])
@pytest.mark.parametrize("tied", [False, True])
def test_a_constant_retention_filters_an_ar_1_input(a: float, tied: bool) -> None:
    """``h = f h + (1 - f) x``: Q = R (1-f)/(1+f) (1 + f a)/(1 - f a), and C is that of the inputs."""
    f = 1 / (1 + math.exp(-1.0))
    spec = fixed(Minimal(), {"u": Gate(bias_mean=1.0)}, Input(2.0, 0.4, autocorrelation=a))
    known = 2.0 * (1 - f) / (1 + f) * (1 + f * a) / (1 - f * a)
    if tied:
        found = moment_dynamics(spec, 60, tied=True)
        q, c = (float(getattr(found, name)[-1]) for name in ("second_moment", "correlation"))
        errors = [float(found.stderr[name][-1]) for name in ("second_moment", "correlation")]
    else:
        point = analyze(spec).fixed_point
        q, c = point.second_moment.number(), point.correlation.number()
        errors = [point.second_moment.error(), point.correlation.error()]
    assert abs(q - known) <= 4 * errors[0] and errors[0] <= 0.01 * known
    assert abs(c - 0.4) <= 4 * errors[1] and errors[1] <= 0.02


def transfer(a: float) -> tuple[Tensor, Tensor]:
    """Of a gate f = sigmoid(1 + z), z a standard AR(1) process: f^2 on a grid, and the transition matrix of z."""
    z = torch.linspace(-7, 7, 801, dtype=torch.float64)
    kernel = torch.exp(-((z[None] - a * z[:, None]) ** 2) / (2 * (1 - a * a)))
    return (1 + z).sigmoid().square(), kernel / kernel.sum(1, keepdim=True)


@pytest.mark.parametrize("a", [0.5, 0.9])
def test_the_decay_is_that_of_a_product_of_correlated_factors(a: float) -> None:
    """``E[f_1^2 ... f_t^2]`` by the transfer operator of z: its leading eigenvalue is chi, not E f^2."""
    square, step = transfer(a)
    law = torch.linspace(-7, 7, 801, dtype=torch.float64)
    law = torch.exp(-law.square() / 2)
    forward = law / law.sum() * square
    profile = [1.0, float(forward.sum())]
    for _ in range(400):
        forward = (forward @ step) * square
        profile.append(float(forward.sum()))
    chi = profile[-1] / profile[-2]
    spec = fixed(Minimal(), {"u": Gate(input_var=1.0, bias_mean=1.0)}, Input(autocorrelation=a))
    answer = analyze(spec, length=12)
    assert answer.engine == "population"
    assert answer.chi.error() <= 0.005 and abs(answer.chi.number() - chi) <= 4 * answer.chi.error()
    assert chi > 1.05 * float((law / law.sum() * square).sum())
    ratios = (answer.profile / answer.profile[0]).tolist()
    assert ratios[:6] == pytest.approx(profile[:6], rel=0.03)
    first = next(t for t in range(1, 100) if profile[t] <= profile[1] / math.e)
    logs = [math.log(p / profile[1]) for p in profile]
    reach = first - 2 + (-1 - logs[first - 1]) / (logs[first] - logs[first - 1])
    assert abs(answer.reach.number() - reach) <= max(4 * answer.reach.error(), 0.01 * reach)


def test_a_faint_autocorrelation_is_none() -> None:
    """The population that carries its inputs along agrees with the quadrature of white ones."""
    spec = fixed(Minimal(), {"u": Gate(1.0, 1.0, bias_mean=1.0)}, Input(1.0, 0.5, autocorrelation=1e-9))
    carried, exact = analyze(spec), analyze(spec.replace("input.autocorrelation", 0.0))
    assert (carried.engine, exact.engine) == ("population", "quadrature")
    known = dict(exact.quantities())
    for name, quantity in carried.quantities():
        if name in (*NUMBERS, "chi", "jacobian.second_moment"):
            error = math.hypot(quantity.error(), known[name].error())
            assert abs(quantity.number() - known[name].number()) <= 4 * error, name


def test_an_input_that_hardly_changes_is_a_mean() -> None:
    """Over the few steps that the state remembers."""
    gates = {"u": Gate(0.5, 1.0)}
    slow = analyze(fixed(Minimal(), gates, Input(1.0, autocorrelation=1 - 1e-6)))
    mean = analyze(fixed(Minimal(), gates, Input(0.0, mean=1.0)))
    for name in ("second_moment", "mean"):
        one, other = getattr(slow.fixed_point, name), getattr(mean.fixed_point, name)
        assert abs(one.number() - other.number()) <= 4 * math.hypot(one.error(), other.error())
    assert abs(slow.reach.number() - mean.reach.number()) <= 0.02 * mean.reach.number()


def assert_like_networks(spec: Spec, steps: int, *, tied: bool) -> None:
    """Mean, Q and C at the last steps, within 4 standard errors of both."""
    theory = moment_dynamics(spec, steps, tied=tied)
    found = simulate(
        spec, width=300, steps=steps, networks=10, tied=tied, tangents=1, generator=torch.Generator().manual_seed(1)
    )
    for name in ("second_moment", "correlation"):
        measured = getattr(found, name)
        for step in (0, steps // 2, steps - 1):
            value, known = float(measured.value[step]), float(getattr(theory, name)[step + 1])
            error = math.hypot(float(measured.stderr[step]), float(theory.stderr[name][step + 1]))
            assert abs(value - known) <= 4 * error, (name, step, value, known, error)
            assert error <= 0.1 * abs(known)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("cell", [LSTM(), TLSTM()], ids=["lstm", "t_lstm"])
def test_moments_are_those_of_networks(cell: Cell, tied: bool) -> None:
    gates = GATED if isinstance(cell, LSTM) else {gate: Gate(0.0, 1.0, 0.5) for gate in "fzo"}
    assert_like_networks(fixed(cell, gates, Input(1.0, 0.5, mean=0.5, autocorrelation=0.9)), 12, tied=tied)


def test_correlated_inputs_make_lstms_remember_longer_and_networks_say_so() -> None:
    gates = {"i": Gate(0.5, 1.0), "f": Gate(0.5, 2.0, bias_mean=1.0), "g": Gate(0.5, 1.0), "o": Gate(0.5, 1.0)}
    spec = fixed(LSTM(), gates, Input(autocorrelation=0.8))
    white, correlated = analyze(spec.replace("input.autocorrelation", 0.0)), analyze(spec)
    assert correlated.chi_1.number() > white.chi_1.number() + 0.05
    found = simulate(
        spec, width=400, steps=20, networks=4, warmup=20, tangents=4, generator=torch.Generator().manual_seed(2)
    )
    error = math.hypot(float(found.chi_1.stderr), correlated.chi_1.error())
    assert abs(float(found.chi_1.value) - correlated.chi_1.number()) <= max(4 * error, 0.01)
    assert abs(float(found.chi_1.value) - white.chi_1.number()) > 4 * error


def test_a_batch_may_have_white_and_correlated_inputs() -> None:
    spec = fixed(Minimal(), {"u": Gate(bias_mean=1.0)}, Input(autocorrelation=torch.tensor([0.0, 0.9])))
    f = 1 / (1 + math.exp(-1.0))
    known = [(1 - f) / (1 + f) * (1 + f * a) / (1 - f * a) for a in (0.0, 0.9)]
    assert analyze(spec).fixed_point.second_moment.value.tolist() == pytest.approx(known, rel=0.02)


# -- what is refused, or undefined ------------------------------------------------------------------------------------

REMEMBERING = fixed(Vanilla(), {"h": Gate(0.5, 1.0)}, Input(autocorrelation=0.5))


def test_what_needs_inputs_independent_over_time_refuses_others() -> None:
    with pytest.raises(NotPolynomial, match="inputs of different steps are correlated"):
        analyze(REMEMBERING, engine="quadrature")
    with pytest.raises(TheoryMissing, match="inputs of different steps are correlated"):
        correlation_map(REMEMBERING, torch.tensor([0.5]))
    with pytest.raises(SpecError, match=r"layers\[0\].input.autocorrelation: 0.5 is not allowed; it must be 0"):
        analyze_stack([REMEMBERING])
    with pytest.raises(SpecError, match="input.autocorrelation: 0.5 is not allowed; it must be 0: this rule is for"):
        isometric(GRU(), 20, input=Input(autocorrelation=0.5))
    for tied in (False, True):
        with pytest.raises(ValueError, match="input_correlation: one number, where inputs are correlated over time"):
            moment_dynamics(REMEMBERING, 2, tied=tied, input_correlation=[0.5, 0.6])


def test_time_scales_of_gates_that_read_correlated_inputs_are_not_those_of_one_step() -> None:
    spec = fixed(GRU(), {"z": Gate(0, 1.0, bias_mean=2.0), "nx": Gate(0, 1.0)}, Input(autocorrelation=0.5))
    found = costs(spec, 10, generator=torch.Generator().manual_seed(0))["time_scales"]
    assert found.number() is None and "correlated over time" in str(found.reason())


def test_a_population_that_remembers_longer_than_it_was_followed_has_not_settled() -> None:
    spec = fixed(Minimal(), {"u": Gate(input_var=0.1, bias_mean=9.0)}, Input(autocorrelation=0.5))
    answer = analyze(spec, length=2)
    assert not bool(answer.fixed_point.converged) and answer.reach.number() is None


def test_what_units_keep_lies_between_fresh_inputs_and_still_ones() -> None:
    spec = fixed(Minimal(), {"u": Gate(input_var=1.0, bias_mean=2.0)}, Input(autocorrelation=0.8))
    low, high = (carry_of(limit).reach() for limit in memory_limits(spec))
    assert low < analyze(spec).reach.number() < high
    assert critical(GRU(), 100, input=Input(autocorrelation=0.9)).probably_holds()
