"""The sums over units beside inverses of the matrices themselves."""

import numpy as np
import pytest

from isornn.theory.spectra.compiled import sums_over_units
from isornn.theory.spectra.dyson import _pattern


@pytest.mark.parametrize("units", [1, 64, 150])
def test_sums_are_those_of_inverses(units: int) -> None:
    """Three rows of which two are outputs, five factors with zeros of all units and of some, two columns."""
    draws = np.random.default_rng(units)
    outputs, columns, points = 2, np.array([1, 4]), 3
    factors = draws.normal(size=(5, 3, units))
    factors[0, 1:] = factors[1, 0] = factors[4, :2] = 0
    factors[2, 0, ::2] = 0
    weight = draws.uniform(size=units)
    z = draws.normal(size=points) + 1j
    c = draws.normal(size=(points, 5)) - 0.5j
    found = [np.zeros((points, *shape), complex) for shape in ((5,), (2,), (5, 5), ())]
    sums_over_units(z, outputs, c, factors, *_pattern(factors, outputs), columns, weight, *found)

    outer = np.einsum("fsn,fqn->fnsq", factors, factors)
    pi = np.diag([0.0, 1.0, 1.0])
    g = np.linalg.inv(-z[:, None, None, None] * pi + np.einsum("if,fnsq->insq", c, outer))
    between = np.einsum("fsn,insq,gqn->infg", factors, g, factors)
    y = np.einsum("n,inff->if", weight, between)
    e = -c * weight.sum() + c**2 * y
    h, trace = np.einsum("n,infg->ifg", weight, between**2), np.einsum("n,inss,s->i", weight, g, pi.diagonal())
    for value, right in zip(found, (y, e[:, columns], h, trace), strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-9)


def test_what_is_not_zero_is_known_before() -> None:
    """A chain of three rows: the first two meet in a factor, the last two in another."""
    factors = np.zeros((2, 3, 4))
    factors[0, :2, 1] = factors[1, 1:] = 1.0
    filled, reached = _pattern(factors, 1)
    assert filled.tolist() == [[False] * 3, [True, False, False], [False, True, False]]
    assert reached.tolist() == [[True, True, True], [False, True, True], [False, False, True]]
