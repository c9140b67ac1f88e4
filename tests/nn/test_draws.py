"""The laws of random matrices and biases, where a wrong constant or sign would not show in a round trip."""

from __future__ import annotations

import math

import pytest
import torch

from isornn.cells import LSTM, BiasLaw, Gate, Spec
from isornn.nn import draws


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_haar_matrices_have_the_moments_of_haar_measure() -> None:
    """E tr Q = 0 and E (tr Q)^2 = 1; a QR without the sign of R's diagonal has a biased trace."""
    count = 20_000
    trace = draws.haar((count, 6, 6), seeded()).diagonal(dim1=-2, dim2=-1).sum(-1)
    assert abs(float(trace.mean())) < 5 / math.sqrt(count)
    assert float(trace.square().mean()) == pytest.approx(1.0, abs=5 * math.sqrt(2 / count))


@pytest.mark.parametrize("shape", [(7, 3), (3, 7), (5, 5), (4, 7, 3)])
def test_haar_is_orthonormal_along_its_shorter_side(shape: tuple[int, ...]) -> None:
    q = draws.haar(shape, seeded())
    short = min(shape[-2:])
    gram = q.transpose(-2, -1) @ q if shape[-2] >= shape[-1] else q @ q.transpose(-2, -1)
    torch.testing.assert_close(gram, torch.eye(short, dtype=torch.float64).expand_as(gram))


@pytest.mark.parametrize("ensemble", ["gaussian", "orthogonal", 0.0])
@pytest.mark.parametrize("shape", [(200, 200), (200, 50), (50, 200)])
def test_the_mean_square_entry_is_weight_var_over_the_fan_in(shape: tuple[int, int], ensemble: object) -> None:
    w = draws.recurrent(shape, Gate(weight_var=1.7, ensemble=ensemble), seeded())  # type: ignore[arg-type]
    tolerance = 5 * math.sqrt(2 / w.numel()) if ensemble == "gaussian" else 1e-9
    assert shape[1] * float(w.square().mean()) == pytest.approx(1.7, rel=tolerance)


def test_uniform_entries_have_the_variance_and_the_bound() -> None:
    w = draws.dense((300, 100), 2.0, seeded(), "uniform")
    bound = math.sqrt(3 * 2.0 / 100)
    assert 0.999 * bound < float(w.abs().max()) <= bound
    assert 100 * float(w.square().mean()) == pytest.approx(2.0, rel=0.03)


def test_normal_parts_of_biases_are_independent_between_gates_and_laws_are_shared() -> None:
    law = BiasLaw("timescale", 1.0, 20.0)
    gates = {
        "i": Gate(bias_mean=2.0, bias_var=4.0),
        "g": Gate(bias_var=4.0),
        "f": Gate(bias_law=law),
        "o": Gate(bias_law=law),
    }
    drawn = draws.biases((10_000,), Spec(LSTM(), gates), seeded())
    assert float(drawn["i"].mean()) == pytest.approx(2.0, abs=0.1)
    assert float(drawn["i"].var()) == pytest.approx(4.0, rel=0.08)
    assert abs(float(torch.corrcoef(torch.stack([drawn["i"], drawn["g"]]))[0, 1])) < 0.05
    assert torch.equal(drawn["f"], drawn["o"])


def test_identity_is_square() -> None:
    with pytest.raises(ValueError, match="3 x 2 matrix is no identity"):
        draws.recurrent((3, 2), Gate(weight_var=1.0, ensemble="identity"), None)
