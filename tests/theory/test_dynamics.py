"""Moments over time against their fixed point, closed forms and networks; the correlation map's promises."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from isornn.cells import (
    LSTM,
    TGRU,
    TLSTM,
    TRNN,
    Cell,
    ChoGRU,
    Gate,
    Input,
    Minimal,
    Peephole,
    Spec,
    SpecError,
    Vanilla,
)
from isornn.simulation import simulate
from isornn.theory import TheoryMissing, analyze, correlation_map, moment_dynamics

CASES = {
    "vanilla": Spec(Vanilla(), {"h": Gate(1.5, 0.5, bias_var=0.2, bias_mean=0.3)}, Input(1.0, 0.7)),
    "minimal": Spec(Minimal(), {"u": Gate(3, 2, bias_mean=1)}, Input(1.0, 0.4)),
    "peephole": Spec(
        Peephole(), {"i": Gate(1, 1), "f": Gate(1, 1, bias_mean=1), "g": Gate(1, 1, bias_mean=0.5)}, Input(1, 0.5)
    ),
    "gru_cho": Spec(
        ChoGRU(), {"z": Gate(3, 1, bias_mean=1), "r": Gate(2, 1), "n": Gate(4, 1, bias_mean=0.4)}, Input(1, 0.3)
    ),
    "t_rnn": Spec(TRNN(), {"f": Gate(0, 1, bias_mean=1), "z": Gate(0, 1, bias_mean=0.5)}, Input(1.0, 0.3)),
    "t_lstm": Spec(TLSTM(), {"f": Gate(0, 1, 1, bias_mean=1), "z": Gate(0, 1, 0.5)}, Input(1.0, 0.3)),
    "t_gru": Spec(
        TGRU(), {"f": Gate(0, 1, 1, bias_mean=1), "z": Gate(0, 1), "o": Gate(0, 0, 1, bias_mean=1)}, Input(1, 0.3)
    ),
}
EVERY = pytest.mark.parametrize("spec", CASES.values(), ids=list(CASES))


@EVERY
def test_from_nothing_to_the_fixed_point(spec: Spec) -> None:
    settled, path = analyze(spec, length=1).fixed_point, moment_dynamics(spec, 120)
    assert path.second_moment.shape == (121,)
    assert float(path.second_moment[0]) == 0
    assert not path.correlation_defined[0]
    assert bool(path.correlation_defined[1:].all())
    for found, wanted in (
        (path.mean, settled.mean),
        (path.second_moment, settled.second_moment),
        (path.correlation, settled.correlation),
    ):
        assert float(found[-1]) == pytest.approx(wanted.number(), abs=1e-9)
        assert float(found[-2]) == pytest.approx(wanted.number(), abs=1e-9)  # one more step leaves it
    assert bool((path.stderr["second_moment"] == 0).all())


@pytest.mark.parametrize("name", ["vanilla", "gru_cho", "t_rnn"])
def test_late_decay_is_xi_q(name: str) -> None:
    # where the mean is not 0, Q follows the slowest mode of (mean, Q), whichever it is
    answer, path = analyze(CASES[name], length=1), moment_dynamics(CASES[name], 60)
    distance = (path.second_moment - answer.fixed_point.second_moment.value).abs()
    late = ((distance > 1e-10) & (distance < 1e-6)).nonzero().squeeze(-1)
    rate = (distance[late[-1]] / distance[late[0]]).log() / (late[-1] - late[0])
    assert -1 / float(rate) == pytest.approx(answer.xi_q.number(), rel=0.02)


def test_decay_of_the_second_moment_is_chens() -> None:
    spec = Spec(Minimal(), {"u": Gate(6, 1)})
    path, fixed = moment_dynamics(spec, 16).second_moment, analyze(spec, length=1).fixed_point.second_moment.value
    rates = (path[1:] - fixed) / (path[:-1] - fixed)
    assert float(rates[12]) == pytest.approx(0.450546, rel=2e-4)


def test_correlation_converges_at_chi() -> None:
    # started with the fixed point's second moment, only the correlation moves
    spec = CASES["minimal"]
    answer = analyze(spec, length=1)
    path = moment_dynamics(spec, 21, initial_variance=answer.fixed_point.second_moment.number())
    torch.testing.assert_close(path.second_moment, path.second_moment[:1].expand(22))
    gap = path.correlation - answer.fixed_point.correlation.value
    assert float(gap[21] / gap[20]) == pytest.approx(answer.chi.number(), rel=1e-4)


def test_gilboas_figure_5() -> None:
    # GRU driven with Sigma_z 0, then 1 from t = 10 on
    sigma = [0.0] * 10 + [1.0] * 30
    for bias in (-1.0, 3.0):
        spec = Spec(ChoGRU(), {"z": Gate(1, 1, bias_mean=bias), "r": Gate(1, 1), "n": Gate(4, 1)})
        path = moment_dynamics(spec, 40, input_correlation=sigma)
        found = simulate(
            spec,
            width=256,
            steps=40,
            networks=3,
            input_correlation=torch.tensor(sigma, dtype=torch.float64),
            tangents=1,
            generator=torch.Generator().manual_seed(0),
        )
        assert (found.second_moment.value - path.second_moment[1:]).abs().max() < 0.03
        assert (found.correlation.value - path.correlation[1:]).abs().max() < 0.1
        assert path.correlation[1:11].abs().max() < 0.01 < path.correlation[40]


def test_a_linear_network_step_by_step() -> None:
    # Q_t = v (1 - w^t) / (1 - w) + w^t Q_0; E[h_a h_b] likewise with v Sigma_t
    w, v, start = 0.7, 1.3, 2.0
    sigma = [0.5, -1.0, 0.0, 1.0, 1.0]
    path = moment_dynamics(
        Spec(Vanilla("identity"), {"h": Gate(w, v)}), 5, input_correlation=sigma, initial_variance=start
    )
    q, pair = start, 0.0
    for t, s in enumerate(sigma):
        q, pair = w * q + v, w * pair + v * s
        assert float(path.second_moment[t + 1]) == pytest.approx(q, rel=1e-12)
        assert float(path.correlation[t + 1]) == pytest.approx(pair / q, abs=1e-12)
    assert float(path.correlation[0]) == 0.0


def test_a_batch_and_one_number_for_all_steps() -> None:
    spec = CASES["gru_cho"].replace("z.bias_mean", torch.tensor([[0.0], [2.0]], dtype=torch.float64))
    spec = spec.replace("input.correlation", torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64))
    path = moment_dynamics(spec, 6)
    assert path.correlation.shape == (2, 3, 7)
    for j, bias in enumerate((0.0, 2.0)):
        for k, correlation in enumerate((0.0, 0.5, 1.0)):
            one = CASES["gru_cho"].replace("z.bias_mean", bias)
            alone = moment_dynamics(one, 6, input_correlation=correlation)
            torch.testing.assert_close(path.correlation[j, k], alone.correlation, rtol=0, atol=1e-10)
            torch.testing.assert_close(path.second_moment[j, k], alone.second_moment, rtol=0, atol=1e-10)


def test_a_batch_of_a_sampled_cell_and_one_number_for_all_steps() -> None:
    spec = Spec(LSTM(), {name: Gate(1.0, 0.5) for name in "igo"} | {"f": Gate(1.0, 0.5, bias_mean=1.0)})
    path = moment_dynamics(spec.replace("f.bias_mean", torch.tensor([0.0, 1.0]).double()), 4, input_correlation=0.5)
    alone = moment_dynamics(spec, 4, input_correlation=0.5)
    for name in ("second_moment", "correlation"):
        error = torch.hypot(path.stderr[name][1], alone.stderr[name])
        assert bool(((getattr(path, name)[1] - getattr(alone, name)).abs() <= 4 * error + 1e-9).all())
    assert float(path.second_moment[0, 4]) < float(path.second_moment[1, 4])


def test_gradients_flow_through_time() -> None:
    bias = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(
        moment_dynamics(CASES["peephole"].replace("f.bias_mean", bias), 5).correlation[5], bias
    )
    low, high = (
        float(moment_dynamics(CASES["peephole"].replace("f.bias_mean", b), 5).correlation[5]) for b in (0.9999, 1.0001)
    )
    assert float(slope) == pytest.approx((high - low) / 2e-4, rel=1e-6)


def test_biases_drawn_once_over_time() -> None:
    # t_rnn without input: the state climbs to its unit's bias; h_t = (1 - 2^-t) z
    spec = Spec(TRNN(), {"z": Gate(bias_var=1.0, bias_mean=0.5)}, biases="fixed")
    path = moment_dynamics(spec, 8)
    share = 1 - 0.5 ** torch.arange(9, dtype=torch.float64)
    torch.testing.assert_close(path.mean, 0.5 * share)
    torch.testing.assert_close(path.second_moment, 1.25 * share**2)
    assert float(path.correlation[8]) == 1


@pytest.mark.parametrize("wrong", [1.5, [0.0, 0.5], [0.0, 0.5, -1.1], math.nan, [[0.0, 0.1, 0.2]], "a"])
def test_input_correlations_are_checked(wrong: Any) -> None:
    for spec in (CASES["minimal"], Spec(LSTM())):
        with pytest.raises(SpecError, match="input_correlation: .* is not allowed; it must be one number or 3"):
            moment_dynamics(spec, 3, input_correlation=wrong)


@pytest.mark.parametrize("wrong", [torch.tensor(0.5), torch.tensor([]), torch.tensor([[0.5, 0.2]]), [0.5]])
def test_the_map_takes_a_line_of_correlations(wrong: Any) -> None:
    with pytest.raises(SpecError, match="correlation: .* shape"):
        correlation_map(CASES["minimal"], wrong)


@pytest.mark.parametrize("wrong", [torch.tensor([1.5]), torch.tensor([math.nan]), torch.tensor([0.5j])])
def test_correlations_of_the_map_are_real_and_from_minus_1_to_1(wrong: torch.Tensor) -> None:
    with pytest.raises(SpecError, match="correlation: .* is not allowed; its values are real, from -1 to 1"):
        correlation_map(CASES["minimal"], wrong)


@pytest.mark.parametrize("wrong", ["x", True, -1.0, math.nan, torch.ones(2)])
def test_initial_variances_are_checked(wrong: Any) -> None:
    with pytest.raises(SpecError, match="initial_variance"):
        moment_dynamics(CASES["minimal"], 3, initial_variance=wrong)


def test_tied_networks_take_a_step() -> None:
    with pytest.raises(SpecError, match="steps: 0 is not allowed"):
        moment_dynamics(CASES["minimal"], 0, tied=True)
    assert moment_dynamics(CASES["minimal"], 0).mean.shape == (1,)


def test_several_states_are_sampled() -> None:
    spec = Spec(LSTM(), {k: Gate(1.0, 1.0) for k in "igo"} | {"f": Gate(1.0, 1.0, bias_mean=1.0)})
    path = moment_dynamics(spec, 12, input_correlation=0.5)
    assert path.second_moment.shape == (13,)
    assert float(path.second_moment[12]) == pytest.approx(0.0505, rel=0.02)
    assert 0 < float(path.stderr["second_moment"][12]) < 0.001


@EVERY
def test_the_map_keeps_the_stable_correlation(spec: Spec) -> None:
    stable = analyze(spec, length=1).fixed_point.correlation.value
    grid = torch.stack([torch.tensor(-1.0).double(), stable, torch.tensor(1.0).double()])
    image = correlation_map(spec, grid)
    assert float(image[1]) == pytest.approx(float(stable), abs=1e-9)
    assert bool((image.diff() >= -1e-12).all())
    assert float(correlation_map(spec.replace("input.correlation", 1.0), grid)[2]) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (Spec(LSTM()), "several states"),
        (Spec(Peephole(), {"f": Gate(bias_var=1.0), "g": Gate(0, 1)}, biases="fixed"), "units keep their own biases"),
        (Spec(Vanilla(), {"h": Gate(0.5)}), "no fixed point with a variance over units"),
        (Spec(Vanilla("identity"), {"h": Gate(1.1, 1.0)}), "no fixed point with a variance over units"),
    ],
)
def test_the_map_is_refused_with_its_reason(spec: Spec, reason: str) -> None:
    with pytest.raises(TheoryMissing, match=reason):
        correlation_map(spec, torch.tensor([0.5]))


class Mean(Cell):
    """A user's cell with a mean of its own."""

    name = "mean"
    gates = {"n": Vanilla.gates["h"]}

    def update(self, s: Any, u: Any, x: Any) -> dict[str, Any]:
        return {"h": 0.5 * s.h + torch.sigmoid(u.n)}


def test_a_users_cell_has_a_map() -> None:
    spec = Spec(Mean(), {"n": Gate(1.0, 1.0)}, Input(1.0, 0.5))
    assert moment_dynamics(spec, 80).mean[-1] == pytest.approx(1.0, abs=1e-9)
    assert 0.5 < float(correlation_map(spec, torch.tensor([1.0]))) < 1


def test_each_spec_of_a_batch_has_its_own_correlation_beside_a_given_covariance() -> None:
    gates = {"h": Gate(weight_var=0.5, input_var=1.0)}
    both = Spec(Vanilla(), gates, Input(correlation=torch.tensor([1.0, 0.0], dtype=torch.float64)))
    white = torch.eye(4, dtype=torch.float64)
    together = moment_dynamics(both, 4, tied=True, input_covariance=white).correlation[:, -1]
    assert float(together[0]) == pytest.approx(1) and abs(float(together[1])) < 0.05
