"""The spectrum's density against closed forms, the moments of `analyze`, and simulated networks."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
import torch

from checked import CHO, PEEPHOLE, law, squared_singular_values
from isornn.cells import (
    LSTM,
    TLSTM,
    TRNN,
    Cell,
    ChoGRU,
    Gate,
    Input,
    ParameterLaw,
    Peephole,
    Reads,
    Spec,
    SpecError,
    Values,
    Vanilla,
    cell_named,
)
from isornn.cells.linear import LRU
from isornn.nn.random_network import RandomNetwork
from isornn.simulation import simulate
from isornn.theory import TheoryMissing, analyze
from isornn.theory.spectra import SpectralDensity, spectrum
from isornn.theory.spectra.blocks import REPLICATES, UNITS, Source, Step, chained, row_energy, sampled_path, thinned
from isornn.theory.spectra.dyson import Dyson, NotSolved, Solution
from isornn.theory.spectra.laws import PiecewiseLaw, integrals
from isornn.theory.spectra.products import _of_margin, product_law, unit_law
from isornn.theory.spectra.scan import _continued, _subset, moments, refined, upper_edge

SPECS = {
    "gru_cho": CHO,
    "lstm": Spec(LSTM(), law(i=(1, 0.5, 0, 0), f=(1, 0.5, 0, 1), g=(1, 0.5, 0, 0), o=(1, 0.5, 0, 0))),
    # near isometry: all singular values within some thousandths of each other
    "isometric": Spec(Peephole(), law(i=(1e-5, 1, 0, 0), f=(1e-5, 0, 0, 5), g=(1e-5, 1, 0, 0), o=(1e-5, 0, 0, 0))),
}
WIDTH = 400
SHARP = ("gru_cho",)


@pytest.fixture(scope="module")
def found() -> dict[str, SpectralDensity]:
    return {name: spectrum(spec) for name, spec in SPECS.items()}


@pytest.mark.parametrize("name", SPECS)
def test_moments_are_those_of_analyze(name: str, found: dict[str, SpectralDensity]) -> None:
    moments, density = analyze(SPECS[name]).jacobian, found[name]
    second = density.variance + density.mean**2
    # units are reweighted, and what integrating over a grid leaves is undone and stands in the residual
    assert density.mean == pytest.approx(moments.mean.number(), rel=1e-3)
    assert second == pytest.approx(moments.second_moment.number(), rel=1e-3)
    assert density.variance == pytest.approx(moments.variance.number(), rel=1e-2)
    assert density.residual < 3e-3


@dataclass(frozen=True)
class Leaking(Cell):
    """``h' = (1 - rate) h + rate tanh(u_n)`` with a rate for each unit."""

    name = "leaking"
    gates = {"n": Reads()}
    parameters = {"rate": ParameterLaw(lambda v: 0.2 + 0.6 * v, variate="rate")}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": (1 - u.rate) * s.h + u.rate * torch.tanh(u.n)}


@pytest.mark.parametrize("name", SPECS)
def test_distribution_is_that_of_networks(name: str, found: dict[str, SpectralDensity]) -> None:
    # Eigenvalues are rigid: what is left is the network's own Q and units, of order 1/sqrt(N) = .05 for one network
    values = squared_singular_values(SPECS[name], WIDTH, warmup=30)
    ranks = (torch.arange(len(values)) + 0.5) / len(values)
    distance = float((found[name].distribution(values) - ranks).abs().max())
    assert distance < 1 / math.sqrt(WIDTH)


@pytest.mark.parametrize("name", SPECS)
def test_only_bounded_rows_have_an_upper_edge(name: str, found: dict[str, SpectralDensity]) -> None:
    low, high = found[name].edges
    assert low == 0.0
    assert (high is not None) == (name in SHARP)


def test_a_gated_read_by_weak_weights_does_not_cancel() -> None:
    """Cho's GRU with all squared singular values within some 1e-5 of each other, from afar and from as near as that."""
    spec = Spec(ChoGRU(), law(r=(1e-5, 1, 0, 0), z=(1e-5, 0, 0, 5), n=(1e-5, 1, 0, 0)))
    dyson = Dyson(chained(thinned(sampled_path(spec, 1, torch.Generator().manual_seed(0)))))
    mean = analyze(spec).jacobian.mean.number()
    afar = torch.tensor([0.1, 0.5, 4.0], dtype=torch.complex128) * (0.54 + 0.84j)
    found = dyson.solved(afar, dyson.guess(afar))
    torch.testing.assert_close(found.m, 1 / (mean - afar), rtol=1e-7, atol=0)

    x = mean + torch.tensor([-1e-5, 0.0, 1e-5], dtype=torch.float64)
    unknowns = dyson.guess(x + 1j)
    for angle in (1 / 4**k for k in range(9)):
        found = dyson.solved(torch.polar(x, torch.full_like(x, angle)), unknowns)
        unknowns = found.unknowns
    run = simulate(
        spec,
        width=WIDTH,
        steps=1,
        warmup=500,
        networks=1,
        tangents=1,
        singular_values=True,
        generator=torch.Generator().manual_seed(1),
    )
    assert run.spectrum is not None
    values = run.spectrum.singular_values.flatten().square().to(torch.complex128)
    torch.testing.assert_close(found.m, (1 / (values - found.z[:, None])).mean(-1), rtol=0.05, atol=0)


# -- closed forms -----------------------------------------------------------------------------------------------------


def test_a_single_gaussian_matrix_has_the_law_of_marchenko_and_pastur() -> None:
    answer = spectrum(Spec(Vanilla("identity"), {"h": Gate(weight_var=0.5, input_var=1.0)}))
    x = torch.tensor([0.01, 0.3, 1.0, 1.7], dtype=torch.float64)
    angle = (x / 2).sqrt().asin()
    exact = 2 / math.pi * (angle + angle.sin() * angle.cos())  # quarter circle law of s = 2 sqrt(.5) sin(angle)
    torch.testing.assert_close(answer.distribution(x), exact, atol=2e-3, rtol=0)
    assert answer.edges[1] == pytest.approx(2.0, rel=2e-3)
    assert answer.atoms == ()


def test_relu_leaves_half_of_a_singular_value_in_two_at_zero() -> None:
    answer = spectrum(Spec(Vanilla("relu"), {"h": Gate(weight_var=1.2, input_var=0.1)}))
    (atom,) = answer.atoms
    assert atom.place == 0.0 and atom.mass == pytest.approx(0.5, abs=1e-3)
    # what is left is a 1:2 rectangle: Marchenko-Pastur of ratio 1/2
    assert answer.edges[1] == pytest.approx(1.2 * (1 + math.sqrt(0.5)) ** 2, rel=2e-3)


@pytest.mark.parametrize(("nonlinearity", "weight_var"), [("tanh", 1.0), ("relu", 1.99)])
def test_a_state_that_fades_slowly_has_the_spectrum_of_slopes_at_zero(nonlinearity: str, weight_var: float) -> None:
    silent = Spec(Vanilla(nonlinearity), {"h": Gate(weight_var)}, Input(variance=0.0))
    assert bool(analyze(silent).fixed_point.converged)
    generator = torch.Generator().manual_seed(0)
    (step,) = sampled_path(silent, 1, generator)
    slopes = step.source_terms[Source(0)][0, 0] / weight_var
    # J = D W: of tanh D = 1 at 0, of ReLU half of the slopes are 1
    first, second = (weight_var * slopes.mean(), weight_var**2 * (slopes.square().mean() + slopes.mean() ** 2))
    matrix = math.sqrt(weight_var / WIDTH) * torch.randn(WIDTH, WIDTH, dtype=torch.float64, generator=generator)
    if nonlinearity == "relu":
        matrix[::2] = 0.0
    squares = torch.linalg.svdvals(matrix).square()
    assert float(first) == pytest.approx(float(squares.mean()), rel=0.02)
    assert float(second) == pytest.approx(float(squares.square().mean()), rel=0.04)


def test_typed_cells_have_the_exact_law_of_their_gate() -> None:
    gate = Gate(input_var=2.0, bias_mean=1.0, bias_var=0.3)
    answer = spectrum(Spec(TRNN(), {"f": gate, "z": Gate(input_var=1.0)}))
    place = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    exact = torch.special.ndtr((torch.logit(place.sqrt()) - 1.0) / math.sqrt(2.3))
    torch.testing.assert_close(answer.distribution(place), exact, atol=5e-4, rtol=0)  # half of one of 1200 intervals
    assert float(answer.distribution(0.5)) == float(answer.distribution(place)[1])
    assert answer.residual < 1e-3 and answer.stderr == {"mean": 0.0, "variance": 0.0}


def test_hard_gates_have_atoms() -> None:
    answer = spectrum(Spec(TLSTM("hard_sigmoid"), {"f": Gate(input_var=4.0, bias_mean=1.0), "z": Gate(input_var=1.0)}))
    shut, open_ = (float(torch.special.ndtr(torch.tensor(z, dtype=torch.float64))) for z in (-3.5 / 2, -1.5 / 2))
    assert [atom.place for atom in answer.atoms] == [0.0, 1.0]
    assert [atom.mass for atom in answer.atoms] == pytest.approx([shut, open_], abs=1e-6)


def test_a_constant_gate_is_one_atom() -> None:
    answer = spectrum(Spec(TRNN(), {"f": Gate(), "z": Gate(input_var=1.0)}))
    assert [(atom.place, atom.mass) for atom in answer.atoms] == [(0.25, 1.0)]
    assert answer.edges == (None, None) and len(answer.x) == 0
    assert answer.quantile(0.5) == 0.25


def test_an_orthogonal_matrix_leaves_the_law_of_the_slope() -> None:
    spec = Spec(Vanilla(), {"h": Gate(weight_var=1.2, input_var=0.1, ensemble="orthogonal")})
    answer, moments = spectrum(spec), analyze(spec).jacobian
    assert answer.mean == pytest.approx(moments.mean.number(), rel=1e-3)
    assert answer.variance == pytest.approx(moments.variance.number(), rel=1e-3)
    assert answer.edges[1] == pytest.approx(1.2, rel=1e-3)


@pytest.mark.parametrize("slope", [-1.0, 0.25, 0.999, 1.0])
def test_a_leaky_relu_of_an_orthogonal_matrix_has_two_atoms(slope: float) -> None:
    spec = Spec(Vanilla("leaky_relu", slope=slope), {"h": Gate(0.8, 0.3, bias_mean=0.2, ensemble="orthogonal")})
    found = spectrum(spec)
    below = float(torch.special.ndtr(torch.tensor(-0.2 / (0.8 * _second_moment(slope) + 0.3) ** 0.5)))
    atoms = {0.8 * slope**2: below, 0.8: 1 - below} if abs(slope) < 1 else {0.8: 1.0}
    assert found.edges == (None, None) and found.residual < 1e-9
    assert [atom.place for atom in found.atoms] == pytest.approx([*atoms])
    assert [atom.mass for atom in found.atoms] == pytest.approx([*atoms.values()], abs=1e-6)


def _second_moment(slope: float) -> float:
    """E[h^2] of that network, by iterating a sum over a fine grid."""
    z = torch.linspace(-9, 9, 20001, dtype=torch.float64)
    weights = (-z.square() / 2).exp()
    second = 1.0
    for _ in range(200):
        u = 0.2 + (0.8 * second + 0.3) ** 0.5 * z
        second = float((weights * torch.where(u > 0, u, slope * u).square()).sum() / weights.sum())
    return second


@pytest.mark.parametrize("slope", [0.5, 0.9])
def test_a_leaky_relu_with_a_margin_has_the_edges_of_networks(slope: float) -> None:
    margin, weight_var, width = 0.3, 0.8, 500
    spec = Spec(Vanilla("leaky_relu", slope=slope), {"h": Gate(weight_var, 0.3, ensemble=margin)})
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(width, width, generator=generator).double())[0] for _ in range(2))
    singular = 1 - margin + 2 * margin * torch.rand(width, generator=generator, dtype=torch.float64)
    matrix = (weight_var / (1 + margin**2 / 3)) ** 0.5 * left @ torch.diag(singular) @ right
    sloped = torch.where(torch.rand(width, 1, generator=generator) < 0.5, 1.0, slope)  # bias 0: half are below 0
    values = torch.linalg.svdvals(sloped * matrix).square()
    assert spectrum(spec).edges == pytest.approx((float(values.min()), float(values.max())), rel=0.05)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("nonlinearity", ["identity", "modrelu"])
def test_products_of_orthogonal_matrices_have_one_atom(nonlinearity: Any, steps: int) -> None:
    found = spectrum(Spec(Vanilla(nonlinearity), {"h": Gate(0.8, 0.3, ensemble="orthogonal")}), steps=steps)
    (atom,) = found.atoms
    assert (atom.place, atom.mass) == pytest.approx((0.8**steps, 1.0))
    assert found.edges == (None, None) and abs(found.variance) < 1e-12 and found.residual < 1e-12


def test_an_lstm_without_recurrent_weights_has_the_law_of_its_units() -> None:
    answer = spectrum(Spec(LSTM(), law(i=(0, 1, 0, 0), f=(0, 1, 0, 1), g=(0, 1, 0, 0), o=(0, 1, 0, 0))))
    # J = [[0, o (1 - tanh(c)^2) f], [0, f]] in each unit: one value is 0, the other f^2 (1 + (o (1 - tanh(c)^2))^2)
    normal = torch.randn(5, 100_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    c = torch.zeros(100_000, dtype=torch.float64)
    for step in range(60):
        i, f, g, o, _ = normal[:, torch.randperm(100_000, generator=torch.Generator().manual_seed(step))]
        f = (f + 1).sigmoid()
        c = f * c + i.sigmoid() * g.tanh()
    exact = f.square() * (1 + (o.sigmoid() * (1 - c.tanh().square())).square())
    (atom,) = answer.atoms
    assert atom.place == 0.0 and atom.mass == pytest.approx(0.5)
    share = answer.distribution(exact.sort()[0])
    ranks = 0.5 + 0.5 * (torch.arange(len(exact)) + 0.5) / len(exact)
    assert float((share - ranks).abs().max()) < 0.5 * 1.9 / math.sqrt(len(exact)) + 1e-3  # Kolmogorov's at 1e-3


# -- products over several steps --------------------------------------------------------------------------------------


def test_products_of_gaussian_matrices_have_the_moments_of_fuss_and_catalan() -> None:
    answer = spectrum(Spec(Vanilla("identity"), {"h": Gate(weight_var=0.9, input_var=1.0)}), steps=2)
    scale = 0.9**2
    third = float(torch.trapezoid(answer.x**4 * answer.density, answer.x.log()))
    assert answer.mean == pytest.approx(scale, rel=1e-3)
    assert answer.variance == pytest.approx(2 * scale**2, rel=2e-3)
    assert third == pytest.approx(12 * scale**3, rel=5e-3)  # binomial(9, 3) / 7
    assert answer.edges[0] == 0.0 and answer.edges[1] == pytest.approx(3**3 / 2**2 * scale, rel=2e-3)


def test_products_are_those_of_networks() -> None:
    # what one unit carries at two steps is correlated through its state
    answer, values = spectrum(PEEPHOLE, steps=2), two_step_values(PEEPHOLE, 400)
    ranks = (torch.arange(len(values)) + 0.5) / len(values)
    assert float((answer.distribution(values) - ranks).abs().max()) < 1 / math.sqrt(400)


@pytest.mark.parametrize("name", ["lstm", "gru_cho"])
def test_the_equation_of_a_product_has_the_moments_of_networks(name: str) -> None:
    path = thinned(sampled_path(SPECS[name], 2, torch.Generator().manual_seed(0)))
    blocks = chained(path)
    first, second = moments(blocks, upper_edge(blocks, 0.05))
    # by Cauchy's formula, and by following covariances forward through both steps
    assert first == pytest.approx(float(row_energy(path) @ path[0].weight) / path[0].states, rel=1e-5)
    values = torch.stack([two_step_values(SPECS[name], 200, seed) for seed in range(6)])
    for power, exact in ((1, first), (2, second)):
        sample = values.pow(power).mean(-1)
        # a network's own units are few: m2 is above that of infinite width by some 1/N
        assert float(sample.mean()) == pytest.approx(exact, rel=0.03, abs=4 * float(sample.std()) / math.sqrt(6))


def two_step_values(spec: Spec, width: int, seed: int = 2) -> torch.Tensor:
    """Squared singular values of J_2 J_1 of one untied network, rising."""
    generator = torch.Generator().manual_seed(seed)
    states = tuple(torch.zeros(width, dtype=torch.float64) for _ in spec.cell.states)
    product = torch.eye(width * len(states), dtype=torch.float64)
    for t in range(32):
        x = torch.randn(2, width, dtype=torch.float64, generator=generator)
        advance = RandomNetwork.drawn(spec, width, width, generator).advance(*x)
        if t >= 30:
            product = jacobian(advance, states) @ product
        states = advance(*states)
    return torch.linalg.svdvals(product).square().flip(0)


def jacobian(advance: Callable[..., tuple[torch.Tensor, ...]], states: tuple[torch.Tensor, ...]) -> torch.Tensor:
    width = len(states[0])
    return torch.func.jacfwd(lambda s: torch.cat(advance(*s.split(width))))(torch.cat(states))


def test_typed_cells_multiply_independent_gates() -> None:
    gate = Gate(input_var=4.0, bias_mean=1.0)
    spec = Spec(TLSTM("hard_sigmoid"), {"f": gate, "z": Gate(input_var=1.0)})
    one, answer = spectrum(spec), spectrum(spec, steps=3)
    assert abs(answer.mean - one.mean**3) < 4 * answer.stderr["mean"]
    shut, open_ = (atom.mass for atom in one.atoms)
    zero, whole = answer.atoms
    assert zero.place == 0.0 and zero.mass == pytest.approx(1 - (1 - shut) ** 3, abs=3e-3)
    assert whole.place == 1.0 and whole.mass == pytest.approx(open_**3, abs=3e-3)


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (Spec(Vanilla(), {"h": Gate(weight_var=torch.tensor([1.0, 2.0]))}), "batch"),
        (Spec(Vanilla(), {"h": Gate(weight_var=1.0, input_var=0.1, ensemble="identity")}), "identity"),
        (Spec(Vanilla("oplu"), {"h": Gate(1.0, 1.0)}), "units together"),
        (Spec(Vanilla("identity"), {"h": Gate(2.0, 1.0)}), "no fixed point"),
    ],
)
def test_what_has_no_theory_is_refused_with_the_reason(spec: Spec, why: str) -> None:
    with pytest.raises(TheoryMissing, match=why):
        spectrum(spec)


@pytest.mark.parametrize("steps", [0, 17, 1.5])
def test_steps_are_few_and_whole(steps: int) -> None:
    with pytest.raises(SpecError, match="steps: .* from 1 to 16"):
        spectrum(PEEPHOLE, steps=steps)


def test_units_with_parameters_of_their_own_have_the_spectrum_of_networks() -> None:
    spec = Spec(Leaking(), law(n=(0.5, 0.5, 0, 0)))
    density = spectrum(spec)
    values = squared_singular_values(spec, WIDTH, warmup=30)
    ranks = (torch.arange(len(values)) + 0.5) / len(values)
    assert float((density.distribution(values) - ranks).abs().max()) < 1 / math.sqrt(WIDTH)


@pytest.mark.parametrize("margin", [0.05, 0.5, 1.0])
def test_a_margin_by_itself_has_the_moments_of_a_uniform_law(margin: float) -> None:
    fourth = ((1 + margin) ** 5 - (1 - margin) ** 5) / (10 * margin)
    mass, mean, second = integrals(*_of_margin(margin, 2.0))
    assert mass == pytest.approx(1, rel=2e-3)
    assert mean == pytest.approx(2, rel=2e-3)
    assert second == pytest.approx(4 * fourth / (1 + margin**2 / 3) ** 2, rel=2e-3)


@pytest.mark.parametrize("margin", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("width", [1e-3, 0.5])
def test_a_free_product_begins_and_ends_where_its_density_does(margin: float, width: float) -> None:
    """Nothing lies beyond the products of the factors' ends, and density rises at once from where the support ends."""
    factor = PiecewiseLaw(torch.tensor([1 - width, 1 + width]).double(), torch.tensor([0.0, 1.0]).double(), ())
    x, density, _ = product_law(factor, margin)
    ends = [(1 - margin) ** 2 / (1 + margin**2 / 3), (1 + margin) ** 2 / (1 + margin**2 / 3)]
    assert ends[0] * (1 - width) <= float(x[0]) and float(x[-1]) <= ends[1] * (1 + width)
    if width < 1e-2:
        assert [float(x[0]), float(x[-1])] == pytest.approx(ends, rel=1.1 * width)
    # a square root of the distance from an end, .26 times, or a jump
    near, further = (np.interp([(1 + d) * float(x[0]), (1 - d) * float(x[-1])], x, density) for d in (0.002, 0.03))
    assert (near > 0.05 * further).all()


@pytest.mark.parametrize("margin", [0.05, 0.9])
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.2, 1.8)])
def test_a_free_product_has_the_moments_that_follow_from_its_factors(margin: float, low: float, high: float) -> None:
    # phi(a b a b) = phi(a^2) phi(b)^2 + phi(a)^2 phi(b^2) - phi(a)^2 phi(b)^2 for free a and b
    uniform = PiecewiseLaw(torch.tensor([low, high]).double(), torch.tensor([0.0, 1.0]).double(), ())
    one, two = (low + high) / 2, (low**2 + low * high + high**2) / 3
    of_margin = ((1 + margin) ** 5 - (1 - margin) ** 5) / (10 * margin) / (1 + margin**2 / 3) ** 2
    mass, mean, second = integrals(*product_law(uniform, margin))
    assert mass == pytest.approx(1, rel=2e-3)
    assert mean == pytest.approx(one, rel=1e-3)
    assert second == pytest.approx(two + one**2 * (of_margin - 1), rel=1e-3)


def test_where_points_are_put_does_not_depend_on_the_unit_of_density() -> None:
    x = torch.logspace(-3, 1, 60, dtype=torch.float64)
    xrho = (-(x.log() + 1).square()).exp()
    torch.testing.assert_close(refined(x, 1000 * xrho, 100), refined(x, xrho, 100))


def test_a_ray_that_is_solved_nowhere_is_given_up_after_some_halvings() -> None:
    class Blocked:
        """Solved down to an angle of 0.1, and no further."""

        def __init__(self) -> None:
            self.tried = 0

        def solved(self, z: torch.Tensor, start: torch.Tensor) -> Solution:
            self.tried += 1
            if float(z.angle()) < 0.1:
                raise NotSolved("an angle below 0.1")
            return Solution(z, start, z, 0.0)

    x, dyson = torch.ones(1, dtype=torch.float64), Blocked()
    with pytest.raises(NotSolved, match="below"):
        _continued(cast(Dyson, dyson), x, x[:, None], 1.0, 1e-3, depth=4)
    assert dyson.tried < 2**5


def test_a_few_units_have_the_moments_of_all() -> None:
    energy = (1.5 * torch.randn(8000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).exp()
    variance = energy.reshape(1, 1, -1)
    blocks = chained([Step(1, 0 * variance, {Source(0): variance}, torch.full_like(energy, 1 / 8000))])
    few = _subset(blocks)
    assert len(few.energy) == 512
    for power in (1, 2):
        found = float((few.energy**power * few.weight).sum())
        assert found == pytest.approx(float((blocks.energy**power * blocks.weight).sum()), rel=1e-3)


def test_two_equal_singular_values_of_each_unit_are_no_atoms() -> None:
    """Those of an LRU's units are |lambda|, whose square is uniform from low^2 to high^2."""
    low, high = 0.5, 0.9
    found = spectrum(Spec(LRU(low=low, high=high), {}), steps=2)
    assert found.atoms == () and found.edges == pytest.approx((low**4, high**4), rel=2e-3)
    mean = (high**6 - low**6) / (3 * (high**2 - low**2))
    assert abs(found.mean - mean) <= 4 * found.stderr["mean"]
    at = torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64)
    torch.testing.assert_close(found.distribution(at), (at.sqrt() - low**2) / (high**2 - low**2), rtol=0, atol=1e-3)


def test_errors_of_sampled_units_are_those_of_their_number() -> None:
    """Units (d, d / 2) with d^2 uniform from 0 to 1: the mean of both squares is .625 d^2."""
    generator = torch.Generator().manual_seed(0)
    units = REPLICATES * UNITS
    square = torch.rand(units, generator=generator, dtype=torch.float64)
    weight = torch.full((units,), 1 / units, dtype=torch.float64)
    step = Step(2, torch.diag_embed(torch.stack([square.sqrt(), square.sqrt() / 2], -1)).movedim(0, -1), {}, weight)
    _, known = unit_law([step])
    assert known.stderr["mean"] == pytest.approx(0.625 * (1 / 12 / units) ** 0.5, rel=0.4)
    assert abs(known.first - 0.3125) < 4 * known.stderr["mean"]


def test_density_of_units_that_differ_by_their_parameters_alone():
    """|lambda|^2 is uniform by definition, and x^(1/k - 1) / k of that the density after k steps."""
    steps, cell, half = 3, LRU(), Gate(input_var=0.5)
    found = spectrum(Spec(cell, {"re": half, "im": half}), steps=steps)
    low, high = ((end or 0.0) ** (1 / steps) for end in found.edges)
    assert abs(low - cell.low**2) < 2e-4 and abs(high - cell.high**2) < 2e-4
    exact = found.x ** (1 / steps - 1) / steps / (cell.high**2 - cell.low**2)
    assert float((found.density / exact - 1).abs().quantile(0.99)) < 0.25 and found.residual < 2e-3


@pytest.mark.parametrize(
    ("cell", "steps", "edges"),
    [("t_rnn", 1, (0.0, 1.0)), ("t_rnn", 4, (0.0, 1.0)), ("min_lstm", 1, (0.0, 1.0)), ("sru", 1, (0.0, None))],
)
def test_a_support_without_matrices_ends_where_gates_do_and_not_where_samples_do(cell, steps, edges):
    """A gate's sigmoid of a normal variate has every value in (0, 1); an SRU's Jacobian has a normal factor."""
    kind = cell_named(cell)
    spec = Spec(kind, {gate: Gate(input_var=1.0) for gate in kind.gates if gate != "x"}, biases="fixed")
    low, high = spectrum(spec, steps=steps).edges
    assert low == edges[0] and (high is None if edges[1] is None else high == pytest.approx(edges[1]))
