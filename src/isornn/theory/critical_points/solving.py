"""Solving for the time scales at which a spec of the rule's family sees as far as is wanted."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from isornn.cells import Spec, SpecError
from isornn.cells.roles import RetainedState, at_start, roles_of
from isornn.theory.analysis import analyze
from isornn.theory.carry import Carry, brent, carry_of
from isornn.theory.critical_points.records import Biases
from isornn.theory.critical_points.rule import SHORTEST, Family
from isornn.theory.quadrature.affine import bias_nodes
from isornn.theory.records import Analysis, Quantity

ISOMETRY = 1.9  # 1 - m1 aimed at, in units of 1/T; the bound is 2
TOLERANCE = {"quadrature": 1e-4, "population": 5e-3, "none": 0.0}
ROUNDS = 12


def over_octaves(family: Family, length: float) -> Spec:
    """Where a change of a retained state alone, kept by gates without input, falls to 1/e after ``length`` steps.

    So the slow end follows from the length, and is the same for every cell and for every state that it retains.

    Raises:
        SpecError: no slow end is found: fixed fields hold the gates open or shut; several states have none in common.
    """
    states = roles_of(family(SHORTEST, length).cell).gated

    def reach(high: float, state: RetainedState) -> float:
        return _kept_by_biases(family(SHORTEST, high), state).reach()

    high = _slow_end(lambda high: reach(high, states[0]), SHORTEST, length)
    for state in states:
        found = reach(high, state)
        if abs(found / length - 1) > 0.01:
            reason = (
                f"no time scales retain {state.cell.name}'s {state.state} so long; the nearest is {found:.3g} steps"
            )
            raise SpecError("length", length, reason)
    return family(SHORTEST, high)


def _kept_by_biases(spec: Spec, state: RetainedState) -> Carry:
    """The carry of ``state`` by gates without input, units' biases alone."""
    laws = {name: torch.tensor(float(gate.bias_var)).double().reshape(1, 1, 1) for name, gate in spec.gates.items()}
    nodes = bias_nodes(spec, laws)
    u = {name: float(gate.bias_mean) + nodes.offset[name] for name, gate in spec.gates.items()}
    kept = state.coefficient(at_start(spec.cell, u)).square()
    return Carry(state.state, kept.reshape(-1), nodes.weight.expand(kept.shape).reshape(-1) / kept.shape[0])


def solve(family: Family, length: float, biases: Biases, generator: torch.Generator | None) -> Analysis:
    """Aim by the carry alone, measure with the full theory, correct the aim until it hits; the nearest is returned.

    The carry needs the state's second moment, which is measured with a first aim.
    """
    wanted = math.log(length)
    best: tuple[float, Analysis] | None = None
    aim, second_moment = wanted, 0.0
    tried: list[tuple[float, float]] = []
    for attempt in range(ROUNDS):
        spec = _aimed(family, math.exp(aim), length, biases, second_moment)
        analysis = analyze(spec, length=math.ceil(length), generator=generator)
        found = sight_of(analysis, biases).number()
        # nothing found: it sees too far, or its state grows because it remembers too well
        height = math.inf if found is None else math.log(max(found, 1e-9))
        if best is None or abs(height - wanted) < best[0]:
            best = abs(height - wanted), analysis
        if best[0] <= TOLERANCE[analysis.engine]:
            break
        second = analysis.fixed_point.second_moment.number()
        if attempt == 0 and second:
            second_moment = second
            aim += wanted - height if math.isfinite(height) else -1.0
        else:
            tried.append((aim, height))
            aim = _next_aim(tried, wanted)
    assert best is not None
    return best[1]


def _next_aim(tried: list[tuple[float, float]], wanted: float) -> float:
    """The next aim, from (aim, found) so far, all logarithms: by the secant, inside the bracket once there is one."""
    aim, found = tried[-1]
    step = wanted - found if math.isfinite(found) else -1.0
    if len(tried) >= 2 and math.isfinite(found) and math.isfinite(tried[-2][1]):
        run, rise = aim - tried[-2][0], found - tried[-2][1]
        if run * rise > 0:
            step *= min(run / rise, 4.0)
    proposed = aim + min(max(step, -2.3), 2.3)
    below = max((a for a, f in tried if f < wanted), default=-math.inf)
    above = min((a for a, f in tried if f > wanted), default=math.inf)
    if -math.inf < below < above < math.inf and not below < proposed < above:
        proposed = (below + above) / 2
    return proposed


def sight_of(analysis: Analysis, biases: Biases) -> Quantity:
    return analysis.reach if biases == "fixed" else analysis.xi


def _aimed(family: Family, aim: float, length: float, biases: Biases, second_moment: float) -> Spec:
    """The member of the family whose carry alone has the reach ``aim``.

    Where units keep their biases, with the shortest time scale such that m1 is close to 1.
    """
    if not roles_of(family(1.0, 2.0).cell).gated:
        return by_weights(family, aim)

    def highest(low: float) -> float:
        return _slow_end(lambda high: carry_of(family(low, high), second_moment).reach(), low, aim)

    if biases == "redrawn":
        return family(SHORTEST, highest(SHORTEST))

    def excess(low: float) -> float:
        return (1 - carry_of(family(low, highest(low)), second_moment).mean) * length - ISOMETRY

    low = SHORTEST  # where m1 allows it
    if excess(low) > 0 > excess(aim):
        low = brent(excess, low, aim, rtol=1e-4)
    return family(low, highest(low))


def _slow_end(reach: Callable[[float], float], low: float, aim: float) -> float:
    """The longest time scale, given the shortest, at which the carry has the reach ``aim``."""

    def miss(log_spread: float) -> float:
        return math.log(max(reach(low + 10**log_spread), 1e-9) / aim)

    if miss(-6.0) >= 0 or miss(12.0) <= 0:
        return low if miss(-6.0) >= 0 else low + 1e12
    return low + 10 ** brent(miss, -6.0, 12.0, xtol=1e-9)


def by_weights(family: Family, aim: float) -> Spec:
    """Without a remember gate the weights carry all: chi of identical copies is exp(-1/aim)."""

    def excess(log_weight: float) -> float:
        chi = analyze(family(1.0, 10**log_weight), length=1).chi_1.number()
        return (math.inf if chi is None else chi) - math.exp(-1 / aim)

    low, high = -3.0, -3.0
    while excess(high) < 0 and high < 4:
        low, high = high, high + 0.25
    if low == high or excess(high) < 0:
        reason = f"with a weight variance from 1e-3 to 1e4 no fixed point sees {aim:g} steps"
        raise SpecError("length", aim, reason)
    return family(1.0, 10 ** brent(lambda x: min(excess(x), 10.0), low, high, xtol=1e-10))
