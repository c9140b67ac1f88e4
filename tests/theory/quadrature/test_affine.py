"""The deterministic engine: the papers' figures, Lemma 1 and 3, batches, gradients, and networks of finite width."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import expit
from torch import Tensor

from checked import CHEN, CHO, PEEPHOLE, law, normal_mean
from isornn.cells import (
    Cell,
    ChoGRU,
    Gate,
    Input,
    Minimal,
    Peephole,
    Spec,
    Vanilla,
    cell_named,
)
from isornn.cells.bias_laws import BiasLaw
from isornn.cells.mgu import MGU
from isornn.cells.random_specs import random_spec
from isornn.cells.starts import preset
from isornn.simulation import simulate
from isornn.theory import Analysis, analyze, correlation_map
from isornn.theory.quadrature.affine import _normal_moment
from isornn.theory.quadrature.engine import QuadratureEngine

ALIKE = Spec(Peephole(), law(i=(1, 1, 0, 0), f=(1, 1, 0, 1), g=(1, 1, 0, 0)))


def moments(answer: Analysis) -> tuple[float | None, float | None, float | None]:
    return (
        answer.fixed_point.second_moment.number(),
        answer.jacobian.mean.number(),
        answer.jacobian.second_moment.number(),
    )


# -- figures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "second", "m1", "m2"),
    [(PEEPHOLE, 0.69356, 1.14694, 2.5998), (CHO, 0.0892, 0.680, 0.687)],
    ids=["peephole", "cho"],
)
def test_checked_rows(spec: Spec, second: float, m1: float, m2: float) -> None:
    answer = analyze(spec)
    assert answer.engine == "quadrature"
    assert moments(answer) == pytest.approx((second, m1, m2), rel=0.005)
    assert answer.jacobian.variance.number() == pytest.approx(m2 - m1**2, rel=0.01)


def test_peephole_networks_of_the_papers_notes() -> None:
    # formula fed with the units of one network of 1500: that network's Q is part of the difference
    other = Spec(Peephole(), law(i=(1, 1, 0, 0), f=(4, 4, 0, 0), g=(2, 0.5, 0, 0)))
    for spec, m1, m2 in ((ALIKE, 0.6738, 0.7299), (other, None, 1.0449)):
        _, first, second = moments(analyze(spec))
        assert m1 is None or first == pytest.approx(m1, rel=0.005)
        assert second == pytest.approx(m2, rel=0.01)


def test_chi_of_chos_gru_has_the_cross_term() -> None:
    # the printed A.3.1 gives 0.361153
    spec = Spec(ChoGRU(), law(z=(1, 1, 0, 0), r=(1, 1, 0, 0), n=(1, 1, 0, 0.8)), Input(1.0, 0.9))
    assert analyze(spec).chi.number() == pytest.approx(0.344942, abs=1e-6)


@pytest.mark.parametrize(("correlation", "scales"), [(0.0, (1.7, 7.9, 22.5)), (1.0, (2.5, 44.7, 37.4))])
def test_time_scales_of_padded_sequences(correlation: float, scales: tuple[float, ...]) -> None:
    bias = torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64)
    answer = analyze(ALIKE.replace("f.bias_mean", bias).replace("input.correlation", correlation))
    assert answer.xi.value.numpy() == pytest.approx(np.array(scales), abs=0.05)
    if correlation == 1:
        stable = answer.fixed_point.correlation.value
        assert stable[:2].tolist() == [1.0, 1.0]
        assert float(stable[2]) == pytest.approx(0.28, abs=0.005)
        assert float(answer.chi_1.value[2]) > 1 > float(answer.chi.value[2])


def test_the_papers_peephole_start_sees_75_steps() -> None:
    answer = analyze(preset("gilboa-peephole-critical"))
    assert answer.xi.number() == pytest.approx(74.5, abs=0.05)
    assert answer.jacobian.second_moment.number() == pytest.approx(0.9735, abs=5e-5)
    assert answer.jacobian.variance.number() < 1e-4


@pytest.mark.parametrize(
    ("spec", "second", "rate", "chi"),
    [(CHEN[0], 0.54162, 0.450546, 0.452875), (CHEN[1], 0.42050, 0.566458, 0.545071)],
    ids=["first", "second"],
)
def test_minimal_rnn_of_chen(spec: Spec, second: float, rate: float, chi: float) -> None:
    answer = analyze(spec.replace("input.correlation", 0.7))
    assert answer.fixed_point.second_moment.number() == pytest.approx(second, abs=1e-5)
    assert answer.chi.number() == pytest.approx(chi, abs=1e-6)
    engine = QuadratureEngine(spec)
    if spec is CHEN[0]:
        assert float(engine.settled.laws["u"].variance) == pytest.approx(4.24970, abs=1e-5)
    moved = engine.settled.second.detach().requires_grad_(True)
    state = type(engine.settled.state).of(torch.zeros_like(moved), moved)
    image = engine.theory.step(engine.theory.laws(state), state).second
    (slope,) = torch.autograd.grad(image.sum(), moved)
    assert float(slope) == pytest.approx(rate, abs=1e-6)
    # the mean decays like E f: sigma's mean at mean 0 is 1/2, slower than Q
    mean_gate = 0.5 if spec is CHEN[0] else float(engine.settled.laws["u"].expectation((_gate(engine),)))
    assert answer.xi_q.number() == pytest.approx(-1 / math.log(max(mean_gate, rate)), rel=1e-9)


def _gate(engine: QuadratureEngine) -> Any:
    (term,) = engine.theory.A.terms
    return term.factors["u"][0]


def test_fixed_points_of_chen_solve_their_equation() -> None:
    # F(Q) = E[(1-sigma)^2] / E[1 - sigma^2] - Q/R = 0 (eq. 26, with the mean restored), by adaptive quadrature
    generator = torch.Generator().manual_seed(4)
    w, v, b = (torch.rand(12, generator=generator, dtype=torch.float64) * top for top in (6.0, 3.0, 1.0))
    mean = torch.randn(12, generator=generator, dtype=torch.float64)
    variance = 0.5 + torch.rand(12, generator=generator, dtype=torch.float64)
    answer = analyze(Spec(Minimal(), {"u": Gate(w, v, bias_mean=mean, bias_var=b)}, Input(variance)), length=1)
    for j, q in enumerate(answer.fixed_point.second_moment.value.tolist()):
        std = math.sqrt(float(w[j]) * q + float(v[j] * variance[j] + b[j]))
        above = normal_mean(lambda u: expit(-u) ** 2, float(mean[j]), std)
        below = normal_mean(lambda u: 1 - expit(u) ** 2, float(mean[j]), std)
        assert abs(above / below - q / float(variance[j])) < 1e-10


def test_a_linear_network_has_the_closed_form() -> None:
    # h' = W h + U x: Q = input_var R / (1 - w), chi = m1 = w, m2 = 2 w^2, C = Sigma_z
    answer = analyze(Spec(Vanilla("identity"), {"h": Gate(0.6, 2.0)}, Input(0.5, 0.3)))
    assert moments(answer) == pytest.approx((2.5, 0.6, 0.72), rel=1e-12)
    assert answer.fixed_point.correlation.number() == pytest.approx(0.3, abs=1e-12)
    assert answer.profile.numpy() == pytest.approx(0.6 ** np.arange(101), rel=1e-10)
    assert answer.reach.number() == pytest.approx(-1 / math.log(0.6), rel=1e-12)


@pytest.mark.parametrize(("ensemble", "w2"), [("gaussian", 2.0), ("orthogonal", 1.0), (0.5, None)])
def test_single_matrices_of_other_ensembles(ensemble: Any, w2: float | None) -> None:
    answer = analyze(Spec(Vanilla("identity"), {"h": Gate(0.6, 1.0, ensemble=ensemble)}))
    if w2 is None:  # singular values uniform in [1/2, 3/2]
        second, fourth = ((1.5 ** (p + 1) - 0.5 ** (p + 1)) / (p + 1) for p in (2, 4))
        assert moments(answer)[1:] == pytest.approx((0.6 * second, 0.36 * fourth), rel=1e-12)
    else:
        assert moments(answer)[1:] == pytest.approx((0.6, 0.36 * w2), rel=1e-12)


# -- Lemma 1 and 3, isometry ------------------------------------------------------------------------------------------

QUADRATURE = [("vanilla", {"nonlinearity": n}) for n in ("tanh", "sigmoid")] + [
    (name, {"gate": gate})
    for name in ("minimal", "gru_cho", "peephole", "t_rnn", "t_lstm", "t_gru")
    for gate in ("sigmoid", "hard_sigmoid")
]


def steepened(spec: Spec, factor: float) -> Spec:
    """Weight variances of the factor's size, or input variances where a gate reads no state."""
    if factor == 1:
        return spec
    for gate, reads in spec.cell.gates.items():
        name = "weight_var" if reads.state else "input_var"
        spec = spec.replace(f"{gate}.{name}", factor * (1 + getattr(spec.gates[gate], name)))
    return spec


def slope_at_one(spec: Spec, steepest: float, root: bool) -> float:
    """M'(1) of the correlation map by differences and Richardson's extrapolation (Ridders: the entry that moved least).

    Kinks make M a series in sqrt(1 - C), smooth gates in 1 - C, each on the scale of 1 / (variance of the steepest).
    At the seventh level of roots what is left of 1 - C is rounding.
    """
    levels = 0.5 ** torch.arange(6 if root else 7, dtype=torch.float64)
    distance = (6e-2 / steepest) * levels**2 if root else (1e-1 / steepest) * levels
    image = correlation_map(spec, 1 - distance)
    table = (image[1:] - image[:-1]) / (distance[:-1] - distance[1:])
    best, change = table[-1], math.inf
    for order in range(1, len(table)):
        before, table = table, (2**order * table[1:] - table[:-1]) / (2**order - 1)
        moved = torch.maximum((table - before[1:]).abs(), (table - before[:-1]).abs())
        if float(moved.min()) < change:
            best, change = table[moved.argmin()], float(moved.min())
    return float(best)


@pytest.mark.parametrize("factor", [1.0, 2e4])
@pytest.mark.parametrize(
    ("name", "options"), QUADRATURE, ids=lambda x: x if isinstance(x, str) else next(iter(x.values()))
)
def test_lemma_1(name: str, options: dict[str, str], factor: float) -> None:
    # m1 = the slope of the correlation map at C = 1: quadrature of derivatives against differences of the map
    cell, generator = cell_named(name, options), torch.Generator().manual_seed(3)
    seen, hard = 0.0, options.get("gate") == "hard_sigmoid"
    for _ in range(1 if hard and factor > 1 else 2):
        spec = steepened(random_spec(cell, generator), factor).replace("input.correlation", 1.0)
        engine = QuadratureEngine(spec)
        answer = engine.analysis(1)
        assert answer.fixed_point.converged
        steepest = max(1.0, *(float(one.variance.max()) for one in engine.settled.laws.values()))
        seen = max(seen, steepest)
        m1 = answer.jacobian.mean.number()
        assert m1 is not None
        if name == "gru_cho":  # its n reads what r has steepened already
            steepest *= max(1.0, m1) ** 0.3
        assert slope_at_one(spec, steepest, hard) == pytest.approx(m1, abs=1e-6, rel=1e-6)
        assert answer.chi_1.number() == pytest.approx(m1, rel=1e-9)
    assert factor == 1 or seen > 5e3


@pytest.mark.parametrize("cell", [Peephole(), ChoGRU(), Minimal()], ids=lambda c: c.name)
def test_lemma_3_the_correlation_map_is_convex(cell: Cell) -> None:
    # proved for the peephole LSTM, claimed for the GRU
    generator, grid = torch.Generator().manual_seed(5), torch.linspace(0, 1, 26, dtype=torch.float64)
    for _ in range(8):
        spec = random_spec(cell, generator)
        if not analyze(spec, length=1).fixed_point.converged:
            continue
        image = correlation_map(spec, grid)
        assert image.diff().diff().min() >= -1e-8, spec
        crossings = (image - grid).sign().diff().ne(0).sum()
        assert crossings <= 2


def test_chi_is_the_slope_of_the_map_where_it_is_stable() -> None:
    for spec in (
        PEEPHOLE,
        CHO.replace("input.correlation", 0.4),
        CHO.replace("n.bias_mean", 0.7).replace("input.correlation", 0.2),
    ):
        answer = analyze(spec)
        stable = answer.fixed_point.correlation.number()
        assert stable is not None
        image = correlation_map(spec, torch.tensor([stable - 1e-4, stable, stable + 1e-4], dtype=torch.float64))
        assert float(image[1]) == pytest.approx(stable, abs=1e-10)
        assert float(image[2] - image[0]) / 2e-4 == pytest.approx(answer.chi.number(), abs=1e-6)


def test_isometry_is_approached_monotonically() -> None:
    bias = torch.arange(1.0, 9.0, dtype=torch.float64)
    answer = analyze(preset("gilboa-peephole-critical").replace("f.bias_mean", bias))
    for falling in (1 - answer.jacobian.mean.value, -answer.xi.value):
        assert bool((falling.diff() < 0).all())
    # the variance is what the weights leave: 2 E a^2 v + .. -> 2 weight_var_g E sigma(u_i)^2 as a -> 1
    assert bool((answer.jacobian.variance.value.diff() > 0).all())
    assert float(answer.jacobian.variance.value[-1]) == pytest.approx(2 * 1e-5 / 4, rel=1e-3)
    weight = torch.logspace(0, -6, 7, dtype=torch.float64)
    spec = Spec(Peephole(), {k: Gate(weight, 0.1) for k in "ig"} | {"f": Gate(weight, bias_mean=5.0)})
    answer = analyze(spec)
    assert bool((answer.jacobian.variance.value.diff() < 0).all())
    assert float(answer.jacobian.mean.value[-1]) == pytest.approx(expit(5.0) ** 2, abs=1e-5)


def test_chi_and_m1_are_1_together_only_where_c_is_1() -> None:
    # convexity: M'(1) = m1 = 1 makes C = 1 stable
    bias, weight = torch.linspace(-1, 6, 8).double()[:, None], torch.linspace(0.05, 4, 12).double()
    spec = Spec(Peephole(), {k: Gate(weight, 1.0) for k in "ig"} | {"f": Gate(weight, 1.0, bias_mean=bias)})
    answer = analyze(spec, length=1)
    apart = answer.fixed_point.correlation.value < 1 - 1e-6
    m1, chi = answer.jacobian.mean.value, answer.chi.value
    assert 5 < int(apart.sum()) < 91
    assert bool(torch.equal(apart, m1 > 1))
    assert bool((chi[apart] < 1).all())
    # where C* < 1 both leave 1, to either side, in proportion to 1 - C*
    assert bool(((m1 - chi)[apart] > 0.01 * (1 - answer.fixed_point.correlation.value[apart])).all())


# -- batches and gradients --------------------------------------------------------------------------------------------


def test_a_batch_gives_what_its_members_give() -> None:
    bias = torch.tensor([[-1.0], [1.0], [4.0]], dtype=torch.float64)
    weight = torch.tensor([0.0, 0.3, 3.0, 40.0], dtype=torch.float64)
    correlation = torch.tensor([1.0, 0.3, 1.0, -0.5], dtype=torch.float64)
    spec = CHO.replace("z.bias_mean", bias).replace("n.weight_var", weight).replace("input.correlation", correlation)
    answer = analyze(spec, length=7)
    assert answer.chi.value.shape == (3, 4)
    assert answer.profile.shape == (3, 4, 8)
    for j in range(3):
        for k in range(4):
            one = spec.replace("z.bias_mean", float(bias[j])).replace("n.weight_var", float(weight[k]))
            alone = analyze(one.replace("input.correlation", float(correlation[k])), length=7)
            for (name, whole), (_, single) in zip(answer.quantities(), alone.quantities(), strict=True):
                torch.testing.assert_close(whole.value[j, k], single.value, rtol=1e-8, atol=1e-10, msg=name)
            torch.testing.assert_close(answer.profile[j, k], alone.profile, rtol=1e-8, atol=1e-10)


OUTPUTS: dict[str, Callable[[Analysis], Tensor]] = {
    "Q": lambda a: a.fixed_point.second_moment.value,
    "chi": lambda a: a.chi.value,
    "xi": lambda a: a.xi.value,
    "chi_1": lambda a: a.chi_1.value,
    "m1": lambda a: a.jacobian.mean.value,
    "m2": lambda a: a.jacobian.second_moment.value,
}
DIFFERENTIATED = [
    (PEEPHOLE, "f.bias_mean", 2.0),
    (PEEPHOLE, "g.weight_var", 3.0),
    (PEEPHOLE, "f.bias_var", 0.1),
    (CHO, "r.weight_var", 2.0),
    (CHO, "n.bias_mean", 0.3),
    (CHO.replace("input.correlation", 0.6), "input.variance", 1.2),
    (CHO.replace("input.correlation", 0.6), "input.correlation", 0.6),
    (CHO, "n.weight_var", 0.0),
    (Spec(ChoGRU(gate="hard_sigmoid"), CHO.gates), "z.bias_mean", 1.0),
    (CHEN[0].replace("input.correlation", 0.4), "u.weight_var", 0.0),
    (Spec(Vanilla(), {"h": Gate(2.0, 0.5, bias_mean=0.3)}, Input(1.0, 0.9)), "h.weight_var", 2.0),
]


@pytest.mark.parametrize(("spec", "path", "at"), DIFFERENTIATED, ids=lambda x: x if isinstance(x, str) else "")
def test_gradients_are_those_of_finite_differences(spec: Spec, path: str, at: float) -> None:
    variable = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    answer = analyze(spec.replace(path, variable), length=1)
    step = 1e-4
    # at 0, the end of a variance's range, one-sided
    points = [at + k * step for k in ((0, 1, 2, 3, 4) if at == 0 else (-2, -1, 0, 1, 2))]
    weights = (-25 / 12, 4, -3, 4 / 3, -1 / 4) if at == 0 else (1 / 12, -2 / 3, 0, 2 / 3, -1 / 12)
    beside = analyze(spec.replace(path, torch.tensor(points, dtype=torch.float64)), length=1)
    for name, read in OUTPUTS.items():
        value = read(answer)
        slope = torch.autograd.grad(value, variable, retain_graph=True)[0] if value.requires_grad else torch.zeros(())
        expected = float((read(beside).detach() * torch.tensor(weights, dtype=torch.float64)).sum() / step)
        assert float(slope) == pytest.approx(expected, rel=1e-5, abs=1e-7), name


def test_gradients_reach_units_with_their_own_biases() -> None:
    spec = Spec(
        Peephole(), {"i": Gate(0.5, 1), "f": Gate(0.5, bias_mean=1, bias_var=1), "g": Gate(1.0, 1)}, biases="fixed"
    )
    variable = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    answer = analyze(spec.replace("f.bias_mean", variable), length=10)
    beside = analyze(spec.replace("f.bias_mean", torch.tensor([1 - 1e-4, 1 + 1e-4], dtype=torch.float64)), length=10)
    for read in (OUTPUTS["Q"], lambda a: a.reach.value, lambda a: a.profile[..., 10]):
        (slope,) = torch.autograd.grad(read(answer), variable, retain_graph=True)
        low, high = read(beside).detach().tolist()
        assert float(slope) == pytest.approx((high - low) / 2e-4, rel=1e-5)


# -- networks of finite width -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [PEEPHOLE, CHO], ids=["peephole", "cho"])
def test_networks_come_nearer_with_their_width(spec: Spec) -> None:
    # the spread of Q over networks falls like 1/sqrt(width), and its mean is the theory's; the full fit is a benchmark
    exact = analyze(spec, length=1).fixed_point.second_moment.number()
    assert exact is not None
    widths, spreads = (64, 128, 256), []
    for width in widths:
        generator = torch.Generator().manual_seed(width)
        found = simulate(spec, width=width, steps=12, networks=16, warmup=12, tangents=1, generator=generator)
        spreads.append((found.second_moment.stderr * math.sqrt(16)).mean().item())
        error = found.second_moment.stderr.mean().item()
        bias = found.second_moment.value.mean().item() - exact
        assert abs(bias) < 3 * error + 2 * exact / width
    slope = np.polyfit(np.log(widths), np.log(spreads), 1)[0]
    assert -0.75 < slope < -0.25


OPEN_TOGETHER = Gate(input_var=0.1, bias_law=BiasLaw("uniform_gate"))


@pytest.mark.parametrize(
    "spec",
    [
        Spec(ChoGRU(), {"r": OPEN_TOGETHER, "z": OPEN_TOGETHER, "n": Gate(4.0, 1.0)}, biases="fixed"),
        Spec(MGU(), {"f": Gate(input_var=9.0), "n": Gate(4.0, 1.0)}),
    ],
    ids=["one bias moves both gates", "one gate retains and is read"],
)
def test_what_a_unit_retains_and_what_is_read_of_it_may_go_together(spec: Spec) -> None:
    generator = torch.Generator().manual_seed(0)
    found = simulate(
        spec, width=500, steps=1, networks=12, warmup=12, tangents=1, singular_values=True, generator=generator
    ).spectrum
    assert found is not None
    by_network = found.singular_values.pow(4).mean(-1)
    m2, error = by_network.mean().item(), by_network.std().item() / math.sqrt(12)
    for engine in ("quadrature", "population"):
        answer = analyze(spec, engine=engine, length=1)
        assert answer.jacobian.second_moment.number() == pytest.approx(m2, abs=3 * error)
    assert error < 0.03 * m2


@pytest.mark.parametrize("power", range(9))
def test_moments_of_a_normal_variable(power):
    variance = torch.tensor(1.7, dtype=torch.float64)
    exact, _ = quad(lambda x: x**power * math.exp(-(x**2) / 3.4) / math.sqrt(2 * math.pi * 1.7), -30, 30)
    assert float(_normal_moment(power, variance)) == pytest.approx(exact, rel=1e-7, abs=1e-9)


class Blended(Cell):
    """One matrix reads the state where a gate is open, and 1 where it is closed."""

    name = "blended"
    gates = {"r": Vanilla.gates["h"], "n": Vanilla.gates["h"]}

    def read(self, gate: str, s: Any, u: Any) -> Any:
        if gate != "n":
            return s.h
        open_share = torch.sigmoid(u.r)
        return open_share * s.h + (1 - open_share)

    def update(self, s: Any, u: Any, x: Any) -> dict[str, Any]:
        return {"h": 0.5 * s.h + 0.5 * torch.relu(u.n)}


def test_reads_that_rest_on_the_mean_are_sampled() -> None:
    answer = analyze(Spec(Blended(), law(r=(1, 0.5, 0, 0), n=(0.5, 0.5, 0, 0.3))), length=2)
    draw = torch.Generator().manual_seed(0)
    h = torch.zeros(400_000, dtype=torch.float64)
    for _ in range(40):
        r = torch.sigmoid((h.square().mean() + 0.5).sqrt() * torch.randn(h.shape, generator=draw, dtype=h.dtype))
        width = (0.5 * (r * h + 1 - r).square().mean() + 0.5).sqrt()
        h = 0.5 * h + 0.5 * torch.relu(0.3 + width * torch.randn(h.shape, generator=draw, dtype=h.dtype))
    assert answer.engine == "population"
    assert answer.fixed_point.mean.number() == pytest.approx(float(h.mean()), rel=0.005)
    assert answer.fixed_point.second_moment.number() == pytest.approx(float(h.square().mean()), rel=0.005)
