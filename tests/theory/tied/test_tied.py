"""Tied weights: against closed forms, and against simulated networks with one draw of weights."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from checked import MGU, PEEPHOLE, law
from isornn import analyze, simulate
from isornn.cells import GRU, LSTM, TRNN, Cell, ChoGRU, Gate, Input, Minimal, Reads, Spec, Values, Vanilla
from isornn.cells.bias_laws import BiasLaw
from isornn.nn.random_network import RandomNetwork
from isornn.theory import moment_dynamics
from isornn.theory.reasons import NOTHING_LEFT, SIGN_UNSURE, TOO_LARGE
from isornn.theory.tied.analysis import lyapunov_exponent
from isornn.theory.tied.following import _resampled
from isornn.theory.tied.paths import GaussianProcess, root

LSTM_SPEC = Spec(LSTM(), law(i=(2, 1, 0, 0.5), f=(4, 0.5, 0.1, 2), g=(3, 0.5, 0, 0), o=(2, 0.5, 0, 0.5)))
GRU_SPEC = Spec(GRU(), law(r=(2, 0.5, 0, 0), z=(3, 1, 0, 1), nx=(0, 0.5, 0, 0), nh=(4, 0, 0, 0)))
CHO_SPEC = Spec(ChoGRU(), law(z=(3, 1, 0, 1), r=(2, 0.5, 0.1, 0.5), n=(4, 0.5, 0, 0)), Input(1.0, 0.5))
MGU_SPEC = Spec(MGU(), law(f=(2, 1, 0.2, 0), n=(3, 0.5, 0, 0)))
STEPS = 24


def linear(weight_var: float, **options: Any) -> Spec:
    return Spec(Vanilla(nonlinearity="identity"), {"h": Gate(weight_var, 0.5, **options)})


# -- Gaussian processes -----------------------------------------------------------------------------------------------


def test_paths_have_the_covariance_that_they_are_drawn_by() -> None:
    times = torch.arange(6, dtype=torch.float64)
    wanted = (-(times[:, None] - times).abs() / 3).exp()
    process, generator = GaussianProcess(), torch.Generator().manual_seed(0)
    values = []
    for t in range(6):
        fresh = torch.randn(1, 1, 1, 100_000, dtype=torch.float64, generator=generator)
        values.append(process.drawn(wanted[None, None, t : t + 1, :t], wanted[None, None, t : t + 1, t : t + 1], fresh))
    assert torch.allclose(torch.cov(torch.cat(values).reshape(6, -1)), wanted, atol=0.015)


def test_a_direction_without_variance_is_dropped() -> None:
    rank_one = torch.ones(3, 3, dtype=torch.float64)
    assert torch.equal(root(rank_one, rank_one), torch.tensor([[1.0, 0, 0], [1, 0, 0], [1, 0, 0]], dtype=torch.float64))


# -- closed forms -----------------------------------------------------------------------------------------------------


def test_a_linear_network_is_known_in_closed_form() -> None:
    """h_t = sum_k W^k (U x_(t-k) + b): a white input adds w^k, a bias too, since W^k b and W^l b are orthogonal."""
    found = moment_dynamics(linear(0.8, bias_var=0.3), 20, tied=True)
    exact = torch.tensor([sum(0.8 * (0.8**k) for k in range(t)) for t in range(21)]) * (0.5 + 0.3) / 0.8
    assert bool(((found.second_moment - exact).abs() <= 4 * found.stderr["second_moment"] + 1e-12).all())
    answer = analyze(linear(0.8, bias_var=0.3), tied=True, steps=20).tied
    assert answer is not None and answer.chi.number() == pytest.approx(0.8, abs=4 * answer.chi.error())
    assert answer.lyapunov.number() == pytest.approx(math.log(0.8) / 2, abs=4 * answer.lyapunov.error())


@pytest.mark.parametrize("ensemble", ["gaussian", 0.5])
def test_a_given_covariance_of_the_input_is_added_up(ensemble: str | float) -> None:
    """Constant inputs: h_t = sum_k W^k U x, whose parts are orthogonal; a margin m has N E[W_ij^2] = w (1 + m^2/3)."""
    spec = linear(0.8, ensemble=ensemble)
    found = moment_dynamics(spec, 12, tied=True, input_covariance=torch.full((12, 12), 2.0, dtype=torch.float64))
    w = 0.8 if ensemble == "gaussian" else 0.8 * (1 + 0.25 / 3)
    exact = torch.tensor([sum(w**k for k in range(t)) for t in range(13)], dtype=torch.float64)
    assert bool(((found.second_moment - exact).abs() <= 4 * found.stderr["second_moment"] + 1e-12).all())


def test_a_cell_without_recurrent_weights_forgets_at_each_units_own_rate() -> None:
    """t_rnn with biases drawn once and no input to the gate: the unit's time scale is -1/ln sigma(b)."""
    spec = Spec(TRNN(), {"f": Gate(bias_law=BiasLaw("timescale", 10.0, 50.0)), "z": Gate(input_var=1.0)})
    answer = analyze(spec, tied=True, steps=10).tied
    assert answer is not None
    r = torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9], dtype=torch.float64) * 40 + 10
    assert torch.allclose(answer.time_scales["h"].value, -1 / (r / (1 + r)).log(), rtol=2e-3)


# -- networks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [PEEPHOLE, LSTM_SPEC, GRU_SPEC, CHO_SPEC, MGU_SPEC], ids=lambda spec: spec.cell.name)
def test_moments_and_growth_are_those_of_tied_networks(spec: Spec) -> None:
    generator = torch.Generator().manual_seed(3)
    run = simulate(spec, width=400, steps=STEPS, networks=8, tied=True, tangents=2, generator=generator)
    answer = analyze(spec, tied=True, steps=STEPS).tied
    assert answer is not None
    for name in ("mean", "second_moment", "correlation"):
        found, measured = getattr(answer, name), getattr(run, name)
        noise = (found.stderr**2 + measured.stderr**2).sqrt()
        # Eight networks tell their own spread roughly, and one of 24 steps is allowed to lie far out.
        assert bool(((found.value - measured.value).abs() <= 4.5 * noise + 1e-9).all()), name
    growth = run.chi_1.value.log() / 2
    noise = math.hypot(answer.lyapunov.error(), float(run.chi_1.stderr / run.chi_1.value) / 2)
    assert abs(answer.lyapunov.number() - float(growth)) <= 4 * noise


class Added(Cell):
    """A gate that multiplies what another reads is added to the state as well: its derivative meets itself."""

    name = "added"
    gates = {"f": Reads(), "z": Reads()}

    def read(self, gate: str, s: Values, u: Values) -> Any:
        return u.f * s.h if gate == "z" else s.h

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": 0.6 * s.h + 0.4 * torch.tanh(u.z) + 0.4 * torch.tanh(u.f)}


def test_derivatives_through_a_read_gate_have_their_sign() -> None:
    spec = Spec(Added(), law(f=(1, 0.2, 0, 1), z=(1, 0.2, 0, 0.5)), Input(1.0, 0.5))
    generator = torch.Generator().manual_seed(3)
    chi_1 = simulate(spec, width=300, steps=STEPS, networks=32, tied=True, tangents=2, generator=generator).chi_1
    answer = analyze(spec, tied=True, steps=STEPS).tied
    assert answer is not None
    noise = math.hypot(answer.lyapunov.error(), float(chi_1.stderr / chi_1.value) / 2)
    assert noise < 0.01  # with the other sign it is lower by 0.05
    assert abs(answer.lyapunov.number() - float(chi_1.value.log()) / 2) <= 4 * noise


def test_coloured_input_reaches_the_theory_as_it_does_networks() -> None:
    """An AR(1) input, drawn once for all networks' units: E[h^2] of the minimal RNN, whose input enters pointwise."""
    spec, steps = Spec(Minimal(), law(u=(3, 2, 0, 1))), 16
    times = torch.arange(steps, dtype=torch.float64)
    covariance = 0.9 ** (times[:, None] - times).abs()
    found = moment_dynamics(spec, steps, tied=True, input_covariance=covariance)
    measured = torch.stack([_network(spec, covariance, seed) for seed in range(12)])
    error = measured.std(0) / len(measured) ** 0.5
    noise = (found.stderr["second_moment"][1:] ** 2 + error**2).sqrt()
    gap = (found.second_moment[1:] - measured.mean(0)).abs()
    assert bool((gap <= 4.5 * noise).all())
    white = moment_dynamics(spec, steps, tied=True)
    assert not bool(((white.second_moment[1:] - measured.mean(0)).abs() <= 4.5 * noise).all())


def _network(spec: Spec, covariance: Tensor, seed: int) -> Tensor:
    """Mean square state of one tied network of 400 units over time."""
    generator = torch.Generator().manual_seed(seed)
    network = RandomNetwork.drawn(spec, 400, 400, generator)
    normal = torch.randn(len(covariance), 400, dtype=torch.float64, generator=generator)
    inputs = torch.linalg.cholesky(covariance) @ normal
    state, squares = torch.zeros(400, dtype=torch.float64), []
    for x in inputs:
        (state,) = network.advance(x, x)(state)
        squares.append(state.square().mean())
    return torch.stack(squares)


def test_tied_and_untied_part_where_networks_do() -> None:
    answer = analyze(PEEPHOLE, tied=True, steps=8).tied
    assert answer is not None and answer.differs_from() == 3
    weak = Spec(LSTM(), law(i=(1e-4, 1, 0, 0), f=(1e-4, 0, 0, 2), g=(1e-4, 1, 0, 0), o=(1e-4, 0, 0, 0)))
    same = analyze(weak, tied=True, steps=8).tied
    assert same is not None and same.differs_from() is None


# -- what does not exist ----------------------------------------------------------------------------------------------


def test_resampled_units_have_the_weighted_means_of_all_and_replicates_their_own_draws() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(1, 3, 4000, generator=generator, dtype=torch.float64) + 0.5
    value = torch.linspace(0, 1, 4000, dtype=torch.float64).expand(1, 3, -1)  # neighbours are alike: an error of 1/n
    tilt = (1 + 4 * value) / 2
    order, fresh = _resampled(weights, tilt, generator)
    torch.testing.assert_close(fresh.mean(-1), torch.ones(1, 3, dtype=torch.float64))
    for f in (value, value.square()):
        expected = (weights * f).sum(-1) / weights.sum(-1)
        torch.testing.assert_close((fresh * f.gather(-1, order)).mean(-1), expected, rtol=2e-3, atol=0)
    alike, _ = _resampled(torch.ones_like(tilt), tilt, generator)
    assert not torch.equal(alike[0, 0], alike[0, 1])


def test_growth_beyond_doubles_is_said() -> None:
    spec = Spec(Vanilla(nonlinearity="identity"), {"h": Gate(1e12, 0.5)})
    answer = analyze(spec, tied=True, steps=30).tied
    assert answer is not None
    assert answer.lyapunov.reason() == TOO_LARGE
    assert answer.to_json()["second_moment"][-1] is None and answer.to_json()["second_moment"][0] is not None


def test_a_state_that_carries_nothing_has_no_growth() -> None:
    answer = analyze(Spec(Vanilla(), {"h": Gate(0.0, 1.0)}), tied=True, steps=6).tied
    assert answer is not None and answer.lyapunov.reason() == NOTHING_LEFT == answer.chi.reason()


def test_a_settled_state_without_input_is_drawn_by_a_singular_covariance() -> None:
    """Without input a tied tanh network of weight variance 0.5 dies out; with a bias it comes to rest."""
    resting = Spec(Vanilla(), {"h": Gate(0.5, 0.0, bias_var=0.5)})
    found = moment_dynamics(resting, 80, tied=True)
    assert torch.allclose(found.second_moment[-1], found.second_moment[-20], rtol=1e-6)
    assert bool(found.second_moment.isfinite().all())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_covariance": torch.eye(3)}, "shape"),
        ({"input_covariance": -torch.eye(5)}, "positive"),
        ({"input_covariance": torch.full((5, 5), torch.inf)}, "input_covariance: .*inf.* is not allowed; it must be"),
        ({"input_covariance": torch.full((5, 5), torch.nan)}, "input_covariance: .*nan.* is not allowed; it must be"),
        ({"input_covariance": torch.eye(5) * 1j}, "real"),
        ({"input_covariance": torch.eye(5), "input_correlation": [0.5] * 5}, "one number"),
        ({"tied": False, "input_covariance": torch.eye(5)}, "tied=True"),
    ],
)
def test_a_covariance_that_is_none_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        moment_dynamics(linear(0.5), 5, **{"tied": True, **arguments})


def test_equal_generators_give_equal_answers() -> None:
    one, other = (analyze(LSTM_SPEC, tied=True, steps=4).tied for _ in range(2))
    assert one is not None and other is not None and one.to_json() == other.to_json()


def test_a_common_response_of_unsure_sign_is_no_number() -> None:
    """Two sequences with opposite inputs in a steep relu network: where one unit is on, the other copy's is off."""
    spec = Spec(Vanilla("relu"), {"h": Gate(0.0, 1.0)}, Input(1.0, -1.0))
    gone = analyze(spec, tied=True, steps=6).tied
    assert gone is not None and gone.chi.reason() == NOTHING_LEFT
    opposite = Spec(Vanilla("relu"), {"h": Gate(1e-6, 1.0)}, Input(1.0, -1.0))
    answer = analyze(opposite, tied=True, steps=6).tied
    assert answer is not None and answer.chi.number() is None and answer.chi.reason() == SIGN_UNSURE
    assert answer.xi.reason() == SIGN_UNSURE and answer.chi_1.number() is not None


@pytest.mark.parametrize("time", [1, 3, 6])
def test_a_displacement_that_is_gone_in_one_network_at_an_end_of_the_window_has_no_growth(time):
    log_response = torch.zeros(1, 4, 7, 2, dtype=torch.float64)
    log_response[0, 2, time, 0] = -math.inf
    followed: Any = SimpleNamespace(start=3, log_response=log_response, unbounded=torch.zeros(1, dtype=torch.bool))
    followed.growth = lambda response: (response[..., -1, :] - response[..., 3, :]) / 3
    reason = lyapunov_exponent(followed, torch.Size([])).reason()
    assert reason == (NOTHING_LEFT if time in (3, 6) else None)
