"""How a population answers a displacement: profile, reach, chi, and where there is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from isornn.cells import (
    GRU,
    LSTM,
    TRNN,
    BiasLaw,
    Cell,
    Gate,
    Input,
    Minimal,
    Peephole,
    Reads,
    Spec,
    Values,
    Vanilla,
)
from isornn.theory import analyze, critical
from isornn.theory.population.analysis import population_analysis
from isornn.theory.population.engine import Effort
from isornn.theory.population.renewal import Renewal
from isornn.theory.population.response import Response, _response
from isornn.theory.population.tangents import Curves
from isornn.theory.population.units import Laws
from populations import FORGETS, LSTM_SLOW, population, spread


def test_fixed_biases_make_memory_longer_than_any_exponential() -> None:
    units = population(Spec(Peephole(), FORGETS, biases="fixed"))
    response = units.respond(units.settle("identical", tolerance=0.02), length=802)
    rates = response.profile[1:] / response.profile[:-1]
    found = [float(rates[lag]) for lag in (1, 10, 30, 100)] + [float(response.profile[801] / response.profile[780])]
    found[-1] **= 1 / 21
    assert found == pytest.approx([0.78, 0.90, 0.94, 0.975, 0.995], abs=0.006)
    assert not response.exponential
    # With weak weights P_t = E_b[f^(2 t)]; lag 800 rests on biases four standard deviations out.
    z = np.linspace(-8, 8, 4001)
    weights, forget = np.exp(-(z**2) / 2), 1 / (1 + np.exp(-2 - z))
    lags = [1, 10, 100, 300, 801]
    expected = [float(np.average(forget ** (2 * lag), weights=weights)) for lag in lags]
    assert [float(response.profile[lag]) for lag in lags] == pytest.approx(expected, rel=0.02)


def test_long_lags_need_not_be_followed_step_by_step() -> None:
    gates = {"z": Gate(1e-5, 1.0, bias_law=BiasLaw("timescale", 1.0, 5000.0)), "nx": Gate(0, 1.0), "nh": Gate(1e-5)}
    response = population(Spec(GRU(), gates, biases="fixed")).stable(2000).response
    assert response.steps < 100
    assert response.profile.shape == response.states["h"].shape == (2001,)
    # Each unit's own rate is E[z^2] over the input; with weak weights nothing else carries.
    r, nodes = np.linspace(1, 5000, 5001), np.linspace(-6, 6, 61)
    weights = np.exp(-(nodes**2) / 2)
    rates = np.average(1 / (1 + np.exp(-nodes) / r[:, None]) ** 2, axis=1, weights=weights)
    lags = [1, 30, 100, 300, 1000, 2000]
    expected = [float(np.mean(rates**lag)) for lag in lags]
    assert [float(response.profile[lag]) for lag in lags] == pytest.approx(expected, rel=0.005)


def test_every_state_has_a_profile_of_the_length_asked_for() -> None:
    for spec in (spread(5000.0, 1.0), LSTM_SLOW):
        response = population(spec).stable(1000).response
        assert all(curve.shape == (1001,) for curve in (response.profile, *response.states.values()))
        kept = response.states["c"] / response.states["c"][1]
        r = np.linspace(1, 5000, 50001) if spec.biases == "fixed" else np.exp(np.array([5.0]))
        lags = [10, 100, 1000] if spec.biases == "fixed" else [10, 100]
        expected = [float(np.mean((r / (1 + r)) ** (2 * lag)) / np.mean((r / (1 + r)) ** 2)) for lag in lags]
        assert [float(kept[lag]) for lag in lags] == pytest.approx(expected, rel=0.01)


def test_a_reach_beyond_the_profile_is_found() -> None:
    first, second = (population(spread(5000.0, 1.0), seed).stable(10).response for seed in (0, 1))
    assert first.profile.shape == (11,)
    assert float(first.reach) == pytest.approx(float(second.reach), rel=0.002)
    assert 1000 < first.reach < 1200


def test_a_reach_that_is_infinite_without_some_units_is_not_exact() -> None:
    gates = {name: Gate(1.0, 1.0) for name in "igo"} | {"f": Gate(0.1, 0.1, bias_mean=6.0)}
    generator = torch.Generator().manual_seed(1)
    answer = population_analysis(Spec(LSTM(), gates), 5, generator=generator, units=64, replicates=8)
    assert answer.chi.number() < 1 < answer.chi.number() + answer.chi.error()
    # an exponential: reach and xi are one number, with one relative error
    relative = answer.xi.error() / answer.xi.number()
    assert answer.reach.error() / answer.reach.number() == pytest.approx(relative, rel=0.5)


@dataclass(frozen=True)
class Shown:
    """A cohort whose curves are given: nothing that is read acts back."""

    displaced: torch.Tensor
    by_rate: bool = False
    classes: tuple[str, ...] = ("",)

    @property
    def effective_share(self) -> torch.Tensor:
        return torch.ones(1, 4)

    def curves(self) -> Curves:
        rows = self.displaced.expand(1, 4, 2, -1)  # what is read, and the state: the same
        nothing = torch.zeros(1, 4, 2, 1, rows.shape[-1], dtype=torch.float64)
        return Curves(rows, nothing, torch.zeros(1, 4, 1, 1, dtype=torch.float64), None)


def _of_curve(curve: torch.Tensor) -> Response:
    laws = Laws.of(Spec(TRNN(), {"f": Gate(bias_var=1.0), "z": Gate(input_var=1.0)}, biases="fixed"))
    cohort: Any = Shown(curve)
    return _response(laws, [cohort], (), len(curve), None, 400, torch.ones(1, dtype=torch.bool), ())


def test_a_reach_that_only_the_last_steps_followed_tell_is_not_exact() -> None:
    """Of 40 steps that were followed the last 5 fall by a tenth each: what came before would never have fallen."""
    steps = torch.arange(40, dtype=torch.float64)
    exponential, late = _of_curve(0.95**steps), _of_curve(0.9 ** (steps - 35).clamp(min=0.0))
    assert float(exponential.reach) == pytest.approx(-1 / math.log(0.95), rel=1e-6)
    assert float(exponential.stderr["reach"]) == pytest.approx(0.0, abs=1e-6)
    assert 39 < late.reach < 400 and float(late.stderr["reach"]) == pytest.approx(float(late.reach))


def _normal_means(of: Callable[[Any], Any], std: float) -> float:
    z = np.linspace(-9, 9, 4001)
    return float(np.average(of(std * z), weights=np.exp(-(z**2) / 2)))


@pytest.mark.parametrize("seed", range(4))
def test_next_to_criticality_the_rate_is_right_within_its_error(seed: int) -> None:
    weight_var = 1.5
    q = brentq(lambda q: _normal_means(lambda u: np.tanh(u) ** 2, (weight_var * q) ** 0.5) - q, 0.05, 1)
    # the stable correlation is 0, and of independent copies E[D_a D_b] = E[D]^2
    chi = weight_var * _normal_means(lambda u: np.cosh(u) ** -2, (weight_var * q) ** 0.5) ** 2
    units = population(Spec(Vanilla(), {"h": Gate(weight_var)}, Input(variance=0.0)), seed=seed)
    found = units.respond(units.settle("apart", max_steps=512))
    assert abs(float(found.chi) - chi) < 3 * float(found.stderr["chi"]) < 0.002


def test_the_rate_has_the_error_of_the_correlation_that_it_is_a_function_of() -> None:
    spec = Spec(Vanilla(), {"h": Gate(1.5, 1.0)}, Input(variance=0.05, correlation=0.9))
    found = []
    for seed in range(8):
        units = population(spec, seed=seed)
        response = units.respond(units.settle("apart"), tolerance=2e-3)
        found.append((float(response.chi), float(response.stderr["chi"])))
    rates, errors = np.transpose(found)
    assert 0.5 < rates.std(ddof=1) / np.sqrt(np.mean(errors**2)) < 1.7


def test_redrawn_biases_forget_exponentially() -> None:
    response = population(Spec(Peephole(), FORGETS)).stable().response
    assert float(response.chi) == pytest.approx(0.729, rel=0.004)
    assert response.exponential


@dataclass(frozen=True)
class Sticky(Cell):
    """A retention gate that reads its own unit's state: units with a large one keep it for long, each for its own."""

    name = "sticky"
    gates = {"f": Reads(state=False), "n": Reads(state=False)}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = torch.sigmoid(u.f + 0.5 * s.h)
        return {"h": f * s.h + (1 - f) * 2 * torch.relu(u.n)}


def test_a_response_that_dies_out_has_no_rate_of_zero() -> None:
    """Its profile falls by a third at each step, so that 0 is no rate of it."""
    spec = Spec(Sticky(), {"f": Gate(input_var=1.0, bias_mean=1.0), "n": Gate(input_var=1.0)})
    found = analyze(spec)
    assert found.chi.number() is None and "died out before its decay settled" in found.chi.reason()
    assert found.xi.number() is None and 2 < found.reach.number() < 2.6
    assert float(found.profile[1]) > 0.6


def _first_fall(profile: Callable[[int], float]) -> float:
    """Steps after step 1 until ``profile`` is 1/e of its value there, log-linear between steps."""
    below, above = 1, 2
    while profile(above) > profile(1) / np.e:
        below, above = above, 2 * above
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if profile(middle) > profile(1) / np.e else (below, middle)
    before, after = (np.log(profile(lag) / profile(1)) for lag in (below, above))
    return float(below - 1 + (1 + before) / (before - after))


@pytest.mark.parametrize(("mean", "variance"), [(6.0, 9.0), (5.0, 4.0), (3.0, 25.0)])
def test_the_reach_of_widely_spread_biases_is_right_within_its_error(mean: float, variance: float) -> None:
    """Of a T-RNN ``P_t`` is ``E[sigmoid(b)^2t]`` over the units' biases b."""
    gates = {"f": Gate(bias_mean=mean, bias_var=variance), "z": Gate(input_var=1.0)}
    found = analyze(Spec(TRNN(), gates, biases="fixed"), engine="population")
    z = np.linspace(-9, 9, 20001)
    weights, logs = np.exp(-(z**2) / 2), -np.log1p(np.exp(-mean - variance**0.5 * z))
    expected = _first_fall(lambda lag: float(np.average(np.exp(2 * lag * logs), weights=weights)))
    error = float(found.reach.error())
    assert abs(found.reach.number() - expected) < 4 * error and error < 0.005 * expected


@pytest.mark.parametrize("longest", [100, 10_000])
def test_the_reach_of_chrono_biases_is_right_within_its_error(longest: int) -> None:
    gates = {"f": Gate(bias_law=BiasLaw("chrono", 1.0, longest - 1.0)), "z": Gate(input_var=1.0)}
    found = analyze(Spec(TRNN(), gates, biases="fixed"), engine="population")
    r = np.linspace(1, longest - 1, 200001)
    expected = _first_fall(lambda lag: float(np.trapezoid((r / (1 + r)) ** (2 * lag), r)))
    assert abs(found.reach.number() - expected) < 4 * float(found.reach.error()) < 2e-4 * expected


def _gru_by_hand(update: Gate, others: dict[str, Gate]) -> tuple[float, float]:
    """E[h^2] and reach of a GRU whose update gate has a bias for each unit, by Gauss-Hermite sums.

    Of a unit with the bias b ``E[h^2 | b]`` is ``E(1-z)^2 E n^2 / (1 - E z^2)``, and its share of the response follows
    ``m <- E z^2 m + source P`` with P the mean over units.
    """
    x, shares = np.polynomial.hermite_e.hermegauss(50)
    shares = shares / shares.sum()
    reset, new, driven = others["r"], others["nh"], float(others["nx"].input_var)

    def moments(q: float) -> tuple[Any, Any, float]:
        u_r, u_n = (float(gate.weight_var) * q + float(gate.input_var) for gate in (reset, new))
        r = 1 / (1 + np.exp(-(u_r**0.5) * x))[:, None, None]
        u_h = u_n**0.5 * x[None, :, None]
        n = np.tanh(r * u_h + driven**0.5 * x[None, None, :])
        biases = float(update.bias_mean) + float(update.bias_var) ** 0.5 * x[:, None]
        z = 1 / (1 + np.exp(-biases - (float(update.weight_var) * q + float(update.input_var)) ** 0.5 * x))

        def mean(value: Any) -> float:
            return float(np.einsum("ijk,i,j,k", value, shares, shares, shares))

        n2, slope = mean(n**2), (1 - n**2) ** 2
        through_n = float(new.weight_var) * mean(slope * r**2)
        through_r = float(reset.weight_var) * mean(slope * (r * (1 - r) * u_h) ** 2)
        kept, written = (z**2) @ shares, ((1 - z) ** 2) @ shares
        second = written * n2 / (1 - kept)
        moved = float(update.weight_var) * ((z * (1 - z)) ** 2 @ shares) * (second + n2)
        return kept, moved + written * (through_n + through_r), float(shares @ second)

    q = brentq(lambda q: moments(q)[2] - q, 1e-6, 1.0, xtol=1e-13)
    kept, source, _ = moments(q)
    m, profile = np.ones(len(kept)), []
    for _ in range(200):
        profile.append(float(shares @ m))
        m = kept * m + source * profile[-1]
    return q, _first_fall(profile.__getitem__)


@pytest.mark.parametrize(
    "update",
    [
        Gate(0.5, 4.0, bias_mean=-1.0, bias_var=0.3),
        Gate(3.0, 0.1, bias_var=0.3),
        Gate(1.0, 0.3, bias_mean=1.0, bias_var=0.5),
    ],
    ids=["inputs", "weights", "biases"],
)
def test_gates_with_noise_and_a_bias_of_their_own(update: Gate) -> None:
    others = {"r": Gate(1.0, 0.3), "nh": Gate(1.5), "nx": Gate(input_var=0.3)}
    q, reach = _gru_by_hand(update, others)
    found = analyze(Spec(GRU(), {"z": update} | others, biases="fixed"), length=10)
    moment = found.fixed_point.second_moment
    assert abs(moment.number() - q) < 4 * moment.error() < 2e-3 * q
    assert abs(found.reach.number() - reach) < 4 * found.reach.error() < 0.03 * reach


@dataclass(frozen=True)
class Averaging(Cell):
    """An LSTM with a slow average of h, for display."""

    name = "averaging"
    states = ("h", "c", "average")
    gates = {gate: Reads() for gate in "ifgo"}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        new = LSTM().update(s, u, x)
        return new | {"average": 0.99 * s.average + 0.01 * new["h"]}


def test_a_state_that_nothing_reads_has_no_part_in_the_rate() -> None:
    gates = {gate: Gate(1.0, 0.5) for gate in "igo"} | {"f": Gate(1.0, 0.5, bias_mean=1.0)}
    plain, averaging = (analyze(Spec(cell, gates)) for cell in (LSTM(), Averaging()))
    for name in ("chi", "xi", "reach"):
        one, other = getattr(plain, name), getattr(averaging, name)
        assert abs(one.number() - other.number()) < 4 * math.hypot(one.error(), other.error()), name


@dataclass(frozen=True)
class Delayed(Cell):
    """Its candidate reads the state of the step before last, which a second state keeps."""

    name = "delayed"
    states = ("h", "before")
    gates = {"n": Reads(), "f": Reads(state=False)}

    def read(self, gate: str, s: Values, u: Values) -> Any:
        return s.before

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = torch.sigmoid(u.f)
        return {"h": f * s.h + (1 - f) * torch.tanh(u.n), "before": s.h}


def test_a_delay_is_not_displaced_with_the_state_that_it_keeps() -> None:
    found = analyze(Spec(Delayed(), {"n": Gate(0.5, 0.5), "f": Gate(input_var=4.0)}))
    nodes, shares = np.polynomial.hermite_e.hermegauss(200)
    f = 1 / (1 + np.exp(-2 * nodes))
    kept = float(shares @ f**2 / shares.sum())
    # What n reads is h of two steps before: after one step there is only what f retains.
    assert [float(found.profile[lag]) for lag in (0, 1)] == pytest.approx([1.0, kept], rel=0.02)


@dataclass(frozen=True)
class Echo(Cell):
    """Two states, each in the other's update, with a gate."""

    name = "echo"
    states = ("h", "c")
    gates = {"n": Reads(), "f": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f, c = torch.sigmoid(u.f), 0.9 * s.c + 0.1 * s.h
        return {"h": f * s.h + (1 - f) * (torch.tanh(u.n) + 0.7 * c), "c": c}


def test_the_reach_of_fixed_biases_is_looked_for_beyond_the_profile_asked_for() -> None:
    gates = {"n": Gate(0.1, 0.5), "f": Gate(0.1, 0.3, bias_mean=3.0, bias_var=1.0)}
    units = population(Spec(Echo(), gates, biases="fixed"), units=64, replicates=8)
    stationary = units.settle("identical", tolerance=0.02)
    near, far = (float(units.respond(stationary, length=length, max_cohorts=4).reach) for length in (12, 60))
    assert 12 < far < 48 and near == pytest.approx(far, rel=0.05)


@dataclass(frozen=True)
class SecondOrder(Cell):
    """``y'' = tanh(u) - y - friction y'``, by Euler's steps: a linear oscillator that tanh of its network drives."""

    name = "second_order"
    states = ("y", "z")
    gates = {"u": Reads()}
    step: float = 0.2
    friction: float = 0.5

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        z = s.z + self.step * (torch.tanh(u.u) - s.y - self.friction * s.z)
        return {"y": s.y + self.step * z, "z": z}


@pytest.mark.parametrize(
    ("step", "friction", "weight", "variance"),
    [(0.2, 0.5, 0.3, 0.3), (0.1, 1.0, 2.0, 0.5), (0.05, 0.2, 0.5, 0.5), (0.05, 1.0, 0.5, 0.5)],
)
def test_the_rate_of_an_oscillating_response_is_right_within_its_error(
    step: float, friction: float, weight: float, variance: float
) -> None:
    """E[ds ds^T] of both states is mapped by a 4 x 4 matrix, whose largest eigenvalue is chi."""
    nodes, shares = np.polynomial.hermite_e.hermegauss(120)
    shares = shares / shares.sum()
    once = np.array([[1 - step**2, step * (1 - step * friction)], [-step, 1 - step * friction]])
    carried, driven = np.kron(once, once), np.kron([step**2, step], [step**2, step])
    second_moment = 0.0
    for _ in range(2000):
        u = (weight * second_moment + variance) ** 0.5 * nodes
        second_moment = float(np.linalg.solve(np.eye(4) - carried, driven * (shares @ np.tanh(u) ** 2))[0])
    slope = float(shares @ (1 - np.tanh(u) ** 2) ** 2)
    whole = carried + weight * slope * np.outer(driven, [1.0, 0.0, 0.0, 0.0])
    expected = -1 / np.log(np.abs(np.linalg.eigvals(whole)).max())
    found = analyze(Spec(SecondOrder(step, friction), {"u": Gate(weight, variance)})).xi
    assert abs(found.number() - expected) < 4 * float(found.error()) + 1e-4 * expected
    assert float(found.error()) < 0.02 * expected


def test_a_cell_without_memory_still_has_the_rate_zero() -> None:
    found = analyze(Spec(Vanilla(), {"h": Gate(input_var=1.0)}), engine="population")
    assert found.chi.number() == 0


def test_a_response_that_a_saturated_output_hides_has_no_reach() -> None:
    gates = {"i": Gate(input_var=1), "f": Gate(bias_mean=5), "g": Gate(input_var=1, bias_mean=1), "o": Gate()}
    found = analyze(Spec(LSTM(), gates), length=2)
    assert found.reach.number() is None and "tanh(c) is saturated" in str(found.reach.reason())
    assert found.xi.number() == pytest.approx(74.456, rel=1e-4) and found.state_profiles["c"][2] > 0.9


@pytest.mark.parametrize("engine", ["population", "quadrature"])
def test_a_negative_response_has_no_reach(engine: Any) -> None:
    """Of a minimal RNN whose two sequences have opposite inputs."""
    found = analyze(Spec(Minimal(), {"u": Gate(10.0)}, Input(1.0, -1.0)), engine=engine)
    assert float(found.profile[1] / found.profile[0]) == pytest.approx(-0.0366, abs=0.005)
    assert "negative one step later" in (found.reach.reason() or "")
    if engine == "quadrature":
        assert found.chi.number() == pytest.approx(-0.0362, abs=1e-4)
    else:
        assert "sampled units do not tell the rate" in (found.chi.reason() or "")


def test_the_profile_has_the_errors_by_which_seeds_differ() -> None:
    cell = GRU()
    gates = {name: Gate(float(read.state), float(read.input), bias_var=0.3) for name, read in cell.gates.items()}
    spec = Spec(cell, gates, biases="fixed")
    generators = [torch.Generator().manual_seed(seed) for seed in range(6)]
    few = Effort(cohorts=2, response_steps=64)
    found = [population_analysis(spec, 10, generator=one, replicates=16, effort=few) for one in generators]
    profiles, errors = (
        torch.stack([getattr(one, name)[1:] for one in found]) for name in ("profile", "profile_stderr")
    )
    ratios = profiles.std(0) / errors.mean(0)
    assert errors.shape == profiles.shape and 0.5 < float(ratios.mean()) < 1.6 and float(ratios.max()) < 2.5


def test_profiles_of_states_have_the_errors_by_which_seeds_differ() -> None:
    gates = {name: Gate(1.0, 1.0, bias_mean=float(name == "f"), bias_var=0.3) for name in "ifgo"}
    spec = Spec(LSTM(), gates)
    generators = [torch.Generator().manual_seed(seed) for seed in range(6)]
    few = Effort(cohorts=2, response_steps=64)
    found = [population_analysis(spec, 10, generator=one, replicates=16, effort=few) for one in generators]
    for state in ("h", "c"):
        profiles = torch.stack([one.state_profiles[state][1:] for one in found])
        errors = torch.stack([one.state_profiles_stderr[state][1:] for one in found])
        ratios = profiles.std(0) / errors.mean(0)
        assert 0.4 < float(ratios.mean()) < 1.6 and float(ratios.max()) < 2.5


def test_a_profile_by_quadrature_has_no_errors() -> None:
    assert not analyze(Spec(Vanilla(), {"h": Gate(0.5, 1.0)}), length=5).profile_stderr.any()


def test_the_profile_of_long_lengths_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes most of the time of `critical` there."""
    lengths: list[int] = []
    computed = Renewal.profile

    def counted(renewal: Renewal, length: int) -> torch.Tensor:
        if len(renewal.displaced) > 9:  # each replicate left out in turn, and not some groups of them
            lengths.append(length)
        return computed(renewal, length)

    monkeypatch.setattr(Renewal, "profile", counted)
    assert critical(LSTM(), 20_000).analysis.reach.number() == pytest.approx(20_000, rel=0.1)
    assert len(lengths) == len(set(lengths)) == 1
