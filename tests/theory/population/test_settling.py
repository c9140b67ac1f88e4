"""Where a population settles: slow units, slow correlations, and which of two points."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor

from checked import law
from isornn.cells import (
    LSTM,
    TRNN,
    Gate,
    Input,
    Peephole,
    Spec,
    Vanilla,
)
from isornn.cells.ind_rnn import IndRNN
from isornn.simulation import simulate
from isornn.theory import analyze
from isornn.theory.population.analysis import population_analysis
from isornn.theory.population.engine import Effort
from isornn.theory.population.settling import controlled
from isornn.theory.reasons import NOT_CONVERGED, TOO_SOON
from populations import FORGETS, LSTM_SLOW, close, population, spread

SLOW_INPUT = Input(1.0, 0.5, mean=0.7, autocorrelation=0.9)


def test_a_slow_lstm_settles_without_thousands_of_steps() -> None:
    found = population(LSTM_SLOW).stable()
    assert found.stationary.converged
    assert found.stationary.steps < 200
    assert float(-1 / found.response.chi.log()) == pytest.approx(74.5, rel=0.01)
    assert float(found.response.reach) == pytest.approx(74.5, rel=0.01)


def test_a_correlation_that_settles_slowly_is_not_biased() -> None:
    """At xi = 15 steps, by quadrature: on average over seeds within one standard error, of which this average is known
    to a fifth. With the field at a running mean it was two standard errors too low."""
    spec = Spec(Vanilla(), law(h=(2.2, 0.02, 0, 0)))
    exact = analyze(spec, engine="quadrature")
    assert 14 < exact.xi.number() < 16
    found = [population(spec, seed=seed).settle("apart").moments for seed in range(24)]
    gaps = [(one.correlation - exact.fixed_point.correlation.number()) / one.stderr["correlation"] for one in found]
    assert abs(float(torch.stack(gaps).mean())) < 1


def simulated_second_moment(longest: float, write_input: float, weight: float, steps: int = 1500) -> float:
    """Q of the network of ``spread``, by plain steps of units drawn evenly over r and over log r, weighted back."""
    rng, n = np.random.default_rng(0), 8000
    v, even = (np.arange(n) + 0.5) / n, np.arange(n) % 2 == 0
    r = np.where(even, 1 + (longest - 1) * v, longest**v)
    weights = 1 / (0.5 + 0.5 * (longest - 1) / (r * np.log(longest)))
    c, q, found = np.zeros(n), 0.0, []
    for step in range(steps):
        i, f, o = (
            1 / (1 + np.exp(-m - np.sqrt(w * q + x) * rng.standard_normal(n)))
            for m, w, x in ((-np.log(r), weight, write_input), (np.log(r), weight, weight // 1), (0.0, 1.0, 0.0))
        )
        c = f * c + i * np.tanh(np.sqrt(weight * q + 1) * rng.standard_normal(n))
        q = float(np.average((o * np.tanh(c)) ** 2, weights=weights))
        if step >= 300:
            found.append(q)
    return float(np.mean(found))


@pytest.mark.parametrize(("write_input", "weight"), [(1.0, 1e-5), (1.0, 1.0)], ids=["weak", "strong"])
def test_a_spread_of_time_scales_settles_at_once(write_input: float, weight: float) -> None:
    settled = population(spread(199.0, write_input, weight)).settle("identical")
    assert settled.converged
    assert settled.steps <= 256
    expected = simulated_second_moment(199.0, write_input, weight)
    assert float(settled.moments.second_moment) == pytest.approx(expected, rel=0.01)


def test_time_scales_of_thousands_settle_at_once_and_reproducibly() -> None:
    found = [population(spread(5000.0, 1.0), seed).settle("identical") for seed in (0, 1)]
    assert all(settled.converged and settled.steps <= 256 for settled in found)
    first, second = (float(settled.moments.second_moment) for settled in found)
    assert first == pytest.approx(second, rel=0.01)


def test_the_law_of_a_slow_state_is_that_of_its_perpetuity() -> None:
    # c = sum_k f^k i g, so E c^2 = E i^2 E g^2 E[1 / (1 - f^2)] over the biases of f.
    moments = population(Spec(Peephole(), FORGETS, biases="fixed")).settle("identical").moments
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    mean = weights / weights.sum()
    sigma = 1 / (1 + np.exp(-nodes))
    fed = float(mean @ sigma**2) * float(mean @ np.tanh(nodes) ** 2)
    expected = fed * float(mean @ (1 / (1 - (1 / (1 + np.exp(-2 - nodes))) ** 2)))
    assert float(moments.second_moment) == pytest.approx(expected, rel=0.002)


def test_the_law_of_a_slow_state_is_that_of_its_perpetuity_where_two_gates_keep_biases_of_their_own() -> None:
    # c = i sum_k f^k g, so E c^2 = E i^2 E g^2 E[1 / (1 - f^2)] over the biases of i and of f.
    gates = {"i": Gate(bias_var=1.0), "f": Gate(bias_mean=4.0, bias_var=1.0), "g": Gate(input_var=1.0)}
    settled = population(Spec(Peephole(), gates, biases="fixed")).settle("identical")
    moments = settled.moments
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    mean = weights / weights.sum()
    fed = float(mean @ (1 / (1 + np.exp(-nodes))) ** 2) * float(mean @ np.tanh(nodes) ** 2)
    expected = fed * float(mean @ (1 / (1 - (1 / (1 + np.exp(-4 - nodes))) ** 2)))
    assert settled.converged
    assert close(moments.second_moment, moments.stderr["second_moment"], expected, 0.01)


def test_of_two_stable_points_the_lower_is_answered() -> None:
    """A peephole LSTM whose strong candidate keeps large states large: networks, which start at 0, stay small."""
    spec = Spec(
        Peephole(), {"i": Gate(21.8, bias_mean=-2.97), "f": Gate(0.535, bias_mean=2.74), "g": Gate(20.7, 0.00228)}
    )
    sampled, exact = (analyze(spec, engine=engine) for engine in ("population", "quadrature"))
    found, known = sampled.fixed_point.second_moment, exact.fixed_point.second_moment
    assert abs(float(found.value - known.value)) < 5 * float(found.stderr)
    measured = simulate(spec, width=400, steps=100, generator=torch.Generator().manual_seed(0))
    assert float(measured.second_moment.value[-1]) < 2 * float(known.value)


# By hand, where the forget gate loses so little that c is Gaussian: Q from E[c^2] = E[i^2] E[g^2] / (1 - E[f^2]), C*
# from the same of two copies.
_GRID = torch.linspace(-8, 8, 1201, dtype=torch.float64)
_DENSITY = torch.exp(-_GRID.square() / 2) / torch.exp(-_GRID.square() / 2).sum()


def _pair_mean(function: Callable[[Tensor], Tensor], variance: float, correlation: float) -> float:
    """E[function(a) function(b)] of two Gaussians, by brute force on a grid."""
    beside = max(0.0, 1 - correlation**2) ** 0.5
    scaled = _GRID * variance**0.5
    inner = function(correlation * scaled[:, None] + beside * scaled[None]) @ _DENSITY
    return float((function(scaled) * inner) @ _DENSITY)


def _remembering_lstm(weight_var: float, forget_bias: float) -> tuple[float, float]:
    """Q and the stable C* < 1 of an LSTM whose gates all have this variance of weights, and input variance."""

    def moments(q: float, c: float) -> tuple[float, float]:
        variance = weight_var * (1 + q)
        read = (1 + q * c) / (1 + q)
        gate = _pair_mean(torch.sigmoid, variance, read)
        kept = _pair_mean(lambda u: torch.sigmoid(u + forget_bias), variance, read)
        return gate, gate * _pair_mean(torch.tanh, variance, read) / (1 - kept)

    def surplus_q(q: float) -> float:
        gate, square = moments(q, 1.0)
        return gate * _pair_mean(torch.tanh, square, 1.0) - q

    q = brentq(surplus_q, 0.01, 0.9, xtol=1e-6)
    square = moments(q, 1.0)[1]

    def surplus_c(c: float) -> float:
        gate, pair = moments(q, c)
        return gate * _pair_mean(torch.tanh, square, pair / square) / q - c

    return q, brentq(surplus_c, 0.3, 0.99, xtol=1e-5)


@pytest.mark.parametrize(("weight_var", "forget_bias"), [(1 / 3, 8.0), (1.0, 10.0)])
def test_copies_of_units_that_remember_for_thousands_of_steps_settle(weight_var: float, forget_bias: float) -> None:
    gates = {name: Gate(weight_var, weight_var) for name in "igo"}
    spec = Spec(LSTM(), gates | {"f": Gate(weight_var, weight_var, bias_mean=forget_bias)})
    found = population(spec, seed=3).settle("apart")
    q, correlation = _remembering_lstm(weight_var, forget_bias)
    moments = found.moments
    assert bool(found.converged)
    assert float(moments.second_moment) == pytest.approx(q, abs=4 * float(moments.stderr["second_moment"]))
    assert float(moments.correlation) == pytest.approx(correlation, abs=4 * float(moments.stderr["correlation"]))
    assert float(moments.stderr["correlation"]) < 0.006


def test_no_second_moment_is_made_negative() -> None:
    """Of a state that died out but for rounding, whose control has a mean of its own size."""
    noise = torch.linspace(-1, 1, 32, dtype=torch.float64)[None, :, None].expand(1, 32, 3)
    mean, control = 1e-30 * (1 + 0.5 * noise), 1e-28 * (1 + noise)
    torch.testing.assert_close(controlled(mean, [control]), mean)
    smaller = controlled(mean, [1e-30 * (0.1 + noise)])
    torch.testing.assert_close(smaller, torch.full_like(mean, 0.95e-30), atol=1e-33, rtol=1e-9)


@pytest.mark.parametrize(
    ("forget", "weight_var", "input_correlation"), [(4.0, 0.5, 1.0), (5.0, 0.3, 1.0), (4.0, 0.9, 0.99)]
)
@pytest.mark.parametrize("units", [64, 256])
def test_copies_leave_an_unstable_correlation_that_is_near(
    forget: float, weight_var: float, input_correlation: float, units: int
) -> None:
    """chi_1 is 1.004 to 1.035, so that copies next to each other part within 30 to 300 steps.

    The deterministic engine knows where they end.
    """
    gates = {name: Gate(weight_var, 0.5, bias_mean=forget if name == "f" else 0.0) for name in "ifg"}
    spec = Spec(Peephole(), gates, Input(correlation=input_correlation))
    exact = analyze(spec, length=1, engine="quadrature")
    generator = torch.Generator().manual_seed(1)
    found = population_analysis(spec, 1, generator=generator, units=units, replicates=units // 8)
    assert exact.chi_1.value > 1 > exact.chi.value
    sure = 3 if units == 256 else 5  # errors from 8 replicates are known to a quarter
    for name in ("chi", "reach"):
        value, error = getattr(found, name).number(), getattr(found, name).error()
        assert abs(value - getattr(exact, name).number()) < sure * error
    correlation = found.fixed_point.correlation
    assert abs(correlation.number() - exact.fixed_point.correlation.number()) < sure * correlation.error()
    assert correlation.error() < 0.05


def test_copies_that_part_too_slowly_have_no_correlation() -> None:
    """chi_1 is 1.009 and each round that draws states from their law changes little: moments are known all the same."""
    gates = {name: Gate(3.05, 0.3, bias_mean=1.0 if name == "f" else 0.0) for name in "ifg"}
    generator = torch.Generator().manual_seed(0)
    found = population_analysis(Spec(Peephole(), gates), 1, generator=generator, units=64, replicates=8)
    exact = analyze(Spec(Peephole(), gates), length=1, engine="quadrature")
    for quantity in (found.chi, found.reach, found.fixed_point.correlation):
        assert "more slowly than they could be followed" in (quantity.reason() or "")
    assert found.profile.isnan().all() and found.chi_1.number() == pytest.approx(exact.chi_1.number(), abs=0.01)
    assert found.fixed_point.second_moment.number() == pytest.approx(exact.fixed_point.second_moment.number(), rel=0.01)


def test_units_that_forget_by_themselves_were_not_followed_for_long_enough() -> None:
    """Within 128 steps no average settles over units that keep 99.8 % of a state per step; such a state has a fixed
    point, unlike one that grows."""
    slow = Spec(TRNN(), {"f": Gate(bias_mean=6.0), "z": Gate(input_var=1.0)}, SLOW_INPUT, "fixed")
    grows = Spec(IndRNN(1.01, 1.05), {"z": Gate(input_var=1.0)}, SLOW_INPUT, "fixed")
    driven = Spec(Peephole(), {"f": Gate(weight_var=1e-6, bias_mean=6.0), "g": Gate(0.5, 1.0)}, SLOW_INPUT, "fixed")
    few = Effort(settle_steps=128, response_steps=16, cohorts=2)
    for spec, reason in ((slow, TOO_SOON), (grows, NOT_CONVERGED), (driven, NOT_CONVERGED)):
        generator = torch.Generator().manual_seed(0)
        found = population_analysis(spec, 4, generator=generator, units=64, replicates=8, effort=few).fixed_point
        assert not found.converged and found.second_moment.reason() == reason
