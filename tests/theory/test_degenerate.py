"""Points at which a careless formula divides by zero: every cell answers, with numbers or with reasons."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from checked import law
from isornn.cells import (
    CELLS,
    SCRN,
    TMR,
    Cell,
    ChoGRU,
    Gate,
    Input,
    Minimal,
    Peephole,
    Reads,
    Spec,
    Values,
    Vanilla,
)
from isornn.cells.bias_laws import WITH_ENDS, BiasLaw
from isornn.cells.ind_rnn import IndRNN
from isornn.cells.min_rnn import MinGRU
from isornn.cells.roles import roles_of
from isornn.cells.sru import SRU
from isornn.cells.starts import preset
from isornn.theory import TheoryMissing, analyze, stationary_samples
from isornn.theory.population.engine import Population
from isornn.theory.reasons import (
    FROZEN,
    FROZEN_UNITS,
    IDENTITY,
    KEEPS_ANY,
    KEEPS_START,
    MARGINAL,
    NO_SPREAD,
    NOT_CONVERGED,
    UNENDING,
)

NAMES = pytest.mark.parametrize("name", CELLS)


def ordinary(cell: Cell, **changes: Any) -> Spec:
    """weight_var .5, input_var .5 wherever they are read, with changes to every gate."""
    gates = {}
    for name, reads in cell.gates.items():
        usual = Gate(0.5 * reads.state, 0.5 * reads.input, 0.5 * reads.previous_input)
        read = {"weight_var": reads.state, "input_var": reads.input, "previous_input_var": reads.previous_input}
        gates[name] = replace(usual, **{k: v * read.get(k, True) for k, v in changes.items()})
    return Spec(cell, gates)


def answered(spec: Spec) -> dict[str, Any]:
    """The record as JSON; nothing in it is NaN or infinite, and whatever is null has its reason."""
    record = analyze(spec, length=20).to_json()
    text = json.dumps(record, allow_nan=False)
    assert json.loads(text) == record
    for field in ("chi", "xi", "chi_1", "reach"):
        assert (record[field] is None) == (field in record["undefined"]), field
        assert record[field] is None or record[field] >= 0
    for field in ("mean", "second_moment"):
        assert (record["fixed_point"][field] is None) == (f"fixed_point.{field}" in record["undefined"]), field
    assert all(isinstance(reason, str) and reason for reason in record["undefined"].values())
    return record


@NAMES
def test_no_weights(name: str) -> None:
    record = answered(ordinary(CELLS[name](), weight_var=0.0))
    assert record["fixed_point"]["converged"]
    assert record["chi"] == pytest.approx(record["chi_1"], abs=1e-12) or record["stderr"]["chi"] > 0
    if name == "vanilla":  # nothing is carried
        assert record["chi"] == 0
        assert record["xi"] == 0
        assert record["reach"] == 0


@NAMES
def test_no_input(name: str) -> None:
    for spec in (replace(ordinary(CELLS[name]()), input=Input(0.0)), ordinary(CELLS[name](), input_var=0.0)):
        record = answered(spec)
        assert record["fixed_point"]["converged"]
        assert record["fixed_point"]["second_moment"] == pytest.approx(0, abs=1e-9) or name in (
            "minimal",
            "t_lstm",
            "t_gru",
        )


@NAMES
def test_all_units_alike(name: str) -> None:
    # constant biases, no input, no weights: Q = mu^2 and C = 0/0
    spec = replace(ordinary(CELLS[name](), weight_var=0.0, bias_mean=1.0), input=Input(0.0))
    record = answered(spec)
    if name == "minimal":  # it reads its input pointwise: nothing comes in
        assert record["fixed_point"]["second_moment"] == pytest.approx(0, abs=1e-12)
        return
    assert record["fixed_point"]["second_moment"] == pytest.approx(record["fixed_point"]["mean"] ** 2, rel=1e-6)
    assert record["fixed_point"]["second_moment"] > 0.01
    assert record["fixed_point"]["correlation"] is None
    assert record["undefined"]["correlation"] == NO_SPREAD


@NAMES
@pytest.mark.parametrize("correlation", [-1.0, 1.0])
def test_extreme_input_correlations(name: str, correlation: float) -> None:
    record = answered(replace(ordinary(CELLS[name]()), input=Input(1.0, correlation)))
    assert record["fixed_point"]["converged"]
    stable = record["fixed_point"]["correlation"]
    assert -1 <= stable <= 1
    if correlation == 1:
        assert stable == pytest.approx(1, abs=1e-9)
        assert record["chi"] == pytest.approx(record["chi_1"], rel=1e-9)
    else:
        assert stable < 0.999


@NAMES
@pytest.mark.parametrize("bias", [-50.0, 50.0])
def test_saturated_gates(name: str, bias: float) -> None:
    record = answered(ordinary(CELLS[name](), bias_mean=bias))
    if roles_of(CELLS[name]()).remember is not None and bias < 0:
        assert record["fixed_point"]["converged"]
        assert record["chi"] == pytest.approx(0, abs=0.05)
    if roles_of(CELLS[name]()).remember is not None and bias > 0:
        # without weights a gate at 1 - 2e-22 forgets nothing: the state is frozen, or it grows
        record = answered(ordinary(CELLS[name](), bias_mean=bias, weight_var=0.0))
        assert record["xi"] is None
        assert not record["fixed_point"]["converged"]


def test_a_frozen_state_says_so() -> None:
    record = answered(ordinary(Minimal(), bias_mean=50.0))
    assert FROZEN in record["undefined"].values()
    for field in ("chi", "xi", "chi_1", "reach", "jacobian"):
        assert record[field] is None, field


SAMPLED = ("lstm", "gru")  # steep recurrent gates part their copies, which takes half a minute of sampling


@NAMES
def test_the_steepest_gates(name: str) -> None:
    changes = {"input_var": 1e4} if name in SAMPLED else {"weight_var": 1e4, "input_var": 1e4}
    record = answered(ordinary(CELLS[name](), **changes))
    assert record["fixed_point"]["converged"]
    assert record["fixed_point"]["second_moment"] > 0


@NAMES
def test_extremes_of_what_specs_allow(name: str) -> None:
    extremes = [{"input_var": 1e12}, {"bias_var": 1e12}, {"bias_mean": -1e12}]
    for changes in extremes if name in SAMPLED else [*extremes, {"weight_var": 1e12}]:
        answered(ordinary(CELLS[name](), **changes))
    if name not in SAMPLED:
        answered(replace(ordinary(CELLS[name]()), input=Input(1e12, 0.3)))


def test_vanilla_without_bias_falls_silent_below_1() -> None:
    # h = tanh(W h): weight_var < 1 leaves nothing, chi = weight_var
    record = answered(Spec(Vanilla(), {"h": Gate(0.6)}))
    assert record["fixed_point"]["second_moment"] == 0
    assert record["fixed_point"]["correlation"] is None
    assert record["chi"] == pytest.approx(0.6, rel=1e-9)
    assert record["jacobian"]["mean"] == pytest.approx(0.6, rel=1e-9)
    assert record["jacobian"]["second_moment"] == pytest.approx(2 * 0.36, rel=1e-9)


@pytest.mark.parametrize("weight", [1.01, 1.5, 4.0, 100.0])
def test_vanilla_without_bias_speaks_above_1(weight: float) -> None:
    # the stable fixed point is the positive one: Q = E tanh(sqrt(w Q) z)^2
    record = answered(Spec(Vanilla(), {"h": Gate(weight)}))
    q = record["fixed_point"]["second_moment"]
    z = torch.linspace(-9, 9, 20001, dtype=torch.float64)
    density = torch.exp(-(z**2) / 2)
    image = float((torch.tanh(math.sqrt(weight * q) * z) ** 2 * density).sum() / density.sum())
    assert q > 0.4 * (weight - 1) / weight**2
    assert image == pytest.approx(q, rel=1e-6)
    # identical copies part (chaos), copies apart become independent
    assert record["chi_1"] > 1
    assert record["fixed_point"]["correlation"] == pytest.approx(0, abs=1e-9)
    # at C = 0 chi = w (E tanh')^2 < 1
    slope = float(((1 - torch.tanh(math.sqrt(weight * q) * z) ** 2) * density).sum() / density.sum())
    assert record["chi"] == pytest.approx(weight * slope**2, rel=1e-6)


def test_exactly_critical_is_unending() -> None:
    record = answered(Spec(Vanilla("identity"), {"h": Gate(1.0)}))
    assert record["xi"] is None
    assert record["reach"] is None


@pytest.mark.parametrize(
    "spec",
    [
        Spec(Vanilla("identity"), {"h": Gate(1.1, 1.0)}),
        Spec(Vanilla("relu"), {"h": Gate(4.0, 1.0)}),
        Spec(Peephole(), {"i": Gate(bias_mean=2), "f": Gate(bias_mean=50), "g": Gate(bias_mean=2)}),
        Spec(Peephole(gate="hard_sigmoid"), {"i": Gate(0, 1), "f": Gate(bias_mean=3), "g": Gate(0, 1)}),
    ],
    ids=["identity", "relu", "bias 50", "hard"],
)
def test_growth_has_no_numbers(spec: Spec) -> None:
    record = answered(spec)
    assert record["fixed_point"]["converged"] is False
    for field in ("mean", "second_moment", "correlation"):
        assert record["fixed_point"][field] is None
    for field in ("chi", "xi", "chi_1", "reach", "jacobian", "xi_q"):
        assert record[field] is None, field
    assert set(record["undefined"].values()) <= {NOT_CONVERGED, FROZEN}


@dataclass(frozen=True)
class Homogeneous(Cell):
    """``h = phi(u)``, phi linear on both sides of 0, and its half that retains a part of h."""

    name = "homogeneous"
    gates = {"h": Reads(input=False)}

    below: float = 0.0
    retained: float = 0.0

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": self.retained * s.h + torch.nn.functional.leaky_relu(u.h, self.below)}

    @property
    def marginal(self) -> float:
        """The weight_var with which E[h^2] stays what it is; beside a retained part only if E[phi] = 0."""
        return 2 * (1 - self.retained**2) / (1 + self.below**2)


@pytest.mark.parametrize(
    ("cell", "weight"),
    [(Vanilla("relu"), 2.0), (Vanilla("identity"), 1.0)]
    + [(cell, cell.marginal) for cell in (Homogeneous(0.3), Homogeneous(-0.5), Homogeneous(1.0, 0.6))],
    ids=["relu", "identity", "leaky", "bent", "leaky integrator"],
)
def test_a_line_of_fixed_points_is_marginal(cell: Cell, weight: float) -> None:
    """Networks keep E[h^2]: no value of it is an answer, and the rate is 1, whatever the input that nothing reads."""
    specs = [Spec(cell, {"h": Gate(weight)}, Input(1.0, correlation)) for correlation in (1.0, 0.999, 0.5, 0.0)]
    first, *others = [answered(spec) for spec in specs]
    assert first["fixed_point"]["converged"]
    assert first["undefined"]["fixed_point.mean"] == first["undefined"]["fixed_point.second_moment"] == KEEPS_ANY
    linear = cell == Vanilla("identity") or getattr(cell, "below", 0.0) == 1.0
    assert first["undefined"].get("correlation") == (KEEPS_ANY if linear else None)
    assert first["fixed_point"]["correlation"] == (None if linear else 1.0)
    assert first["chi"] == pytest.approx(1.0, abs=1e-11) == first["chi_1"]
    assert first["undefined"]["xi"] == first["undefined"]["xi_q"] == MARGINAL
    assert first["undefined"]["reach"] == UNENDING
    for other in others:
        assert {**other, "spec": None} == {**first, "spec": None}
    for below in (0.9, 0.99, 1 - 1e-7):
        near = answered(Spec(cell, {"h": Gate(below * weight)}))
        assert near["fixed_point"]["second_moment"] == 0.0
        assert near["chi"] < 1
        assert near["undefined"].keys() == {"correlation"}


def test_an_isolated_marginal_point_is_unending() -> None:
    """tanh with weight_var 1 falls silent, slower than any exponential."""
    record = answered(Spec(Vanilla(), {"h": Gate(1.0)}))
    assert record["fixed_point"]["second_moment"] == 0.0
    assert record["undefined"]["xi"] == record["undefined"]["xi_q"] == MARGINAL


def test_a_line_that_ends_is_a_line() -> None:
    """A hard tanh keeps small states to rounding, and no large ones."""

    class HardTanh(Cell):
        name = "hard_tanh"
        gates = {"h": Reads(input=False)}

        def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
            return {"h": torch.nn.functional.hardtanh(u.h)}

    record = answered(Spec(HardTanh(), {"h": Gate(1.0)}))
    assert record["undefined"]["fixed_point.second_moment"] == KEEPS_ANY
    assert record["undefined"]["xi"] == MARGINAL


@dataclass(frozen=True)
class Latch(Cell):
    """Two stable states, between which noise moves units."""

    name = "latch"
    gates = {"n": Reads(state=False)}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.tanh(2 * s.h + u.n)}


@dataclass(frozen=True)
class Carried(Cell):
    """``h = factor h + added u``."""

    name = "carried"
    gates = {"n": Reads(state=False)}

    factor: float = 1.0
    added: float = 0.0

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": self.factor * s.h + self.added * u.n}


def latched(noise: float, size: float, shared: bool, steps: int = 400) -> tuple[float, float]:
    """E[h^2] and C of 20,000 units with half their inputs' variance in common, from states of this size."""
    generator = torch.Generator().manual_seed(0)
    h = size * torch.randn(2, 20_000, generator=generator, dtype=torch.float64)
    if shared:
        h = h[:1].repeat(2, 1)
    for _ in range(steps):
        own = torch.randn(3, 20_000, generator=generator, dtype=torch.float64)
        h = torch.tanh(2 * h + (noise / 2) ** 0.5 * (own[:2] + own[2]))
    return float(h.square().mean()), float(torch.corrcoef(h)[0, 1])


def test_units_with_several_stable_states_have_no_moments_of_their_own() -> None:
    (_, apart), (_, together) = latched(0.02, 0.5, False), latched(0.02, 0.5, True)
    assert together - apart > 0.5  # of networks, which keep what they start with
    of_units = Spec(Latch(), {"n": Gate(0, 0.01, bias_var=0.04)}, Input(1.0, 0.5), "fixed")
    for spec in (*(Spec(Latch(), {"n": Gate(0, v)}, Input(1.0, 0.5)) for v in (0.0, 0.02)), of_units):
        record = answered(spec)
        assert record["undefined"]["fixed_point.second_moment"] == record["undefined"]["chi"] == KEEPS_START
        assert not record["fixed_point"]["converged"]


def test_slow_units_drawn_for_their_rare_biases_do_not_keep_their_start() -> None:
    """Units of an SRU come to one E[h^2] within some 100 steps, from 0 and from their own size alike."""
    laws = law(f=(0, 1, 0.69, 1), r=(0, 1, 0.49, 0.4), z=(0, 2, 0.98, 0.1), p=(0, 1, 0.49, 0))
    spec = Spec(SRU(), laws, Input(0.8), "fixed")
    count, generator = 40_000, torch.Generator().manual_seed(0)

    def normals(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    own = {name: gate.bias_mean + gate.bias_var**0.5 * normals(count) for name, gate in laws.items()}
    v_f, v_r = 1.5**0.5 * (2 * torch.rand(2, count, generator=generator, dtype=torch.float64) - 1)
    c = torch.stack((torch.zeros(count, dtype=torch.float64), 1.2 * normals(count)))
    for _ in range(200):
        u = {name: own[name] + (0.8 * gate.input_var) ** 0.5 * normals(count) for name, gate in laws.items()}
        f = torch.sigmoid(u["f"] + v_f * c)
        r = torch.sigmoid(u["r"] + v_r * c)
        c = f * c + (1 - f) * u["z"]
        h = r * c + (1 - r) * u["p"]
    q, from_its_size = h.square().mean(1).tolist()
    assert q == pytest.approx(from_its_size, rel=0.003)
    generator = torch.Generator().manual_seed(0)
    found = Population(spec, generator=generator, units=1024, replicates=32).settle("identical")
    assert bool(found.converged)
    assert float(found.moments.second_moment) == pytest.approx(q, rel=0.03)


def test_units_that_noise_moves_between_their_stable_states_have_moments() -> None:
    (q, apart), (q_too, together) = latched(0.8, 0.5, False), latched(0.8, 2.0, True)
    assert apart == pytest.approx(together, abs=0.03)
    assert q == pytest.approx(q_too, abs=0.01)
    found = analyze(Spec(Latch(), {"n": Gate(input_var=0.8)}, Input(1.0, 0.5)), length=20).fixed_point
    assert found.second_moment.number() == pytest.approx((q + q_too) / 2, abs=0.005)
    assert found.correlation.number() == pytest.approx((apart + together) / 2, abs=0.025)


@pytest.mark.parametrize("cell", [TMR(), IndRNN(low=1.0, high=1.0)], ids=["t_mr", "ind_rnn"])
def test_a_rectifier_that_carries_its_state_keeps_any(cell: Cell) -> None:
    """h = relu(h): from states N(0, v) E[h^2] is v / 2 for good."""
    spec = Spec(cell, {}, biases="fixed")
    assert answered(spec)["undefined"]["fixed_point.second_moment"] == KEEPS_START
    with pytest.raises(TheoryMissing, match=re.escape(KEEPS_START)):
        stationary_samples(spec)


def test_a_state_that_is_only_carried_keeps_any_and_one_that_is_added_to_grows() -> None:
    gates = {"n": Gate(input_var=1.0)}
    for cell in (Carried(), Carried(-1.0), SCRN(alpha=1.0)):
        spec = Spec(cell, {"z": gates["n"]} if isinstance(cell, SCRN) else gates)
        record = answered(spec)
        assert set(record["undefined"].values()) <= {KEEPS_ANY}, record["undefined"]
        assert "fixed_point.second_moment" in record["undefined"]
    for cell in (Carried(1.0, 1.0), Carried(-1.0, 1.0)):
        assert answered(Spec(cell, gates))["undefined"]["fixed_point.second_moment"] == NOT_CONVERGED


@pytest.mark.parametrize("name", ["minimal", "lstm"])
def test_an_input_correlation_that_nothing_reads_changes_nothing(name: str) -> None:
    for spec in (ordinary(CELLS[name](), input_var=0.0), replace(ordinary(CELLS[name]()), input=Input(0.0))):
        if spec.cell.input_enters_pointwise and float(torch.as_tensor(spec.input.variance)):
            continue
        one, other = (answered(spec.replace("input.correlation", value)) for value in (1.0, 0.3))
        assert {**one, "spec": None} == {**other, "spec": None}


def test_chi_above_1_makes_the_time_scale_infinite() -> None:
    # a stable correlation needs chi <= 1, so only an unstable C = 1 shows it: chi_1
    answer = analyze(Spec(Peephole(), {"i": Gate(1, 1), "f": Gate(1, 1, bias_mean=5), "g": Gate(1, 1)}))
    assert answer.chi_1.number() > 1
    assert answer.xi.number() > 0
    # and a state that nothing forgets: xi infinite with its reason, never negative
    for record in (
        answered(Spec(Vanilla("identity"), {"h": Gate(1.0)})),
        answered(Spec(Vanilla("identity"), {"h": Gate(1.3)})),
    ):
        assert record["xi"] is None
        assert record["undefined"]["xi"] in (UNENDING, MARGINAL, NOT_CONVERGED)


def test_a_batch_with_one_bad_member_keeps_the_others() -> None:
    weight = torch.tensor([0.5, 1.1, 0.9], dtype=torch.float64)
    answer = analyze(Spec(Vanilla("identity"), {"h": Gate(weight, 1.0)}))
    assert answer.fixed_point.converged.tolist() == [True, False, True]
    assert answer.fixed_point.second_moment.value[[0, 2]].tolist() == pytest.approx([2.0, 10.0], rel=1e-9)
    assert answer.chi.value[[0, 2]].tolist() == pytest.approx([0.5, 0.9], rel=1e-9)
    assert bool(answer.chi.value[1].isnan())
    assert answer.chi.defined.tolist() == [True, False, True]


def test_identity_matrices_are_refused_with_the_reason() -> None:
    record = answered(Spec(Vanilla(), {"h": Gate(1.0, 1.0, ensemble="identity")}))
    assert record["undefined"]["chi"] == IDENTITY


def test_the_papers_start_without_input() -> None:
    record = answered(preset("gilboa-peephole-critical"))
    assert record["fixed_point"]["second_moment"] == 0
    assert record["undefined"]["correlation"] == NO_SPREAD
    assert record["xi"] == pytest.approx(74.47, abs=0.01)


@pytest.mark.parametrize("changes", [{"weight_var": 0.0}, {"bias_mean": -50.0}, {"bias_mean": 50.0}], ids=str)
@pytest.mark.parametrize("cell", [Minimal(), ChoGRU(), Peephole()], ids=lambda c: c.name)
def test_degenerate_points_with_biases_drawn_once(cell: Cell, changes: dict[str, float]) -> None:
    spec = ordinary(cell, **changes).replace(f"{roles_of(cell).remember}.bias_var", 0.3)
    answered(replace(spec, biases="fixed"))


def test_steep_gates_and_many_random_biases() -> None:
    spec = replace(ordinary(Peephole(), weight_var=1e4), biases="fixed")
    spec = spec.replace("f.bias_var", 4.0).replace("g.bias_var", 4.0).replace("i.bias_var", 4.0)
    record = answered(spec)
    assert record["fixed_point"]["converged"]
    assert record["stderr"]["fixed_point.second_moment"] > 0


def test_time_scales_of_any_size_have_answers() -> None:
    """Odds of a retaining gate from 1e-300 to 1e300: half of the units keep all that they have."""
    for kind in WITH_ENDS:
        for ends in ((1e-300, 1e300), (1e-320, 1.0), (1e300, 1e300)):
            quantile = BiasLaw(kind, *ends).quantile(torch.tensor([0.0, 0.25, 1.0], dtype=torch.float64))
            assert quantile.isfinite().all(), kind
    assert quantile.isfinite().all()
    wide = BiasLaw("log_timescale", 1e-300, 1e300)
    assert float(wide.quantile(torch.tensor(0.75, dtype=torch.float64))) == pytest.approx(150 * math.log(10))
    record = answered(Spec(Minimal(), {"u": Gate(bias_law=wide)}, biases="fixed"))
    assert record["undefined"]["fixed_point.mean"] == FROZEN_UNITS


@pytest.mark.parametrize("bias", [-12.0, -16.0, -18.0])
def test_a_width_that_is_rounding_of_a_nearly_closed_gate_gives_no_correlation(bias: float) -> None:
    gates = {"z": Gate(input_var=1.0, bias_mean=bias, bias_var=0.1), "n": Gate(input_var=1.0, bias_mean=bias)}
    found = analyze(Spec(MinGRU(), gates, Input(1.0, 0.5)), length=2).fixed_point.correlation
    if bias == -12.0:  # z is small, so log-normal: the noise is E[z_a z_b] E[n_a n_b] / 2 E[z]
        assert found.number() == pytest.approx(0.5 * math.exp(0.6 - 1.1), rel=0.01)
    else:
        assert found.reason() == NO_SPREAD
