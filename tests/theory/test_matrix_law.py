"""Orthogonal matrices and margins: cumulants, moments and spectra against sums over singular values and networks."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from checked import CHO, law
from isornn.cells import LSTM, Cell, Gate, Minimal, Reads, Spec, Values, Vanilla
from isornn.cells.laws import Ensemble
from isornn.nn import draws
from isornn.simulation import simulate
from isornn.theory import TheoryMissing, analyze
from isornn.theory.matrix_law import fourth_cumulant, margin_of, tilted_mean
from isornn.theory.spectra import spectrum
from isornn.theory.spectra.blocks import Source, Step, chained, sampled_path, thinned
from isornn.theory.spectra.dyson import Dyson
from isornn.theory.spectra.scan import moments, upper_edge

MARGINS = (1e-9, 0.1, 1.0, 1.5)
SPECS = {
    "minimal": Spec(Minimal(), law(u=(3, 2, 0.5, 1))),
    "gru_cho": CHO,
    "lstm": Spec(LSTM(), law(i=(2, 1, 0, 0.5), f=(4, 0.5, 0.1, 2), g=(3, 0.5, 0, 0), o=(2, 0.5, 0, 0.5))),
}
MIXED: tuple[Ensemble, ...] = ("orthogonal", "gaussian", 0.5, "orthogonal")


def with_ensembles(spec: Spec, *ensembles: Ensemble) -> Spec:
    """The gates' own, in the cell's order, repeated."""
    gates = {
        name: replace(gate, ensemble=ensembles[place % len(ensembles)])
        for place, (name, gate) in enumerate(spec.gates.items())
    }
    return replace(spec, gates=gates)


@pytest.mark.parametrize("margin", MARGINS)
@pytest.mark.parametrize("zeta", [-1e-3, -3 + 0j, 0.3 + 0.2j, 5 + 0.1j, 3e4 + 1j, -1e6 + 0j])
def test_tilted_means_are_those_of_the_singular_values(margin: float, zeta: complex) -> None:
    s = torch.linspace(1 - margin, 1 + margin, 200_001, dtype=torch.float64)
    y = ((s[1:] + s[:-1]) / 2).square() / (1 + margin**2 / 3)
    at = torch.tensor([zeta])
    at = at.to(torch.complex128 if at.is_complex() else torch.float64)
    q, slope = tilted_mean(margin, at)
    below, above = (1 / (y - at)).mean(), (y / (y - at)).mean()
    exact = (y / (y - at).square()).mean() / below - above * (1 / (y - at).square()).mean() / below.square()
    torch.testing.assert_close(q[0], above / below, rtol=1e-8, atol=0)
    torch.testing.assert_close(slope[0], exact, rtol=1e-6, atol=1e-13)
    assert fourth_cumulant(margin) == pytest.approx(float(y.square().mean()) - 2, abs=1e-8)


def test_real_places_within_the_law_have_no_tilted_mean() -> None:
    q, slope = tilted_mean(0.5, torch.tensor([0.2, 1.0, 2.1], dtype=torch.float64))
    assert q.isnan().tolist() == slope.isnan().tolist() == [False, True, False]


def test_identity_matrices_are_free_from_nothing() -> None:
    with pytest.raises(TheoryMissing, match="identity"):
        margin_of("identity")


@pytest.mark.parametrize("name", ["minimal", "gru_cho"])
def test_both_engines_have_the_same_moments(name: str) -> None:
    spec = with_ensembles(SPECS[name], *MIXED)
    exact, sampled = (analyze(spec, engine=engine, length=1).jacobian for engine in ("quadrature", "population"))
    for one, other in ((exact.mean, sampled.mean), (exact.second_moment, sampled.second_moment)):
        assert other.number() == pytest.approx(one.number(), abs=4 * (other.error() or 0.0))


@pytest.mark.parametrize("name", ["gru_cho", "lstm"])
def test_the_equation_has_the_moments_of_analyze(name: str) -> None:
    spec = with_ensembles(SPECS[name], *MIXED)
    known = analyze(spec, length=1).jacobian
    blocks = chained(thinned(sampled_path(spec, 1, torch.Generator().manual_seed(0))))
    first, second = moments(blocks, upper_edge(blocks, 0.05))
    # sampled units have moments of their own, up to some 1 %
    assert first == pytest.approx(known.mean.number(), rel=0.01)
    assert second == pytest.approx(known.second_moment.number(), rel=0.01)


def test_minimal_networks_have_the_spectrum_of_the_theory() -> None:
    spec = with_ensembles(SPECS["minimal"], "orthogonal")
    answer, known = spectrum(spec), analyze(spec, length=1)
    assert answer.variance == pytest.approx(known.jacobian.variance.number(), rel=1e-3)
    run = simulate(
        spec,
        width=300,
        steps=1,
        initial_variance=known.fixed_point.second_moment.number(),
        warmup=8,
        networks=3,
        tangents=1,
        singular_values=True,
        generator=torch.Generator().manual_seed(2),
    )
    assert run.spectrum is not None
    values = run.spectrum.singular_values.square().flatten().sort()[0]
    ranks = (torch.arange(len(values)) + 0.5) / len(values)
    # a network's own Q and units: of order 1/sqrt(N) for one
    assert float((answer.distribution(values) - ranks).abs().max()) < 1 / math.sqrt(300)


# -- J = D W ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("margin", [0.01, 1.5])
def test_a_margin_blurs_the_law_of_the_slope(margin: float) -> None:
    spec = Spec(Vanilla(), {"h": Gate(weight_var=1.2, input_var=0.3, bias_mean=0.1, ensemble=margin)})
    answer, known = spectrum(spec), analyze(spec, length=1)
    second = known.fixed_point.second_moment.number()
    assert second is not None
    width, generator = 600, torch.Generator().manual_seed(0)
    normal = torch.special.ndtri((torch.randperm(width, generator=generator).double() + 0.5) / width)
    u = 0.1 + (1.2 * (1 + margin**2 / 3) * second + 0.3) ** 0.5 * normal
    w = draws.recurrent((width, width), spec.gates["h"], generator)
    s = torch.linalg.svdvals(w)
    w = w * (1.2 * (1 + margin**2 / 3) / s.square().mean()).sqrt()  # the draw's own mean square is off by 2 %
    values = torch.linalg.svdvals((1 - u.tanh().square())[:, None] * w).square().sort()[0]
    ranks = (torch.arange(width) + 0.5) / width
    assert float((answer.distribution(values) - ranks).abs().max()) < 0.008
    assert answer.residual < 2e-3
    assert answer.variance == pytest.approx(known.jacobian.variance.number(), rel=1e-3)
    assert answer.edges[1] == pytest.approx(float(values[-1]), rel=0.03)
    assert answer.edges[0] == 0.0


def test_a_projected_margin_leaves_a_gap_above_its_zeros() -> None:
    answer = spectrum(Spec(Vanilla("relu"), {"h": Gate(weight_var=1.0, input_var=0.1, ensemble=0.1)}))
    (atom,) = answer.atoms
    assert atom.place == 0.0 and atom.mass == pytest.approx(0.5, abs=1e-3)
    rows = draws.recurrent((800, 800), Gate(weight_var=1.0, ensemble=0.1), torch.Generator().manual_seed(0))[:400]
    values = torch.linalg.svdvals(rows).square()
    assert answer.edges == pytest.approx((float(values[-1]), float(values[0])), rel=0.01)


def test_a_constant_slope_leaves_the_law_of_the_matrix() -> None:
    answer = spectrum(Spec(Vanilla("identity"), {"h": Gate(weight_var=0.5, input_var=0.1, ensemble=0.2)}))
    place = torch.tensor([0.4, 0.5, 0.6], dtype=torch.float64)
    torch.testing.assert_close(answer.distribution(place), ((place / 0.5).sqrt() - 0.8) / 0.4, atol=2e-3, rtol=0)
    assert answer.edges == pytest.approx((0.32, 0.72), rel=2e-3)


# -- several steps ----------------------------------------------------------------------------------------------------


class Twice(Cell):
    """Linear, so that its Jacobian ``.3 + .4 W_f + .5 W_n (1 + W_f)`` is the same whatever the units."""

    name = "twice"
    gates = {"f": Reads(), "n": Reads()}

    def read(self, gate: str, s: Values, u: Values) -> Any:
        return s.h + u.f if gate == "n" else s.h

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": 0.3 * s.h + 0.4 * u.f + 0.5 * u.n}


@pytest.mark.parametrize("ensemble", ["gaussian", "orthogonal"])
def test_a_matrix_may_act_directly_and_in_a_gated_read(ensemble: Ensemble) -> None:
    size, generator = 800, torch.Generator().manual_seed(0)
    drawn = []
    for _ in range(4):
        f, n = torch.randn(2, size, size, dtype=torch.float64, generator=generator) / size**0.5
        if ensemble == "orthogonal":
            f, n = (q * r.diagonal().sign() for q, r in map(torch.linalg.qr, (f, n)))
        one = torch.eye(size, dtype=torch.float64)
        drawn.append(torch.linalg.svdvals(0.3 * one + 0.4 * f + 0.5 * n @ (one + f)).square())
    squares = torch.cat(drawn)
    found = analyze(with_ensembles(Spec(Twice(), law(f=(1, 1, 0, 0), n=(1, 1, 0, 0))), ensemble))
    assert found.jacobian.mean.number() == pytest.approx(0.75, rel=1e-9)
    assert found.jacobian.second_moment.number() == pytest.approx(float(squares.square().mean()), rel=0.005)


class Product(Cell):
    """As `Twice`, but for a read and a step that differ between units."""

    name = "product"
    gates = {"f": Reads(), "n": Reads()}

    def read(self, gate: str, s: Values, u: Values) -> Any:
        return (1 + 0.3 * u.f) * s.h if gate == "n" else s.h

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": 0.3 * s.h + 0.4 * u.f + 0.5 * torch.tanh(u.n)}


@pytest.mark.parametrize("ensemble", ["gaussian", "orthogonal"])
def test_both_engines_know_of_matrices_that_act_twice(ensemble: Ensemble) -> None:
    spec = with_ensembles(Spec(Product(), law(f=(1, 0.1, 0, 0.7), n=(1, 0.1, 0, 0))), ensemble)
    exact, sampled = analyze(spec).jacobian, analyze(spec, engine="population").jacobian
    assert exact.mean.error() == 0
    for one, other in ((exact.mean, sampled.mean), (exact.second_moment, sampled.second_moment)):
        assert abs(one.number() - other.number()) < 4 * other.error() < 0.003 * one.number()


def test_orthogonal_matrices_alone_keep_all_lengths() -> None:
    answer = spectrum(Spec(Vanilla("identity"), {"h": Gate(0.9, 0.1, ensemble="orthogonal")}), steps=3)
    (atom,) = answer.atoms
    assert atom.place == pytest.approx(0.9**3) and atom.mass == 1.0


def test_two_projections_by_orthogonal_matrices_have_the_arcsine_law() -> None:
    # P_2 W_2 P_1 W_1, projections to N/2: half of the values are 0, the others cos^2 of uniform angles
    weight = torch.full((4,), 0.25, dtype=torch.float64)
    zero = torch.zeros(1, 1, 4, dtype=torch.float64)
    kept = [torch.tensor(units, dtype=torch.float64).reshape(1, 1, 4) for units in ([1, 1, 0, 0], [1, 0, 1, 0])]
    dyson = Dyson(chained([Step(1, zero, {Source(0, "h", 0.0): source_terms}, weight) for source_terms in kept]))
    z = torch.tensor([9 + 1j])
    start = dyson.guess(z)
    for place in (9 + 1j, 3 + 1j, 1 + 0.5j, 0.6 + 0.1j, 0.3 + 0.1j):
        found = dyson.solved(torch.tensor([place], dtype=torch.complex128), start)
        exact = -0.5 / place - 0.5 / (place**0.5 * (place - 1) ** 0.5)
        assert complex(found.m) == pytest.approx(exact, rel=1e-5)
        start = found.unknowns
