"""Biases that each unit keeps: profiles and reaches against sums, drawn units and networks stepped by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import expit, ndtri

from checked import CHEN, CHO, PEEPHOLE, normal_mean
from isornn.cells import (
    TRNN,
    Gate,
    Input,
    Minimal,
    Peephole,
    Spec,
)
from isornn.cells.bias_laws import BiasLaw
from isornn.simulation import simulate
from isornn.theory import analyze

FORGETS = {"i": Gate(1e-6, 1), "f": Gate(1e-6, bias_mean=2, bias_var=1), "g": Gate(1e-6, 1)}


def test_units_with_their_own_bias_forget_at_their_own_rate() -> None:
    answer = analyze(Spec(Peephole(), FORGETS, biases="fixed"), length=801)
    rates = answer.profile[1:] / answer.profile[:-1]
    found = [float(rates[lag]) for lag in (1, 10, 30, 100, 800)]
    assert found == pytest.approx([0.78, 0.90, 0.94, 0.975, 0.995], abs=0.006)
    assert answer.chi.number() is None
    assert "not exponential" in str(answer.xi.reason())
    redrawn = analyze(Spec(Peephole(), FORGETS))
    assert redrawn.chi.number() == pytest.approx(0.729, abs=0.0005)


def test_the_profile_without_weights_is_the_average_of_powers() -> None:
    answer = analyze(Spec(TRNN(), {"f": Gate(bias_mean=2, bias_var=1), "z": Gate(0, 1)}, biases="fixed"), length=300)

    def kept(steps: float) -> float:
        return normal_mean(lambda u: expit(u) ** (2 * steps), 2.0, 1.0)

    for lag in (1, 10, 300):
        assert float(answer.profile[lag]) == pytest.approx(kept(lag), rel=1e-9)
    reach = answer.reach.number()
    assert reach is not None
    whole = math.floor(reach)
    low, high = math.log(kept(whole + 1)), math.log(kept(whole + 2))
    interpolated = low + (high - low) * (reach - whole)
    assert interpolated == pytest.approx(math.log(kept(1)) - 1, abs=1e-8)


@pytest.mark.parametrize(
    "spec", [PEEPHOLE, CHO, CHEN[1].replace("input.correlation", 0.5)], ids=["peephole", "cho", "chen"]
)
def test_reach_is_xi_where_the_decay_is_exponential(spec: Spec) -> None:
    answer = analyze(spec)
    assert answer.reach.number() == pytest.approx(answer.xi.number(), rel=1e-9)
    spread = spec.replace("biases", "fixed")
    for gate in spec.gates:
        spread = spread.replace(f"{gate}.bias_var", 0.0)
    again = analyze(spread)
    assert again.reach.number() == pytest.approx(again.xi.number(), rel=1e-9)


@pytest.mark.parametrize(("forget", "write"), [((1.0, 1.0), 0.25), ((3.0, 1.0), 1.0), ((2.0, 4.0), 16.0)])
def test_two_random_biases_by_sums_over_a_fine_grid(forget: tuple[float, float], write: float) -> None:
    """Without recurrent weights ``E[c^2 | b] = (E i^2 E g^2 + 2 E f E i E g mean) / (1 - E f^2)``, with E g = 0."""
    gates = {"f": Gate(input_var=0.5, bias_mean=forget[0], bias_var=forget[1])}
    gates |= {"i": Gate(input_var=0.5, bias_var=write), "g": Gate(input_var=1.0), "o": Gate()}
    found = analyze(Spec(Peephole(), gates, biases="fixed"), length=20)
    z = np.linspace(-8, 8, 401)
    weights = np.exp(-(z**2) / 2)
    weights = weights / weights.sum()
    f = expit(forget[0] + forget[1] ** 0.5 * z[:, None] + 0.5**0.5 * z)
    i = expit(write**0.5 * z[:, None] + 0.5**0.5 * z)
    kept, written = f**2 @ weights, float(weights @ (i**2 @ weights) * (np.tanh(z) ** 2 @ weights))
    second = found.fixed_point.second_moment
    assert second.error() == 0
    assert second.number() == pytest.approx(float(weights @ (written / (1 - kept))), rel=1e-4)
    assert float(found.profile[20]) == pytest.approx(float(weights @ kept**20), rel=2e-4)


def test_three_random_biases_are_exact_and_one_that_is_not_read_changes_nothing() -> None:
    laws = {"i": Gate(0.5, 0.5, bias_var=1.0), "f": Gate(0.5, 0.5, bias_mean=1.0, bias_var=1.0)}
    laws |= {"g": Gate(0.5, 1.0, bias_mean=0.2, bias_var=1.0), "o": Gate()}
    spec = Spec(Peephole(), laws, Input(1.2), biases="fixed")
    found = analyze(spec, length=100)
    # Hermite sums over 30 x 30 x 30 biases with 90 nodes for each gate, by hand.
    assert found.fixed_point.second_moment.error() == 0 == found.reach.error()
    assert found.fixed_point.second_moment.number() == pytest.approx(1.7450964, rel=1e-5)
    assert found.reach.number() == pytest.approx(2.5795324, rel=1e-5)
    for gate, variance in (("o", 1.0), ("o", 1e-6), ("g", 1.0 + 1e-6)):
        again = analyze(spec.replace(f"{gate}.bias_var", variance), length=100)
        torch.testing.assert_close(again.profile, found.profile, rtol=1e-4, atol=0)


def test_two_random_biases_against_drawn_ones() -> None:
    # without weights units are independent: average the closed form over drawn biases
    spec = Spec(
        TRNN(),
        {"f": Gate(input_var=0.5, bias_mean=1, bias_var=1), "z": Gate(input_var=1, bias_var=0.7)},
        Input(1.0, 0.5),
        biases="fixed",
    )
    answer = analyze(spec, length=5)
    generator = torch.Generator().manual_seed(0)
    nodes, weights = np.polynomial.hermite_e.hermegauss(24)
    weights = weights / weights.sum()
    b, d = torch.randn(2, 20_000, generator=generator, dtype=torch.float64).numpy()
    f = expit(1 + b[:, None] + math.sqrt(0.5) * nodes)
    f1, f2 = f @ weights, f**2 @ weights
    # h = f h + (1 - f) z, z ~ N(d, 1): mean d; Q = (2 E f(1-f) d^2 + E(1-f)^2 (1 + d^2)) / (1 - E f^2)
    d = math.sqrt(0.7) * d
    second = (2 * (f1 - f2) * d**2 + (1 - 2 * f1 + f2) * (1 + d**2)) / (1 - f2)
    error = float(second.std() / math.sqrt(len(second)))
    found = answer.fixed_point.second_moment
    assert found.error() == 0
    assert found.number() == pytest.approx(float(second.mean()), abs=4 * error)
    both = (
        expit(1 + b[:, None] + math.sqrt(0.5) * _correlated(nodes, 0.5)[0]),
        expit(1 + b[:, None] + math.sqrt(0.5) * _correlated(nodes, 0.5)[1]),
    )
    carry = (both[0] * both[1]) @ np.outer(weights, weights).ravel()
    for lag in (1, 3):
        expected, error = float((carry**lag).mean()), float((carry**lag).std() / math.sqrt(len(carry)))
        assert float(answer.profile[lag]) == pytest.approx(expected, abs=4 * error)


def _correlated(nodes: np.ndarray[Any, Any], c: float) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    a, b = np.meshgrid(nodes, nodes, indexing="ij")
    return a.ravel(), (c * a + math.sqrt(1 - c**2) * b).ravel()


def test_weights_tie_slow_and_fast_units_together() -> None:
    # rank one: m' = carry m + source term E[read m]; a network of many units, stepped by hand
    spec = Spec(
        Peephole(), {"i": Gate(0.5, 1), "f": Gate(0.5, bias_mean=1, bias_var=1), "g": Gate(1.0, 1)}, biases="fixed"
    )
    theory, networks = analyze(spec, length=12), []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        networks.append(simulate(spec, width=400, steps=12, networks=1, warmup=40, generator=generator).response.value)
    measured = torch.stack(networks).mean(0)
    torch.testing.assert_close(measured, theory.profile, rtol=0.08, atol=0)
    exponential = float(theory.profile[1]) ** 12
    assert float(theory.profile[12]) > 2 * exponential


def test_chrono_has_the_reach_of_its_law() -> None:
    # r ~ U(1, T-1): carry ((r)/(1+r))^2 per unit, averaged by adaptive quadrature
    spec = Spec(TRNN(), {"f": Gate(bias_law=BiasLaw("chrono", 1, 199)), "z": Gate(0, 1)}, biases="fixed")
    answer = analyze(spec, length=200)

    def kept(lag: int) -> float:
        return float(quad(lambda r: (r / (1 + r)) ** (2 * lag) / 198, 1, 199, epsabs=1e-13, limit=400)[0])

    assert answer.profile[[1, 20, 200]].numpy() == pytest.approx([kept(lag) for lag in (1, 20, 200)], rel=1e-9)


@pytest.mark.parametrize("spread", [4.0, 5.0, 8.0])
def test_a_wide_law_of_biases_may_freeze_a_few_units(spread: float) -> None:
    """Units of 4e-16 to 7e-5 of the biases have a gate that is 1 to rounding: a network of 8000 hardly has them."""
    gates = {"u": Gate(1.0, 1.0, bias_mean=1.0, bias_var=spread**2)}
    found = analyze(Spec(Minimal(), gates, biases="fixed"), length=1, engine="quadrature")
    draw, width = np.random.default_rng(0), 8000
    bias = 1 + spread * ndtri(draw.permutation((np.arange(width) + 0.5) / width))
    state, squares, gains = np.zeros(width), [], []
    for step in range(3000):
        u = np.sqrt(np.mean(state**2) + 1) * draw.normal(size=width) + bias
        f, x = 1 / (1 + np.exp(-np.clip(u, -700, 700))), draw.normal(size=width)
        if step >= 1000:
            squares.append(np.mean(state**2))
            gains.append(np.mean(f**2) + np.mean((f * (1 - f) * (state - x)) ** 2))
        state = f * state + (1 - f) * x
    assert found.fixed_point.second_moment.number() == pytest.approx(np.mean(squares), rel=0.01)
    assert found.jacobian.mean.number() == pytest.approx(np.mean(gains), rel=0.01)
    assert found.reach.number() > 15 and found.jacobian.variance.number() is not None


def test_a_law_of_biases_that_freezes_many_units_has_no_fixed_point() -> None:
    gates = {"u": Gate(1.0, 1.0, bias_mean=1.0, bias_var=400.0)}
    found = analyze(Spec(Minimal(), gates, biases="fixed"), length=1)
    assert "some units" in (found.fixed_point.second_moment.reason() or "")


def test_units_with_rare_biases_of_three_gates_count() -> None:
    """A peephole LSTM whose i, f and g keep biases with a standard deviation of 2: a fifth of Q rests on the 1e-4 of
    units that forget most slowly. By points drawn from the biases' law it was 4.94 +- .22 for 5.95."""
    gates = {name: Gate(1.0, 1.0, bias_mean=float(name == "f"), bias_var=4.0) for name in "ifg"}
    found = analyze(Spec(Peephole(), gates, biases="fixed"), length=1).fixed_point.second_moment
    grid = np.linspace(-8.5, 8.5, 171)
    density = np.exp(-(grid**2) / 2) / np.exp(-(grid**2) / 2).sum()

    def second_moment(q: float) -> float:
        """E[c^2] = E[(B2 + 2 A B B / (1 - A)) / (1 - A2)] of what a unit keeps and writes given its biases."""
        noise = (q + 1) ** 0.5 * grid
        forgets = expit(-(1 + 2 * grid[:, None] + noise)) @ density
        forgets_squared = 1 - expit(1 + 2 * grid[:, None] + noise) ** 2 @ density
        writes, proposes = expit(2 * grid[:, None] + noise), np.tanh(2 * grid[:, None] + noise)
        squared = (density @ writes**2 @ density) * (density @ proposes**2 @ density)
        of_means = (density @ (writes @ density) ** 2) * (density @ (proposes @ density) ** 2)
        return float(density @ ((squared + 2 * (1 - forgets) * of_means / forgets) / forgets_squared))

    exact = brentq(lambda q: second_moment(q) - q, 1.0, 20.0)
    assert found.error() < 0.02 * exact
    assert found.number() == pytest.approx(exact, abs=3 * found.error())


def test_where_samples_of_biases_disagree_on_whether_changes_fade_there_is_no_reach() -> None:
    gates = {"i": Gate(0.0, 1.0, bias_var=6.0), "f": Gate(0.0, 1.0, bias_var=6.0), "g": Gate(24.0, bias_var=6.0)}
    found = analyze(Spec(Peephole(), gates, biases="fixed"), length=1).reach
    assert found.number() is None
    assert bool(found.value.isnan())
    assert "too rare to tell" in (found.reason() or "")


def test_profiles_of_sampled_units_have_the_errors_by_which_scrambles_differ() -> None:
    gates = {name: Gate(1.0, 1.0, bias_mean=float(name == "f"), bias_var=2.25) for name in "ifg"}
    found = analyze(Spec(Peephole(), gates, biases="fixed"), length=20)
    errors = found.profile_stderr[1:] / found.profile[1:]
    assert bool((errors > 1e-4).all() and (errors < 0.1).all())
    assert bool((found.state_profiles_stderr["c"] == found.profile_stderr).all())
