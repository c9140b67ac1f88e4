"""From a wanted length to hyper-parameters: the start that lets a cell see exactly that far."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from scipy.optimize import brentq

from isornn.cells import BiasLaw, Cell, Gate, Input, Spec, SpecError
from isornn.theory.analysis import SEED, analyze
from isornn.theory.carry import carry_of
from isornn.theory.costs import COSTS, costs, sight_name
from isornn.theory.preferred import LAW_ENDS, Objective, ParetoFront, Range, check_length, pareto_front
from isornn.theory.quadrature.structure import NotPolynomial
from isornn.theory.reasons import UNENDING
from isornn.theory.records import Analysis, Quantity

WEAK = 1e-5  # recurrent weight variance of gates that need no recurrence (Gilboa et al. 2019, D.4)
SEEN = 1.0  # variance that gates which see the input receive from it
FAINT = 0.3  # pre-activation variance, times sqrt(T), of a cell that has no gates
SHORTEST = 1.0  # time scale of the fastest units, as chrono's, where m1 allows it
ISOMETRY = 1.9  # 1 - m1 aimed at, in units of 1/T; the bound is 2
TOLERANCE = {"quadrature": 1e-4, "population": 5e-3}
ROUNDS = 12
TRIES = 8  # points of a front that are measured with full effort, best first, until one sees T steps
_UNIT_INPUT = Input()
Biases = Literal["redrawn", "fixed"]


@dataclass(frozen=True)
class Condition:
    """One thing asked of a critical point: what was wanted, what was found, and whether it holds."""

    name: str
    wanted: str
    found: str
    met: bool


@dataclass(frozen=True)
class Critical:
    """A spec that sees ``length`` steps: what it achieves, which conditions hold, and the line that applies it."""

    spec: Spec
    length: float
    analysis: Analysis
    conditions: tuple[Condition, ...]
    python: str


def critical(
    cell: Cell,
    length: float,
    *,
    fixed: Mapping[str, Any] | None = None,
    input: Input = _UNIT_INPUT,
    biases: Biases = "fixed",
    objective: Objective | None = None,
    generator: torch.Generator | None = None,
) -> Critical:
    """Hyper-parameters with reach = ``length`` (``biases="fixed"``) or xi = ``length`` (``"redrawn"``), to 1 %.

    What that leaves open is closed by this rule, each part of which ``fixed`` overrides:

    - recurrent weights are weak, weight_var 1e-5, but on a gate that only shapes the output (the LSTM's o): 1;
    - candidates and the write gate see the input with variance 1 (input_var = 1 / input variance), others do not;
    - ``biases="fixed"``: the remember gate's bias is ln U(low, high) per unit, a spread of time scales; a write gate
      of its own has the negative. ``high`` sets the reach; ``low`` is the smallest from 1 up for which m1 stays within
      2/T of 1.
      ``biases="redrawn"``: one remember bias for all units sets xi.
    - hard gates clip, which cuts slow units' memory short: what a hard remember gate hears is kept faint, weight_var at
      most 0.01 / T^2 and (where it also writes) input_var 1 / T^2 over the input variance.
    - a cell without a remember gate is set by its recurrent weights, orthogonal, with input_var 0.3 / T^1.5 over the
      input variance: it adds up over T steps to a pre-activation variance of 0.3 / sqrt(T), at which the squared
      singular values of diag(tanh') W have a variance of about 0.72 / T.

    Args:
        cell: the cell; it names its ``remember``, ``write`` and ``candidates`` gates.
        length: T >= 2, steps to bridge.
        fixed: spec fields by path that must have given values, as ``{"f.weight_var": 1.0}``.
        input: law of the input sequences.
        objective: what is preferred among the specs that see far enough, in place of the rule.
        generator: randomness of the population engine, and of the specs that are looked at for an objective; the line
            of Python is for the default one.

    Raises:
        SpecError: a length below 2, an unknown field, a fixed field that is what the solver has to set or that the
            objective varies, or a cell whose memory no start sets.

    Sources: Gilboa et al. 2019 section 5 and D.4 (weak weights, m1 and the variance of the squared singular values);
    Tallec & Ollivier 2018 (time scales uniform over units).

    >>> from isornn.cells import Peephole
    >>> point = critical(Peephole(), 100)
    >>> round(point.analysis.reach.number()), [c.met for c in point.conditions]
    (100, [True, True, True])
    >>> preferred = critical(Peephole(), 100, objective=Objective(), biases="redrawn")
    >>> preferred.analysis.xi.number() >= 100, [c.met for c in preferred.conditions]
    (True, [True, True, True])
    """
    check_length(length)
    fixed = dict(fixed or {})
    if objective is not None:
        return _preferred(cell, float(length), objective, fixed, input, biases, generator)
    family = _family(cell, input, biases, fixed, float(length))
    spec, analysis = _solve(family, float(length), biases, generator)
    return Critical(
        spec=spec,
        length=float(length),
        analysis=analysis,
        conditions=_conditions(analysis, float(length), biases),
        python=_line(length, fixed, input, biases),
    )


Family = Callable[[float, float], Spec]


def _family(cell: Cell, input: Input, biases: Biases, fixed: dict[str, Any], length: float) -> Family:
    """Specs by their time scales (low, high); a cell without remember gate has one number, its weight variance."""
    template = Spec(cell, {name: _gate(cell, name, input, length) for name in cell.gates}, input, biases)
    for path, value in fixed.items():
        template = template.replace(path, value)
    keep, write = cell.remember, cell.write
    kind = "hard_timescale" if _is_hard(cell) else "timescale"
    if keep is None:
        free = [f"{gate}.weight_var" for gate, reads in cell.gates.items() if reads.state]
        if not free:
            reason = "it has neither a remember gate nor a matrix on its state, so no start sets how far it sees"
            raise SpecError("cell", cell.name, reason)
        _refuse(fixed, free)
        return lambda low, high: _with(template, dict.fromkeys(free, high))
    if biases == "redrawn":
        _refuse(fixed, [f"{keep}.bias_mean"])
        return lambda low, high: template.replace(f"{keep}.bias_mean", _bias_for(kind, high))
    _refuse(fixed, [f"{keep}.bias_law"])

    def spread(low: float, high: float) -> Spec:
        spec = template.replace(f"{keep}.bias_law", BiasLaw(kind, low, high))
        if write not in (None, keep) and f"{write}.bias_law" not in fixed:
            spec = spec.replace(f"{write}.bias_law", BiasLaw(kind, low, high, -1))
        return spec

    return spread


def _bias_for(kind: str, time_scale: float) -> float:
    return float(BiasLaw(kind, time_scale, time_scale).quantile(torch.tensor(0.5, dtype=torch.float64)))


def _is_hard(cell: Cell) -> bool:
    return getattr(cell, "gate", "sigmoid") == "hard_sigmoid"


def _gate(cell: Cell, name: str, input: Input, length: float) -> Gate:
    """The rule for one gate, before its bias is set."""
    reads = cell.gates[name]
    variance = float(input.variance) or 1.0
    if cell.remember is None:
        faint = FAINT / length**1.5 / variance
        return Gate(input_var=faint * reads.input, ensemble="orthogonal" if reads.state else "gaussian")
    weight, seen = WEAK, SEEN / variance
    if _is_hard(cell) and name == cell.remember:
        weight, seen = min(WEAK, 0.01 / length**2), seen / length**2
    sees = name in (*cell.candidates, cell.write)
    output_only = len(cell.states) > 1 and not sees and name != cell.remember
    return Gate(weight_var=(1.0 if output_only else weight) * reads.state, input_var=seen * (sees and reads.input))


def _with(spec: Spec, values: Mapping[str, Any]) -> Spec:
    for path, value in values.items():
        spec = spec.replace(path, value)
    return spec


def _refuse(fixed: Mapping[str, Any], free: list[str]) -> None:
    for path in free:
        if path in fixed:
            raise SpecError(path, fixed[path], "it is what sets the length, so it cannot be fixed")


# -- by an objective --------------------------------------------------------------------------------------------------


def subspace(
    cell: Cell,
    length: float,
    *,
    fixed: Mapping[str, Any] | None = None,
    input: Input = _UNIT_INPUT,
    biases: Biases = "fixed",
) -> tuple[Spec, tuple[Range, ...]]:
    """What `critical`'s rule decides and an objective leaves open: the rule's other fields as a spec, and the ranges.

    - ``biases="fixed"``: the ends of the law of time scales, ``low`` from 1 to T and ``high`` from T to 32 T.
      ``"redrawn"``: the remember gate's bias, that of time scales T/8 to 32 T.
    - the remember gate's weight_var from the rule's to 1, and its input_var up to 1 / input variance.
    - a cell without a remember gate: its weight_var within 1/sqrt(T) of the critical value, relatively, and its
      input_var from 1/100 to 100 times the rule's.

    Fields in ``fixed`` are not varied. Arguments and errors as for `critical`.

    >>> from isornn.cells import Vanilla
    >>> [free.path for free in subspace(Vanilla(), 100)[1]]
    ['h.weight_var', 'h.input_var']
    """
    check_length(length)
    fixed = dict(fixed or {})
    family = _family(cell, input, biases, fixed, float(length))
    found = _free_weights(family, length) if cell.remember is None else _free_gate(family, length, cell.remember)
    spec, ranges = found
    return spec, tuple(free for free in ranges if free.path not in fixed)


def _free_gate(family: Family, length: float, keep: str) -> tuple[Spec, list[Range]]:
    spec = family(1.0, length)
    gate, kind = spec.gates[keep], "hard_timescale" if _is_hard(spec.cell) else "timescale"
    if spec.biases == "fixed":
        ranges = [Range(LAW_ENDS[0], 1.0, length, log=True), Range(LAW_ENDS[1], length, 32 * length, log=True)]
    else:
        ranges = [Range(f"{keep}.bias_mean", _bias_for(kind, length / 8), _bias_for(kind, 32 * length))]
    reads, variance = spec.cell.gates[keep], float(spec.input.variance) or 1.0
    if reads.state:
        ranges.append(Range(f"{keep}.weight_var", min(float(gate.weight_var) or WEAK, WEAK), 1.0, log=True))
    if reads.input:
        seen = 1e-4 / variance
        ranges.append(Range(f"{keep}.input_var", min(float(gate.input_var) or seen, seen), 1 / variance, log=True))
    return spec, ranges


def _free_weights(family: Family, length: float) -> tuple[Spec, list[Range]]:
    spec = _by_weights(family, length)
    near, ranges = 1 + length**-0.5, []
    for name, reads in spec.cell.gates.items():
        law = spec.gates[name]
        if reads.state:
            ranges.append(Range(f"{name}.weight_var", float(law.weight_var) / near, float(law.weight_var) * near, True))
        if reads.input and law.input_var:
            ranges.append(Range(f"{name}.input_var", float(law.input_var) / 100, float(law.input_var) * 100, True))
    return spec, ranges


def chosen(front: ParetoFront, objective: Objective, generator: torch.Generator | None = None) -> tuple[int, Analysis]:
    """Place and analysis of the point of ``front`` that `critical` takes.

    The best by the objective's score that, measured with full effort, still sees T steps; the one that sees farthest of
    those measured where none does.

    Raises:
        SpecError: the front is empty.
    """
    ranked = front.ranked(objective)
    if not ranked:
        raise SpecError("objective.ranges", [r.path for r in front.ranges], "no spec there has a fixed point")
    measured: list[tuple[float, int, Analysis]] = []
    for place in ranked[:TRIES]:
        analysis = analyze(front.spec_at(place), length=math.ceil(front.length), generator=generator)
        sees = _steps_seen(_sight(analysis, front.spec.biases))
        measured.append((sees, place, analysis))
        if sees >= front.length:
            return place, analysis
    return max(measured, key=lambda found: found[0])[1:]


def _steps_seen(sight: Quantity) -> float:
    """The sight as a number to compare: infinite where changes do not fade, 0 where there is none."""
    value = sight.number()
    if value is not None:
        return value
    return math.inf if sight.reason() == UNENDING else 0.0


def _preferred(
    cell: Cell,
    length: float,
    objective: Objective,
    fixed: dict[str, Any],
    input: Input,
    biases: Biases,
    generator: torch.Generator | None,
) -> Critical:
    spec, ranges = subspace(cell, length, fixed=fixed, input=input, biases=biases)
    for free in objective.ranges:
        if free.path in fixed:
            raise SpecError(free.path, fixed[free.path], "it is in the objective's ranges, so it cannot be fixed")
    front = pareto_front(
        spec,
        length,
        objective.ranges or ranges,
        counted=objective.counted,
        specs=objective.specs,
        generator=generator,
    )
    _, analysis = chosen(front, objective, generator)
    return Critical(
        spec=analysis.spec,
        length=length,
        analysis=analysis,
        conditions=_wishes(analysis, length, generator),
        python=_preferred_line(cell, length, objective, fixed, input, biases),
    )


def _wishes(analysis: Analysis, length: float, generator: torch.Generator | None) -> tuple[Condition, ...]:
    """The sight, and what the spec costs: of m1 and the variance as much as `critical` allows without an objective."""
    name, sight = sight_name(analysis.spec), _sight(analysis, analysis.spec.biases)
    generator = torch.Generator().manual_seed(SEED) if generator is None else generator
    found = costs(analysis.spec, length, generator=generator, careful=True)
    conditions = [Condition(f"{name} >= T", f"{length:g}", _shown(sight), _steps_seen(sight) >= length)]
    for cost, most in (("isometry", 2.0), ("variance", 2.0)):
        value = found[cost].number()
        wanted = f"{COSTS[cost]} at most {most:g}"
        conditions.append(Condition(cost, wanted, _shown(found[cost]), value is not None and value <= most))
    return tuple(conditions)


# -- solving ----------------------------------------------------------------------------------------------------------


def _solve(family: Family, length: float, biases: Biases, generator: torch.Generator | None) -> tuple[Spec, Analysis]:
    """Aim by the carry alone, measure with the full theory, correct the aim until it hits; the nearest is returned.

    The carry needs the state's second moment, which is measured with a first aim.
    """
    wanted = math.log(length)
    best: tuple[float, Spec, Analysis] | None = None
    aim, second_moment = wanted, 0.0
    tried: list[tuple[float, float]] = []
    for attempt in range(ROUNDS):
        spec = _aimed(family, math.exp(aim), length, biases, second_moment)
        analysis = analyze(spec, length=math.ceil(length), generator=generator)
        found = _sight(analysis, biases).number()
        # nothing found: it sees too far, or its state grows because it remembers too well
        height = math.inf if found is None else math.log(max(found, 1e-9))
        if best is None or abs(height - wanted) < best[0]:
            best = abs(height - wanted), spec, analysis
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
    return best[1], best[2]


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


def _sight(analysis: Analysis, biases: Biases) -> Quantity:
    return analysis.reach if biases == "fixed" else analysis.xi


def _aimed(family: Family, aim: float, length: float, biases: Biases, second_moment: float) -> Spec:
    """The member of the family whose carry alone has the reach ``aim``."""
    if family(1.0, 2.0).cell.remember is None:
        return _by_weights(family, aim)

    def reach(low: float, high: float) -> float:
        return carry_of(family(low, high), second_moment).reach()

    def highest(low: float) -> float:
        """The longest time scale, given the shortest, that has the wanted reach."""

        def miss(log_spread: float) -> float:
            return math.log(max(reach(low, low + 10**log_spread), 1e-9) / aim)

        if miss(-6.0) >= 0 or miss(12.0) <= 0:
            return low if miss(-6.0) >= 0 else low + 1e12
        return low + 10 ** float(brentq(miss, -6.0, 12.0, xtol=1e-9))

    if biases == "redrawn":
        return family(1.0, highest(1.0))

    def excess(low: float) -> float:
        return (1 - carry_of(family(low, highest(low)), second_moment).mean) * length - ISOMETRY

    low = SHORTEST
    if excess(low) > 0 > excess(aim):
        low = float(brentq(excess, low, aim, rtol=1e-4))
    return family(low, highest(low))


def _by_weights(family: Family, aim: float) -> Spec:
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
    return family(1.0, 10 ** float(brentq(lambda x: min(excess(x), 10.0), low, high, xtol=1e-10)))


# -- reporting --------------------------------------------------------------------------------------------------------


def _conditions(analysis: Analysis, length: float, biases: Biases) -> tuple[Condition, ...]:
    name, sight = sight_name(analysis.spec), _sight(analysis, biases)
    value = sight.number()
    conditions = [
        Condition(
            f"{name} = T",
            f"{length:g} to 1 %",
            _shown(sight),
            value is not None and abs(value / length - 1) <= 0.01,
        )
    ]
    if len(analysis.spec.cell.states) == 1:
        mean, variance = analysis.jacobian.mean, analysis.jacobian.variance
        m1, spread = mean.number(), variance.number()
        conditions += [
            Condition(
                "m1 = 1", f"within 2/T = {2 / length:.3g}", _shown(mean), m1 is not None and abs(m1 - 1) <= 2 / length
            ),
            Condition(
                "squared singular values alike",
                f"variance at most 2/T = {2 / length:.3g}",
                _shown(variance),
                spread is not None and spread <= 2 / length,
            ),
        ]
    else:
        slow = _slow_state(analysis.spec)
        curve = analysis.state_profiles[slow]
        kept = float(curve[-1] / curve[1])
        conditions.append(
            Condition(
                f"{slow} to {slow} over T steps",
                "keeps 1/4 to 1/2 of the first step's mean squared gain",
                f"{kept:.3g}",
                0.25 <= kept <= 0.5,
            )
        )
    return tuple(conditions)


def _slow_state(spec: Spec) -> str:
    try:
        return carry_of(spec).state
    except NotPolynomial:
        return spec.cell.states[-1]


def _shown(quantity: Quantity) -> str:
    value, error = quantity.number(), quantity.error()
    if value is None:
        return f"none ({quantity.reason()})"
    return f"{value:.6g}" + (f" +- {error:.1g}" if error else "")


def _line(length: float, fixed: Mapping[str, Any], input: Input, biases: Biases) -> str:
    return (
        f"isornn.init.critical_({', '.join(['module', f'length={_plain(length)}', *_options(fixed, input, biases)])})"
    )


def _preferred_line(
    cell: Cell, length: float, objective: Objective, fixed: Mapping[str, Any], input: Input, biases: Biases
) -> str:
    """The layers of `init` solve by the rule, so the spec is solved for by itself and then applied."""
    named = f"isornn.cells.{cell!r}" if type(cell).__module__.startswith("isornn.") else repr(cell)
    changed = [f for f in fields(objective) if getattr(objective, f.name) != f.default]
    weighed = ", ".join(f"{f.name}={_qualified(getattr(objective, f.name))}" for f in changed)
    options = [named, f"length={_plain(length)}", f"objective=isornn.Objective({weighed})"]
    options += _options(fixed, input, biases)
    return f"isornn.init.apply_(module, isornn.critical({', '.join(options)}).spec)"


def _options(fixed: Mapping[str, Any], input: Input, biases: Biases) -> list[str]:
    options = []
    if fixed:
        options.append(f"fixed={_qualified(dict(fixed))}")
    if input != _UNIT_INPUT:
        options.append(f"input=isornn.Input({_plain(float(input.variance))}, {_plain(float(input.correlation))})")
    if biases != "fixed":
        options.append(f"biases={biases!r}")
    return options


def _plain(number: float) -> str:
    """All its digits, and no more where it is whole."""
    return repr(int(number) if number == int(number) else number)


def _qualified(value: Any) -> str:
    """``value`` as Python reads it after ``import isornn``."""
    return repr(value).replace("BiasLaw(", "isornn.cells.BiasLaw(").replace("Range(", "isornn.theory.Range(")
