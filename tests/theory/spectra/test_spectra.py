"""The spectrum's density against closed forms, the moments of `analyze`, and simulated networks."""

import math

import pytest
import torch

from checked import CHO, PEEPHOLE, law
from isornn.cells import GRU, LSTM, TLSTM, TRNN, Gate, Minimal, Spec, Vanilla
from isornn.simulation import simulate
from isornn.theory import TheoryMissing, analyze
from isornn.theory.spectra import SpectralDensity, spectrum

SPECS = {
    "vanilla": Spec(Vanilla(), law(h=(2, 0.5, 0.1, 0.2))),
    "minimal": Spec(Minimal(), law(u=(3, 2, 0.5, 1))),
    "peephole": PEEPHOLE,
    "gru": Spec(GRU(), law(r=(2, 0.5, 0, 0), z=(3, 1, 0, 1), nx=(0, 0.5, 0, 0), nh=(4, 0, 0, 0))),
    "gru_cho": CHO,
    "lstm": Spec(LSTM(), law(i=(1, 0.5, 0, 0), f=(1, 0.5, 0, 1), g=(1, 0.5, 0, 0), o=(1, 0.5, 0, 0))),
}
WIDTH = 600
SHARP = ("vanilla", "gru_cho")


@pytest.fixture(scope="module")
def found() -> dict[str, SpectralDensity]:
    return {name: spectrum(spec) for name, spec in SPECS.items()}


@pytest.mark.parametrize("name", SPECS)
def test_moments_are_those_of_analyze(name: str, found: dict[str, SpectralDensity]) -> None:
    moments, density = analyze(SPECS[name]).jacobian, found[name]
    second = density.variance + density.mean**2
    # units are reweighted so that nothing but the integral over a grid is between the two
    assert density.mean == pytest.approx(moments.mean.number(), rel=1e-3)
    assert second == pytest.approx(moments.second_moment.number(), rel=1e-3)
    assert density.residual < 3e-3


@pytest.mark.parametrize("name", SPECS)
def test_distribution_is_that_of_networks(name: str, found: dict[str, SpectralDensity]) -> None:
    # Eigenvalues are rigid: what is left is the network's own Q and units, of order 1/sqrt(N) = .045 for one network
    run = simulate(
        SPECS[name],
        width=WIDTH,
        steps=1,
        warmup=30,
        networks=1,
        tangents=1,
        singular_values=True,
        generator=torch.Generator().manual_seed(1),
    )
    assert run.spectrum is not None
    values = run.spectrum.singular_values.square().flatten().sort()[0]
    ranks = (torch.arange(len(values)) + 0.5) / len(values)
    distance = float((found[name].distribution(values) - ranks).abs().max())
    assert distance < 1 / math.sqrt(WIDTH)


@pytest.mark.parametrize("name", SPECS)
def test_only_bounded_rows_have_an_upper_edge(name: str, found: dict[str, SpectralDensity]) -> None:
    low, high = found[name].edges
    assert low == 0.0
    assert (high is not None) == (name in SHARP)


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


def test_typed_cells_have_the_exact_law_of_their_gate() -> None:
    gate = Gate(input_var=2.0, bias_mean=1.0, bias_var=0.3)
    answer = spectrum(Spec(TRNN(), {"f": gate, "z": Gate(input_var=1.0)}))
    place = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    exact = torch.special.ndtr((torch.logit(place.sqrt()) - 1.0) / math.sqrt(2.3))
    torch.testing.assert_close(answer.distribution(place), exact, atol=5e-4, rtol=0)  # half of one of 1200 intervals
    assert answer.residual < 1e-3 and answer.stderr == {"mean": 0.0, "variance": 0.0}


def test_hard_gates_have_atoms() -> None:
    answer = spectrum(Spec(TLSTM("hard_sigmoid"), {"f": Gate(input_var=4.0, bias_mean=1.0), "z": Gate(input_var=1.0)}))
    shut, open_ = (float(torch.special.ndtr(torch.tensor(z, dtype=torch.float64))) for z in (-3.5 / 2, -1.5 / 2))
    assert [(atom.place, pytest.approx(atom.mass, abs=1e-6)) for atom in answer.atoms] == [(0.0, shut), (1.0, open_)]


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


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (Spec(Vanilla(), {"h": Gate(weight_var=torch.tensor([1.0, 2.0]))}), "batch"),
        (Spec(Vanilla(), {"h": Gate(weight_var=1.0, input_var=0.1, ensemble=0.2)}), "gates.h.ensemble"),
        (Spec(Minimal(), {"u": Gate(1.0, 1.0, ensemble="orthogonal")}), "gates.u.ensemble"),
        (Spec(Vanilla("oplu"), {"h": Gate(1.0, 1.0)}), "units together"),
        (Spec(Vanilla("identity"), {"h": Gate(2.0, 1.0)}), "no fixed point"),
        (Spec(LSTM(), {"f": Gate(0.0, 1.0)}), "without recurrent weights"),
    ],
)
def test_what_has_no_theory_is_refused_with_the_reason(spec: Spec, why: str) -> None:
    with pytest.raises(TheoryMissing, match=why):
        spectrum(spec)
