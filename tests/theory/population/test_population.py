"""The population engine against checked networks, closed forms, an independent network, and its own promises."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from checked import CHO, MGU, PEEPHOLE, law
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
from isornn.cells.ind_rnn import IndRNN
from isornn.theory import analyze
from isornn.theory.population.engine import Effort, Stable
from isornn.theory.population.jacobian import StateStructure
from isornn.theory.reasons import TheoryMissing
from populations import FORGETS, close, population

LSTM_MILD = Spec(LSTM(), law(i=(1, 0.5, 0, 0), f=(1, 0.5, 0, 1), g=(1, 0.5, 0, 0), o=(1, 0.5, 0, 0)))
LSTM_STRONG = Spec(LSTM(), law(i=(2, 1, 0, 0.5), f=(4, 0.5, 0.1, 2), g=(3, 0.5, 0, 0), o=(2, 0.5, 0, 0.5)))
LSTM_TORCH = Spec(LSTM(), {name: Gate(1 / 3, 49 / 384, bias_var=2 / 384) for name in "ifgo"})


@pytest.mark.parametrize(
    ("spec", "second_moment", "chi"),
    [(LSTM_MILD, 0.0353, 0.5630), (LSTM_STRONG, 0.1130, 0.8831), (LSTM_TORCH, None, 0.2755)],
    ids=["mild", "strong", "torch"],
)
def test_lstm_rows(spec: Spec, second_moment: float | None, chi: float) -> None:
    found = population(spec).stable()
    assert found.stationary.converged
    if second_moment is not None:
        moments = found.stationary.moments
        assert close(moments.second_moment, moments.stderr["second_moment"], second_moment, 0.005)
    assert found.stationary.moments.correlation == 1
    scale = -1 / found.response.chi.log()
    assert float(scale) == pytest.approx(-1 / np.log(chi), rel=0.015)
    assert found.response.stderr["log_chi"] / found.response.chi.log().abs() < 0.006
    assert close(found.response.reach, found.response.stderr["reach"], float(scale), 0.01)


def test_peephole_has_a_stable_correlation_below_one() -> None:
    found = population(PEEPHOLE, units=128).stable()
    moments = found.stationary.moments
    assert close(moments.second_moment, moments.stderr["second_moment"], 0.69356, 0.0)
    assert close(found.identical_response.chi, found.identical_response.stderr["chi"], 1.14694, 0.0)
    assert 0.3 < moments.correlation < 0.45
    assert found.response.chi < 1


def test_one_of_two_copies_is_a_population_of_its_own() -> None:
    """Where inputs differ chi_1 is taken from copies that were started apart, each by itself."""
    spec = Spec(LSTM(), LSTM_STRONG.gates, Input(1.0, 0.5))
    found = population(spec).stable(effort=Effort(settle_tolerance=0.02, response_tolerance=0.05))
    other = population(spec, seed=1)
    alone = other.settle("identical", tolerance=0.02)
    expected = other.respond(alone, tolerance=0.05)
    assert found.stationary.moments.correlation < 0.9 and found.identical.moments.correlation == 1
    for value, wanted, name in (
        (found.identical_response, expected, "chi"),
        (found.identical.moments, alone.moments, "second_moment"),
    ):
        gap = getattr(value, name) - getattr(wanted, name)
        assert abs(gap) < 4 * torch.hypot(value.stderr[name], wanted.stderr[name])


@pytest.mark.parametrize(
    ("spec", "first", "second"), [(PEEPHOLE, 1.14694, 2.5998), (CHO, 0.680, 0.687)], ids=["peephole", "cho"]
)
def test_jacobian_moments(spec: Spec, first: float, second: float) -> None:
    units = population(spec)
    found = units.jacobian(units.settle("identical"))
    assert close(found.first, found.stderr["first"], first, 0.001)
    assert close(found.second, found.stderr["second"], second, 0.002)
    assert torch.allclose(found.variance, found.second - found.first.square())


def test_a_single_state_has_chi_1_equal_to_the_mean_squared_singular_value() -> None:
    units = population(CHO)
    settled = units.settle("identical")
    response, jacobian = units.respond(settled), units.jacobian(settled)
    assert (response.chi - jacobian.first).abs() < 4 * (response.stderr["chi"] + jacobian.stderr["first"])


def test_a_gate_named_like_a_state_is_not_taken_for_it() -> None:
    # Vanilla's pre-activation and state are both called h: nothing is carried over, m1 = chi_1 = w E tanh'^2.
    units = population(Spec(Vanilla(), {"h": Gate(0.8, 1.0)}))
    settled = units.settle("identical")
    response, jacobian = units.respond(settled), units.jacobian(settled)
    assert float(jacobian.first) == pytest.approx(float(response.chi), rel=1e-3)
    assert float(response.profile[1]) == pytest.approx(float(response.chi), rel=1e-3)


def test_weak_weights_and_a_noisy_forget_gate_do_not_collapse() -> None:
    spec = Spec(LSTM(), law(i=(0.01, 0, 0, 0), f=(0.01, 4, 0, 2), g=(0.01, 0.5, 0, 0), o=(0.01, 0, 0, 0)))
    units = population(spec)
    response = units.respond(units.settle("identical"), length=120)
    assert response.chi > 0.6625 - 3 * response.stderr["chi"]
    assert float(response.chi) == pytest.approx(0.6625, rel=0.005)
    assert response.effective_share > 0.05


def test_a_typed_cell_keeps_the_second_moment_of_its_gate() -> None:
    spec = Spec(TRNN(), {"f": Gate(input_var=4, bias_mean=2), "z": Gate(input_var=1)})
    found = population(spec).stable()
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    gate = 1 / (1 + np.exp(-2 - 2 * nodes))
    expected = float((weights * gate**2).sum() / weights.sum())
    assert close(found.response.chi, found.response.stderr["chi"], expected, 0.0)
    assert float(found.response.reach) == pytest.approx(-1 / np.log(expected), rel=0.02)


def test_a_finite_network_of_its_own_code_agrees() -> None:
    rng, width, sums = np.random.default_rng(0), 1000, []
    h, c = np.zeros(width), np.zeros(width)
    dh, dc, growth = np.zeros(width), rng.standard_normal(width), []
    bias = np.array([0.0, 1.0, 0.0, 0.0])[:, None]
    for step in range(60):
        weights = rng.standard_normal((4, width, width)) / np.sqrt(width)
        u = weights @ h + np.sqrt(0.5) * rng.standard_normal((4, width)) + bias
        du = weights @ dh
        (i, f, o), g = 1 / (1 + np.exp(-u[[0, 1, 3]])), np.tanh(u[2])
        dc = f * dc + f * (1 - f) * du[1] * c + i * (1 - i) * du[0] * g + i * (1 - g**2) * du[2]
        c = f * c + i * g
        dh = o * (1 - o) * du[3] * np.tanh(c) + o * (1 - np.tanh(c) ** 2) * dc
        h = o * np.tanh(c)
        growth.append(float(dh @ dh))
        if step >= 10:
            sums.append(float((h**2).mean()))
    found = population(LSTM_MILD).stable()
    assert float(found.stationary.moments.second_moment) == pytest.approx(float(np.mean(sums)), rel=0.03)
    rate = (growth[-1] / growth[10]) ** (1 / (len(growth) - 11))
    assert float(found.response.chi) == pytest.approx(rate, rel=0.02)


def test_trajectory_follows_the_input_correlation() -> None:
    correlations = torch.tensor([1.0] * 10 + [0.0] * 10)
    units = population(LSTM_STRONG)
    found = units.trajectory(20, input_correlation=correlations)
    assert found.second_moment.shape == (21,)
    assert not found.correlation_defined[0]
    assert found.correlation[10] == pytest.approx(1.0, abs=1e-9)
    assert found.correlation[20] < 0.5
    apart = units.trajectory(3, input_correlation=0.0, initial={"h": 1.0, "c": 1.0})
    assert float(apart.second_moment[0]) == pytest.approx(1.0, abs=0.05)
    with pytest.raises(ValueError, match="input_correlation"):
        units.trajectory(2, input_correlation=1.5)


def test_the_first_analysis_of_a_process_imports_nothing_that_takes_a_second() -> None:
    """torch.autograd imports sympy to check gradients that it is given for outputs; 1 of a single number needs none."""
    program = (
        "import sys; from isornn.cells import GRU, ChoGRU, Gate, Spec; from isornn.theory import analyze\n"
        "for cell in GRU(), ChoGRU(): analyze(Spec(cell, {gate: Gate(0.5, 0.5) for gate in 'rz'}), length=10)\n"
        "sys.exit(bool({'sympy', 'numba', 'torch._dynamo'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_equal_seeds_give_equal_results() -> None:
    first, second, third = (population(LSTM_MILD, seed).stable() for seed in (1, 1, 2))
    assert torch.equal(first.response.profile, second.response.profile)
    assert torch.equal(first.stationary.moments.second_moment, second.stationary.moments.second_moment)
    assert not torch.equal(first.stationary.moments.second_moment, third.stationary.moments.second_moment)


def test_standard_errors_cover_the_spread_between_seeds() -> None:
    found = [population(CHO, seed, units=128, replicates=16).stable() for seed in range(9)]
    for values, errors in (
        ([f.stationary.moments.second_moment for f in found], [f.stationary.moments.stderr for f in found]),
        ([f.response.chi for f in found], [f.response.stderr for f in found]),
    ):
        name = "second_moment" if "second_moment" in errors[0] else "chi"
        spread = torch.stack(values).std()
        typical = torch.stack([error[name] for error in errors]).square().mean().sqrt()
        assert 0.4 < spread / typical < 2.0


def test_a_batch_gives_what_its_members_give() -> None:
    forget = torch.tensor([[0.0, 2.0], [1.0, 3.0]])
    spec = LSTM_MILD.replace("f.bias_mean", forget).replace("input.correlation", torch.tensor([1.0, 0.5]))
    found = population(spec, units=128).stable()
    assert found.response.chi.shape == (2, 2)
    assert found.response.profile.shape[:2] == (2, 2)
    one = population(LSTM_MILD.replace("f.bias_mean", 3.0).replace("input.correlation", 0.5), seed=5).stable()
    gap = (found.response.chi[1, 1] - one.response.chi).abs()
    assert gap < 4 * (found.response.stderr["chi"][1, 1] ** 2 + one.response.stderr["chi"] ** 2).sqrt()
    assert (found.stationary.moments.correlation[:, 0] == 1).all()
    assert (found.stationary.moments.correlation[:, 1] < 0.9).all()


def numbers(found: Stable) -> Mapping[str, torch.Tensor]:
    records: list[Any] = [found.stationary.moments, found.response, found.identical_response]
    fields = {f"{type(r).__name__}.{k}": v for r in records for k, v in vars(r).items() if isinstance(v, torch.Tensor)}
    return fields | {f"stderr.{k}": v for r in records for k, v in r.stderr.items()}


@pytest.mark.parametrize(
    "spec",
    [
        Spec(LSTM()),
        Spec(Vanilla(), {"h": Gate(0.5)}),
        Spec(Vanilla(), {"h": Gate(1e4, 1.0)}),
        Spec(Vanilla("identity"), {"h": Gate(0.5, 1e12)}, Input(1e12, 0.5)),
        Spec(LSTM(), {name: Gate(1.0, 1.0) for name in "ifgo"}, Input(0.0)),
        Spec(LSTM(), {"i": Gate(1, 1), "f": Gate(bias_mean=-50), "g": Gate(1, 1), "o": Gate(1)}),
        Spec(Minimal(), {"u": Gate(1, 1)}, Input(1.0, -1.0)),
        Spec(GRU(), {"r": Gate(1e12), "z": Gate(1e12, bias_mean=-1e12), "nx": Gate(0, 1e12), "nh": Gate(1e12)}),
    ],
    ids=["nothing", "dying", "steep", "huge", "no input", "saturated", "mirrored input", "extremes"],
)
def test_degenerate_points_give_finite_numbers(spec: Spec) -> None:
    found = population(spec, units=64, replicates=8).stable()
    assert found.stationary.converged
    for name, value in numbers(found).items():
        assert not value.isnan().any(), name
        assert name.endswith("reach") or value.isfinite().all(), name


def test_growth_like_the_logarithm_of_time_is_not_said_to_have_settled() -> None:
    """A unit with recurrent weight w has E[h^2] of order 1 / (1 - w), and w is uniform up to 1."""

    def to(high: float) -> Spec:
        return Spec(IndRNN(0.0, high), {"z": Gate(input_var=1.0)})

    assert [bool(analyze(spec).fixed_point.converged) for spec in (to(0.9), to(1.0))] == [True, False]


@pytest.mark.parametrize(
    "spec",
    [
        Spec(Vanilla("relu"), {"h": Gate(4.0, 1.0)}),
        Spec(Vanilla("identity"), {"h": Gate(1.0, 1.0)}),
        Spec(Peephole(), {"i": Gate(1, 1), "f": Gate(bias_mean=50), "g": Gate(1, 1)}),
        Spec(GRU(), {"z": Gate(1, 1, bias_mean=60), "nx": Gate(0, 1)}),
    ],
    ids=["relu", "random walk", "no forgetting", "frozen"],
)
def test_growth_without_bound_is_an_answer(spec: Spec) -> None:
    found = population(spec, units=64, replicates=8).stable()
    assert not found.stationary.converged
    assert found.stationary.residual.isfinite()
    assert found.stationary.steps <= 600
    assert found.response.profile.isfinite().all()


@pytest.mark.parametrize("bias_var", [0.0, 1.0])
@pytest.mark.parametrize("forget", [2.0, 7.0])
def test_small_inputs_have_their_correlation(bias_var: float, forget: float) -> None:
    gates = {"i": Gate(bias_var=bias_var), "f": Gate(bias_mean=forget), "g": Gate(input_var=1)}
    found = analyze(Spec(LSTM(), gates, Input(1e-4, 0.5), biases="fixed" if bias_var else "redrawn"), length=2)
    # c is linear in them, and h in c
    assert found.fixed_point.correlation.number() == pytest.approx(0.5, abs=2e-3)


def test_a_small_input_that_is_read_pointwise_has_its_correlation() -> None:
    spec = Spec(Minimal(), {"u": Gate(weight_var=0.5, bias_mean=5)}, Input(1e-8, 0.25))
    found = analyze(spec, engine="population", length=2)
    assert found.fixed_point.correlation.number() == pytest.approx(0.25, abs=1e-3)


def test_correlation_is_undefined_without_variance_over_units() -> None:
    spec = Spec(Peephole(), {"i": Gate(1e-5), "f": Gate(1e-5, bias_mean=5), "g": Gate(bias_mean=1)})
    settled = population(spec).settle("apart")
    assert settled.moments.correlation.isfinite()
    deterministic = population(Spec(Vanilla(), {"h": Gate(bias_mean=1)})).settle("apart")
    assert not deterministic.moments.correlation_defined


def test_state_samples_are_those_of_the_units() -> None:
    units = population(Spec(Peephole(), FORGETS, biases="fixed"))
    settled = units.settle("identical", tolerance=0.05)
    samples = units.state_samples(settled, "c")
    assert samples.shape == (32 * 256,)
    assert float(samples.square().mean()) == pytest.approx(float(settled.moments.second_moment), rel=0.15)


@dataclass(frozen=True)
class Leaky(Cell):
    """A user's own cell: h = a h + (1-a) tanh(u)."""

    name = "leaky"
    gates = {"n": Reads()}
    leak: float = 0.9

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": self.leak * s.h + (1 - self.leak) * torch.tanh(u.n)}


def test_a_cell_of_ones_own() -> None:
    # h' = a h + (1-a) n with n independent of h: Q = (1-a)^2 E n^2 / (1 - a^2), chi = a^2 + (1-a)^2 w E tanh'^2.
    found = population(Spec(Leaky(), {"n": Gate(2.0, 1.0)})).stable()
    q = float(found.stationary.moments.second_moment)
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    tanh = np.tanh(np.sqrt(2 * q + 1) * nodes)
    mean = weights / weights.sum()
    assert q == pytest.approx(0.01 * float(mean @ tanh**2) / 0.19, rel=0.01)
    assert float(found.response.chi) == pytest.approx(0.81 + 0.02 * float(mean @ (1 - tanh**2) ** 2), rel=0.002)


def test_jacobian_moments_are_refused_with_the_reason() -> None:
    @dataclass(frozen=True)
    class AllGated(MGU):
        name = "all_gated"

        def read(self, gate: str, s: Values, u: Values) -> Any:
            return 0.5 * s.h if gate == "f" else super().read(gate, s, u)

    units = population(Spec(AllGated(), {"f": Gate(1, 1), "n": Gate(1, 1)}))
    settled = units.settle("identical")
    assert settled.converged
    with pytest.raises(TheoryMissing, match="allow one gated read, found f, n"):
        units.jacobian(settled)


def test_chrono_biases_mirror_each_other_and_spread_time_scales() -> None:
    gates = {
        "i": Gate(1e-5, bias_law=BiasLaw("chrono", 1.0, 199.0, -1)),
        "f": Gate(1e-5, bias_law=BiasLaw("chrono", 1.0, 199.0)),
        "g": Gate(1e-5, 1.0),
        "o": Gate(1.0),
    }
    units = population(Spec(LSTM(), gates, biases="fixed"))
    settled = units.settle("identical", tolerance=0.02)
    assert torch.allclose(settled.units.offsets["i"], -settled.units.offsets["f"])
    response = units.respond(settled)
    # P_t is the mean over r ~ U(1, 199) of (r / (1 + r))^(2 t), the output's slope being nearly constant.
    r = np.linspace(1, 199, 2001)
    decay = np.array([np.mean((r / (1 + r)) ** (2 * t)) for t in range(1, 80)])
    assert float(response.reach) == pytest.approx(float(np.argmax(decay < decay[0] / np.e)), rel=0.08)


@dataclass(frozen=True)
class Guarded(LSTM):
    """An LSTM that looks at its values, which no trace can follow."""

    name = "guarded"

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        if bool((u.f != u.f).any()):
            raise ArithmeticError("NaN")
        return super().update(s, u, x)


def test_an_update_that_cannot_be_traced_is_followed_all_the_same() -> None:
    guarded = StateStructure.of(Guarded())
    assert (guarded.persistent, guarded.self_coupled) == (("c",), ("c",))
    assert (guarded.slow, guarded.retention_gates) == ((), ("i", "f", "g", "o"))
    found, expected = (
        population(Spec(cell, LSTM_MILD.gates), units=64, replicates=16).stable() for cell in (Guarded(), LSTM())
    )
    for name in ("chi", "reach"):
        value, error = getattr(expected.response, name), expected.response.stderr[name]
        assert close(getattr(found.response, name), found.response.stderr[name] + error, float(value))
    assert found.stationary.converged


def test_a_read_that_cannot_be_traced_is_a_gated_one() -> None:
    @dataclass(frozen=True)
    class Guarded(MGU):
        name = "guarded"

        def read(self, gate: str, s: Values, u: Values) -> Any:
            return super().read(gate, s, u) if bool((s.h == s.h).all()) else s.h

    found, expected = (
        population(Spec(cell, {"f": Gate(1, 1), "n": Gate(1, 1)}), units=64, replicates=16)
        for cell in (Guarded(), MGU())
    )
    assert (found.laws.gated, expected.laws.gated) == (["f", "n"], ["n"])
    chi, other = found.stable().response, expected.stable().response
    assert close(chi.chi, chi.stderr["chi"] + other.stderr["chi"], float(other.chi))
    with pytest.raises(TheoryMissing, match="need a cell that can be traced"):
        found.jacobian(found.settle("identical"))


@pytest.mark.parametrize(
    ("update", "structure"),
    [
        (
            lambda s, u: {"h": torch.tanh(s.c) * torch.sigmoid(u.f), "c": torch.tanh(u.n)},
            StateStructure(("c",), (), slow=("c",), joint=(), retention_gates=()),
        ),
        (
            lambda s, u: {"h": torch.sigmoid(u.f + u.n) * s.h + s.c, "c": 0.5 * s.c + u.n},
            StateStructure(("h", "c"), ("h", "c"), slow=(), joint=("h", "c"), retention_gates=("f", "n")),
        ),
        (
            lambda s, u: {"h": torch.tanh(u.f + s.h) + 0 * s.c, "c": s.h * u.n},
            StateStructure(("h",), ("h",), slow=(), joint=(), retention_gates=("f",)),
        ),
    ],
)
def test_how_an_update_depends_on_its_states(update: Any, structure: StateStructure) -> None:
    @dataclass(frozen=True)
    class Two(Cell):
        name = "two"
        states = ("h", "c")
        gates = {"f": Reads(), "n": Reads()}

        def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
            return update(s, u)

    assert StateStructure.of(Two()) == structure
