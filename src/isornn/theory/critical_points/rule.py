"""Hyper-parameters from a length: the rule behind `critical` and `isometric`, and the solver of the latter."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch

from isornn.cells import BiasLaw, Cell, Gate, Input, Spec, SpecError, Values, initial_parameters, spread_parameters
from isornn.cells.bias_laws import SPREAD
from isornn.cells.openings import bias_of, own_start, refusal, retention_signs, write_signs
from isornn.cells.roles import Roles, roles_of, silences
from isornn.theory.analysis import analyze
from isornn.theory.carry import carry_of
from isornn.theory.quadrature.roots import brent
from isornn.theory.quantity import Quantity
from isornn.theory.records import Analysis

Biases = Literal["redrawn", "fixed"]
Family = Callable[[float, float], Spec]

WEAK = 1e-5  # recurrent weight variance of gates that need no recurrence (Gilboa et al. 2019, D.4)
SEEN = 1.0  # variance that gates which see the input receive from it
# What candidates receive over octaves: most of tanh's range (E tanh^2 = .64), in which sizes are still distinguished.
SEEN_TO_LEARN = 4.0
WRITTEN = 0.64  # mean square of such a candidate, E tanh^2
SHORTEST = 1.0  # time scale of the fastest units, as chrono's
FAINT = 0.3  # pre-activation variance, times sqrt(T), of a cell that has no gates
ISOMETRY = 1.9  # 1 - m1 aimed at, in units of 1/T; the bound is 2
TOLERANCE = {"quadrature": 1e-4, "population": 5e-3, "none": 0.0}
ROUNDS = 12
_NODES = 128  # of the Gauss-Legendre rule over the octaves, which is exact to rounding up to T = 1e6


# -- time scales over octaves: `critical` -----------------------------------------------------------------------------


def over_octaves(cell: Cell, length: float, fixed: Mapping[str, Any], input: Input) -> Spec:
    """The spec of `critical` for a cell with a retention gate.

    Raises:
        SpecError: no bias sets how long the cell retains; a fixed field is a law of time scales.
    """
    roles = _gated(cell)
    template = _template(roles, cell, input, "fixed", length)
    seen = SEEN_TO_LEARN / mean_square(input)
    if not roles.write:  # the state adds up what the others average
        seen /= length
    template = _with(template, {f"{gate}.input_var": seen for gate in roles.candidates if cell.gates[gate].input})
    law = BiasLaw("capped_timescale", SHORTEST, slow_end(length))
    return _spread(_with(template, fixed), law, fixed)


def mean_square(input: Input) -> float:
    """E x^2, by which the rule divides input weights; 1 of an input that is always 0, which no weights make larger."""
    return float(input.second_moment) or 1.0


@functools.lru_cache(maxsize=256)
def slow_end(length: float) -> float:
    """The longest time scale ``high`` of `critical`'s law at which biases alone give the reach ``length``.

    A unit with time scale r keeps ``q = (r / (1 + r))^2`` of a squared change in a step. With ``ln r ~ U(0, ln high)``
    for a third of the units and r = high for the others, the reach is T where ``E q^(T+1) = E q / e``, that is

        q(high)^(T+1) = (3/2) (E q / e - E[q^(T+1); the third over the octaves]),

    a contraction in high: 40 rounds take it to rounding.

    >>> [round(slow_end(length) / length, 2) for length in (10.0, 100.0, 1000.0)]
    [2.46, 2.74, 2.89]
    """
    nodes, weight = np.polynomial.legendre.leggauss(_NODES)
    shares, weight, high = (nodes + 1) / 2, SPREAD * weight / 2, 2.5 * length
    for _ in range(40):
        log_q = -2 * np.log1p(high**-shares)
        kept = (float(weight @ np.exp(log_q)) + (1 - SPREAD) * math.exp(-2 * math.log1p(1 / high))) / math.e
        slow = (kept - float(weight @ np.exp((length + 1) * log_q))) / (1 - SPREAD)
        high = 1 / math.expm1(-math.log(slow) / (2 * (length + 1)))
    return high


# -- recurrent weights alone ------------------------------------------------------------------------------------------


def state_at_0(cell: Cell) -> float | None:
    """The state of a cell of one state and one gate that has no retention gate, at pre-activation 0, from state 0;
    ``None`` for other cells.

    Where it is m, the states' mean adds ``W m`` to the pre-activations, which in a network is the same at every step.
    The theory draws W anew and does not have that.

    >>> from isornn.cells import Vanilla
    >>> state_at_0(Vanilla()), state_at_0(Vanilla("sigmoid"))
    (0.0, 0.5)
    """
    if len(cell.states) > 1 or len(cell.gates) > 1 or cell.input_enters_pointwise or roles_of(cell).gated:
        return None
    (gate,), (state,), zero = cell.gates, cell.states, torch.zeros(1, dtype=torch.float64)
    parameters = initial_parameters(cell)
    return float(cell.update(Values(**{state: zero}), Values(**{gate: zero}, **parameters), None)[state])


# -- a rectifier: `critical` of ReLU networks -------------------------------------------------------------------------


def rectifies(cell: Cell) -> bool:
    """Whether the new state scales with the one pre-activation, bends at 0 as a ReLU, and an identity matrix carries a
    positive state on as it is, beside a leak too.

    Nothing bounds the state of such a network: with the weight variance that is critical at infinite width a network
    of finite width, whose matrix is the same at every step, explodes or dies out over some hundred steps.

    >>> from isornn.cells import Vanilla
    >>> [rectifies(Vanilla(name)) for name in ("relu", "leaky_relu", "tanh", "identity")]
    [True, True, False, False]
    """
    if len(cell.states) > 1 or len(cell.gates) > 1 or cell.input_enters_pointwise or spread_parameters(cell):
        return False
    (gate,), (state,) = cell.gates, cell.states
    if not cell.gates[gate].state:
        return False
    h = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    u = torch.tensor([1.0, 2.0, -1.0, -2.0, 1.0], dtype=torch.float64)
    new = cell.update(Values(**{state: h}), Values(**{gate: u}, **initial_parameters(cell)), None)[state]
    up, twice_up, down, twice_down, carried = new.tolist()
    bends = twice_up == 2 * up and twice_down == 2 * down and up != -down
    return bends and math.isclose(carried, 1.0, rel_tol=1e-12)


def identity_matrices(cell: Cell, fixed: Mapping[str, Any], input: Input, length: float) -> Spec:
    """The spec of `critical` for a rectifier: each unit adds up its input, to a variance of 1 over the length.

    With a leak they stay smaller: at a leak of 0.1 their mean square after 100 steps is 0.02.

    Source: the identity is that of Le, Jaitly & Hinton 2015, the size of inputs this library's own.

    Raises:
        SpecError: a fixed field is the recurrent matrix.
    """
    (gate,) = cell.gates
    _refuse(fixed, [f"{gate}.weight_var", f"{gate}.ensemble"])
    drawn = Gate(weight_var=1.0, input_var=1 / length / mean_square(input), ensemble="identity")
    return _with(Spec(cell, {gate: drawn}, input, "fixed"), fixed)


# -- time scales in one range, or one for all: `isometric` ------------------------------------------------------------


def family_of(cell: Cell, input: Input, biases: Biases, fixed: Mapping[str, Any], length: float) -> Family:
    """Specs by their time scales (low, high); a cell without retention gate has one number, its weight variance.

    Several retained states have the same law of time scales, each by its own gate.

    Raises:
        SpecError: neither a bias nor a matrix on its state sets how long the cell retains; a fixed field is what does.
    """
    if not roles_of(cell).gated:
        free = [f"{gate}.weight_var" for gate, reads in cell.gates.items() if reads.state]
        if not free:
            reason = "it has neither a retention gate nor a matrix on its state, so no start sets its reach"
            raise SpecError("cell", cell.name, reason + own_start(cell))
        _refuse(fixed, free)
        template = _with(_template(roles_of(cell), cell, input, biases, length), fixed)
        return lambda low, high: _with(template, dict.fromkeys(free, high))
    template = _with(_template(_gated(cell), cell, input, biases, length), fixed)
    if biases == "fixed":
        return lambda low, high: _spread(template, BiasLaw("timescale", low, high), fixed)
    keep = retention_signs(cell)
    _refuse(fixed, [f"{gate}.bias_mean" for gate in keep])
    return lambda low, high: _with(template, {f"{gate}.bias_mean": bias_for(cell, gate, high) for gate in keep})


def bias_for(cell: Cell, gate: str, time_scale: float) -> float:
    """The bias at which the state that ``gate`` retains has this time scale."""
    law = BiasLaw("timescale", time_scale, time_scale, retention_signs(cell)[gate])
    return float(bias_of(cell, gate, law, torch.tensor(0.5, dtype=torch.float64)))


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
        # nothing found: its reach is too long, or its state grows because it remembers too well
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


def sight_of(analysis: Analysis, biases: Biases) -> Quantity:
    return analysis.reach if biases == "fixed" else analysis.xi


def by_weights(family: Family, aim: float, length: float) -> Spec:
    """Without a retention gate the weights carry all: chi of identical copies is exp(-1/aim)."""

    def excess(log_weight: float) -> float:
        chi = analyze(family(1.0, 10**log_weight), length=1).chi_1.number()
        return (math.inf if chi is None else chi) - math.exp(-1 / aim)

    low, high = -3.0, -3.0
    while excess(high) < 0 and high < 4:
        low, high = high, high + 0.25
    if low == high or excess(high) < 0:
        reason = f"with a weight variance from 1e-3 to 1e4 no fixed point sees {length:g} steps"
        raise SpecError("length", length, reason)
    return family(1.0, 10 ** brent(lambda x: min(excess(x), 10.0), low, high, xtol=1e-10))


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


def _aimed(family: Family, aim: float, length: float, biases: Biases, second_moment: float) -> Spec:
    """The member of the family whose carry alone has the reach ``aim``.

    Where units keep their biases, with the shortest time scale such that m1 is close to 1.
    """
    if not roles_of(family(1.0, 2.0).cell).gated:
        return by_weights(family, aim, length)

    def highest(low: float) -> float:
        return _longest(lambda high: carry_of(family(low, high), second_moment).reach(), low, aim)

    if biases == "redrawn":
        return family(SHORTEST, highest(SHORTEST))

    def excess(low: float) -> float:
        return (1 - carry_of(family(low, highest(low)), second_moment).mean) * length - ISOMETRY

    low = SHORTEST  # where m1 allows it
    if excess(low) > 0 > excess(aim):
        low = brent(excess, low, aim, rtol=1e-4)
    return family(low, highest(low))


def _longest(reach: Callable[[float], float], low: float, aim: float) -> float:
    """The longest time scale, given the shortest, at which the carry has the reach ``aim``."""

    def miss(log_spread: float) -> float:
        return math.log(max(reach(low + 10**log_spread), 1e-9) / aim)

    if miss(-6.0) >= 0 or miss(12.0) <= 0:
        return low if miss(-6.0) >= 0 else low + 1e12
    return low + 10 ** brent(miss, -6.0, 12.0, xtol=1e-9)


# -- what both share --------------------------------------------------------------------------------------------------


def _gated(cell: Cell) -> Roles:
    """The roles of a cell whose retention gates' biases set how long it retains."""
    if (reason := refusal(cell)) is not None:
        raise SpecError("cell", cell.name, reason)
    return roles_of(cell)


def _template(roles: Roles, cell: Cell, input: Input, biases: Biases, length: float) -> Spec:
    return Spec(cell, {name: _gate(roles, cell, name, input, length) for name in cell.gates}, input, biases)


def _gate(roles: Roles, cell: Cell, name: str, input: Input, length: float) -> Gate:
    """The rule for one gate, before its bias is set."""
    reads = cell.gates[name]
    second_moment = mean_square(input)
    if not roles.gated:
        faint = FAINT / length**1.5 / second_moment
        return Gate(input_var=faint * reads.input, ensemble="orthogonal" if reads.state else "gaussian")
    weight, seen, retains = WEAK, SEEN / second_moment, name in roles.retention
    if retains and name in roles.gates and roles.gates[name].kinks:
        weight, seen = min(WEAK, 0.01 / length**2), seen / length**2
    writes = name in (*roles.candidates, *roles.write)
    # Without an input, a gate tanh(u_o) would leave the output at tanh(0) = 0 (lstm_coupled), for good if no
    # recurrent matrix moves it (t_lstm).
    sees = writes or not (reads.state or retains) or silences(cell, name)
    output_only = len(cell.states) > 1 and name in roles.read_out and not writes
    return Gate(weight_var=(1.0 if output_only else weight) * reads.state, input_var=seen * (sees and reads.input))


def _spread(spec: Spec, law: BiasLaw, fixed: Mapping[str, Any]) -> Spec:
    """The law of time scales on every retention gate, and its mirror on write gates of their own."""
    keep, write = retention_signs(spec.cell), write_signs(spec.cell)
    _refuse(fixed, [f"{gate}.bias_law" for gate in keep])
    signs = keep | {gate: -sign for gate, sign in write.items() if f"{gate}.bias_law" not in fixed}
    return _with(spec, {f"{gate}.bias_law": BiasLaw(law.kind, law.low, law.high, sign) for gate, sign in signs.items()})


def _with(spec: Spec, values: Mapping[str, Any]) -> Spec:
    for path, value in values.items():
        spec = spec.replace(path, value)
    return spec


def _refuse(fixed: Mapping[str, Any], free: list[str]) -> None:
    for path in free:
        if path in fixed:
            raise SpecError(path, fixed[path], "it is what sets the length, so it cannot be fixed")
