"""The papers' approximation of the LSTM, against matrices of its form."""

import math

import numpy as np
import pytest
import torch

from isornn.cells import LSTM, BiasLaw, Gate, Input, Spec, Vanilla
from isornn.theory import TheoryMissing
from isornn.theory.gilboa import _variance, lstm_approximation


def test_the_variance_is_that_of_a_diagonal_and_gaussian_rows() -> None:
    n, generator = 600, torch.Generator().manual_seed(0)
    a, v = torch.rand(2, n, generator=generator, dtype=torch.float64)
    found = []
    for _ in range(4):
        rows = torch.randn(n, n, generator=generator, dtype=torch.float64) * (v / n).sqrt()[:, None]
        values = torch.linalg.svdvals(a.sqrt().diag() + rows).square()
        found.append(float(values.var(correction=0)))
    assert float(_variance(a, v)) == pytest.approx(sum(found) / 4, rel=0.02)


@pytest.mark.parametrize("spec", [Spec(Vanilla(), {"h": Gate(1.0)}), Spec(LSTM(), {"f": Gate(1.0)}, biases="fixed")])
def test_it_is_of_an_lstm_with_biases_redrawn(spec: Spec) -> None:
    with pytest.raises(TheoryMissing, match="LSTM with biases redrawn"):
        lstm_approximation(spec)


def test_without_recurrent_weights_it_is_the_forget_gate_alone() -> None:
    gates = {name: Gate(input_var=1.0) for name in "igo"} | {"f": Gate(bias_mean=1.0)}
    found = lstm_approximation(Spec(LSTM(), gates))
    assert found.chi.number() == pytest.approx(1 / (1 + math.exp(-1)) ** 2)
    assert found.variance.number() == pytest.approx(0, abs=1e-12)


def test_the_size_of_inputs_counts() -> None:
    """chi without recurrent weights is E sigmoid(f)^2 over f of the gate's own law."""
    gates = {name: Gate(input_var=1.0) for name in "igo"} | {"f": Gate(input_var=0.5, bias_mean=1.0)}
    chi = lstm_approximation(Spec(LSTM(), gates, Input(variance=3.0))).chi
    place, weight = np.polynomial.hermite_e.hermegauss(60)
    exact = float((weight / (1 + np.exp(-1 - math.sqrt(1.5) * place)) ** 2).sum() / weight.sum())
    assert chi.number() == pytest.approx(exact, abs=4 * (chi.error() or 0) + 1e-9)


def test_a_law_of_biases_that_is_redrawn_counts() -> None:
    """Without recurrent weights chi is E sigmoid(b)^2, sigmoid(b) = r / (1 + r) with r ~ U(1, 99)."""
    gates = {name: Gate(input_var=1.0) for name in "igo"} | {"f": Gate(bias_law=BiasLaw("chrono", 1.0, 99.0))}
    chi = lstm_approximation(Spec(LSTM(), gates)).chi
    exact = 1 - 2 * math.log(50) / 98 + (1 / 2 - 1 / 100) / 98  # 1 - 2/(1+r) + 1/(1+r)^2
    assert chi.number() == pytest.approx(exact, abs=4 * chi.error())


def test_singular_values_within_a_margin_count_with_their_mean_square() -> None:
    gates = {name: Gate(weight_var=1.0, input_var=0.5, ensemble=1.0) for name in "ifgo"}
    alike = {name: Gate(weight_var=4 / 3, input_var=0.5) for name in "ifgo"}
    of_margin, of_gaussian = (lstm_approximation(Spec(LSTM(), each)).chi.number() for each in (gates, alike))
    assert of_margin == pytest.approx(of_gaussian, rel=1e-12)
