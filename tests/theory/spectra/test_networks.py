"""Spectra that the equation does not resolve, by drawn networks."""

import math

import pytest
import torch

from checked import CHO, law, squared_singular_values
from isornn.cells import GRU, LSTM, Cell, Gate, Input, Peephole, Spec, Vanilla
from isornn.theory import analyze
from isornn.theory.critical_points.point import critical
from isornn.theory.spectra import spectrum
from isornn.theory.spectra.blocks import row_energy, sampled_path
from isornn.theory.spectra.laws import integrals, law_of_samples
from isornn.theory.spectra.networks import jacobian

DRAWN = {
    "gated reads": CHO,
    "two states": Spec(LSTM(), law(i=(1, 0.5, 0, 0), f=(1, 0.5, 0, 1), g=(1, 0.5, 0, 0), o=(1, 0.5, 0, 0))),
    "margin": Spec(Vanilla("tanh"), {"h": Gate(1.5, 0.5, ensemble=0.8)}),
}
WIDTH = 400


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_jacobians_have_the_moments_of_analyze(name: str) -> None:
    spec, generator = DRAWN[name], torch.Generator().manual_seed(0)
    (step,) = sampled_path(spec, 1, generator)
    moments = analyze(spec).jacobian
    found = []
    for _ in range(12):
        units = torch.multinomial(step.weight, WIDTH, generator=generator)
        squares = torch.linalg.svdvals(jacobian(step.taken(units, torch.ones(WIDTH)), generator)).square()
        found.append((squares.mean(), squares.square().mean()))
    for values, wanted in zip(torch.tensor(found).T, (moments.mean, moments.second_moment), strict=True):
        error = float(values.std()) / math.sqrt(len(values))
        assert float(values.mean()) == pytest.approx(wanted.number(), abs=4 * error, rel=5 / WIDTH)
    assert float(row_energy([step]) @ step.weight) / step.states == pytest.approx(moments.mean.number(), rel=5e-3)


@pytest.mark.parametrize("cell", [GRU(), Peephole()])
def test_weak_weights_and_gates_that_vary_over_units_have_the_spectrum_of_networks(cell: Cell) -> None:
    spec = critical(cell, 100, input=Input()).spec
    answer, moments = spectrum(spec), analyze(spec).jacobian
    assert answer.residual < 0.02
    assert answer.mean == pytest.approx(moments.mean.number(), rel=1e-3)
    assert answer.variance == pytest.approx(moments.variance.number(), rel=1e-2)
    values = squared_singular_values(spec, WIDTH, warmup=400, networks=2)
    ranks = (torch.arange(len(values)) + 0.5) / len(values)
    assert float((answer.distribution(values) - ranks).abs().max()) < 1.63 / math.sqrt(2 * WIDTH)  # Kolmogorov's 1 %


def test_a_histogram_keeps_mass_where_widths_jump() -> None:
    narrow = 1 + 1e-4 * torch.rand(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wide = torch.rand(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    values = torch.cat([narrow, wide])
    x, density, atoms = law_of_samples(
        values, torch.full((10_000,), 1e-4, dtype=torch.float64), 1e-3, bins=48
    ).histogram
    found = integrals(x, density, atoms)
    assert not atoms and bool((x.diff() > 0).all())
    assert found == pytest.approx((1, float(values.mean()), float(values.square().mean())), rel=5e-3)
