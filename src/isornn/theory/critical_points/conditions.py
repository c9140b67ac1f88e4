"""Which conditions of criticality a spec of the rule meets."""

from __future__ import annotations

import math

from isornn.cells import Cell
from isornn.cells.polynomial import NotPolynomial
from isornn.cells.roles import roles_of
from isornn.theory.carry import carry_of
from isornn.theory.critical_points.costs import sight_name
from isornn.theory.critical_points.records import Biases, Condition, shown
from isornn.theory.critical_points.solving import sight_of
from isornn.theory.records import Analysis

FARTHEST_SHARE = 1 / 3  # of 1/T, the largest share that the farthest step can have in a unit


def conditions_of(analysis: Analysis, length: float, biases: Biases) -> tuple[Condition, ...]:
    name, sight = sight_name(analysis.spec), sight_of(analysis, biases)
    value = sight.number()
    conditions = [
        Condition(
            f"{name} = T",
            f"{length:g} to 1 %",
            shown(sight),
            value is not None and abs(value / length - 1) <= 0.01,
        )
    ]
    if len(analysis.spec.cell.states) == 1:
        mean, variance = analysis.jacobian.mean, analysis.jacobian.variance
        m1, spread = mean.number(), variance.number()
        conditions += [
            Condition(
                "m1 = 1", f"within 2/T = {2 / length:.3g}", shown(mean), m1 is not None and abs(m1 - 1) <= 2 / length
            ),
            Condition(
                "squared singular values alike",
                f"variance at most 2/T = {2 / length:.3g}",
                shown(variance),
                spread is not None and spread <= 2 / length,
            ),
        ]
    else:
        for slow in _slow_states(analysis.spec.cell):
            curve = analysis.state_profiles.get(slow)
            kept = math.nan if curve is None else float(curve[-1] / curve[1])
            name, wanted = f"{slow} to {slow} over T steps", "keeps 1/4 to 1/2 of the first step's mean squared gain"
            conditions.append(Condition(name, wanted, f"{kept:.3g}", 0.25 <= kept <= 0.5))
    return tuple(conditions)


def conditions_over_octaves(analysis: Analysis, length: float) -> tuple[Condition, ...]:
    """The slow end is set for gates without input; the reach and the farthest step's share where they have one."""
    reach = analysis.reach.number()
    wanted = "at least a third of the most, 1/T"
    try:
        carry = carry_of(analysis.spec, analysis.fixed_point.second_moment.number() or 0.0)
        share = length * carry.share_of(length - 1, length)
        found = f"{share:.3g}"
    except NotPolynomial as error:
        share, found = math.nan, f"none ({error})"
    return (
        Condition(
            "reach = T within a factor 2",
            f"{length / 2:g} to {2 * length:g}",
            shown(analysis.reach),
            reach is not None and length / 2 <= reach <= 2 * length,
        ),
        Condition("share of the first of T steps", wanted, found, share >= FARTHEST_SHARE),
    )


def _slow_states(cell: Cell) -> tuple[str, ...]:
    """The states that retain by gates; the last state where there is none."""
    return tuple(state.state for state in roles_of(cell).gated) or cell.states[-1:]
