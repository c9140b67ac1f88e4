"""What a unit keeps of its slow state, against integrals by hand."""

import math

import numpy as np
import pytest

from isornn.cells import Cell, Gate, Input, Minimal, Peephole, Spec
from isornn.theory.carry import LONGEST, carry_of


def kept(mean: float, shared: float, own: float) -> float:
    """``E[sigma(v + a) sigma(v + b)]`` of v ~ N(mean, shared) and independent a, b ~ N(0, own)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    share = weights / weights.sum()
    gate = 1 / (1 + np.exp(-(mean + math.sqrt(shared) * nodes[:, None] + math.sqrt(own) * nodes)))
    return float(share @ (gate @ share) ** 2)


def test_biases_redrawn_are_read_by_both_copies() -> None:
    gates = {"i": Gate(), "f": Gate(input_var=0.5, bias_mean=2.0, bias_var=0.7), "g": Gate(input_var=1.0)}
    carry = carry_of(Spec(Peephole(), gates, Input(1.0, 0.4), "redrawn"))
    assert carry.mean == pytest.approx(kept(2.0, 0.5 * 0.4 + 0.7, 0.5 * 0.6), rel=1e-6)
    assert carry.reach() == pytest.approx(-1 / math.log(carry.mean), rel=1e-9)


@pytest.mark.parametrize(("bias", "reach"), [(-400.0, 0.0), (60.0, LONGEST)])
def test_units_that_keep_nothing_reach_no_step_and_those_that_keep_all_reach_the_longest(
    bias: float, reach: float
) -> None:
    assert carry_of(Spec(Peephole(), {"f": Gate(bias_mean=bias), "g": Gate(input_var=1.0)})).reach() == reach


@pytest.mark.parametrize("cell", [Minimal(), Peephole()], ids=lambda cell: cell.name)
def test_singular_values_within_a_margin_count_with_their_mean_square(cell: Cell) -> None:
    """E s^2 = 1 + m^2/3 for s uniform in [1-m, 1+m]."""
    gate = "u" if cell == Minimal() else "f"
    spec = Spec(cell, {gate: Gate(weight_var=6.0, input_var=1.0)})
    wide = spec.replace(f"{gate}.ensemble", 1.0)
    alike = spec.replace(f"{gate}.weight_var", 6.0 * 4 / 3)
    assert carry_of(wide, 0.4).mean == pytest.approx(carry_of(alike, 0.4).mean, rel=1e-12)
    assert carry_of(wide, 0.4).mean != pytest.approx(carry_of(spec, 0.4).mean, rel=1e-4)
