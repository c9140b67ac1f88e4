"""From a length to hyper-parameters: the start `critical`, and `isometric`, whose steps keep gradients' norms."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.quasirandom import SobolEngine

from isornn.cells import Cell, Input, Spec, SpecError
from isornn.cells.arguments import SEED, check_generator, seeded
from isornn.cells.catalogue import in_catalogue
from isornn.cells.graph_values import at_start
from isornn.cells.roles import RetainedState, roles_of
from isornn.cells.structure import NotPolynomial
from isornn.formatting import with_error_of
from isornn.modes import usual_modes
from isornn.theory.analysis import analyze
from isornn.theory.carry import Carry, carry_of
from isornn.theory.critical_points.choice import chosen, steps_seen, subspace
from isornn.theory.critical_points.costs import COSTS, costs, sight_name
from isornn.theory.critical_points.front import Objective, check_length, pareto_front
from isornn.theory.critical_points.leaks import refuse_leak
from isornn.theory.critical_points.python_line import objective_line, rule_line
from isornn.theory.critical_points.rule import (
    Biases,
    family_of,
    identity_matrices,
    over_octaves,
    rectifies,
    sight_of,
    solve,
    state_at_0,
)
from isornn.theory.inputs import centred, memory_limits
from isornn.theory.population.analysis import population_analysis
from isornn.theory.quadrature.bias_nodes import bias_nodes
from isornn.theory.quantity import Quantity
from isornn.theory.reasons import TheoryMissing
from isornn.theory.records import Analysis
from isornn.warn import warn

FARTHEST_SHARE = 1 / 3  # of 1/T, the largest share that the farthest step can have in a unit
_DRAWS = 512  # of the inputs to gates that do not factorise
_FOLLOWED = 2048  # steps of a small population
_FEW, _REPLICATES = 64, 4  # units of a rough population
_UNIT_INPUT = Input()
_SMALL_SHARE = 0.01  # of the second moment, of what the theory leaves out


@dataclass(frozen=True)
class Condition:
    """One thing asked of a start: what was wanted, what was found, and whether it holds.

    >>> from isornn.cells import GRU
    >>> [condition.name for condition in critical(GRU(), 100).conditions]
    [...]
    """

    name: str
    wanted: str
    found: str
    met: bool


Measured = tuple[Analysis, tuple[Condition, ...]]


@dataclass(frozen=True)
class Critical:
    """A spec for a length, and the line of Python that applies it to a module.

    ``analysis``, what the theory says of the spec, and ``conditions``, which of those that were asked for it meets, are
    computed when one of them is first read.

    >>> from isornn.cells import LSTM
    >>> found = critical(LSTM(), 500)
    >>> found.spec.gates["g"].input_var, all(condition.met for condition in found.conditions)
    (4.0, True)
    """

    spec: Spec
    length: float
    python: str
    measure: Callable[[], Measured] = field(repr=False, compare=False)

    @property
    def analysis(self) -> Analysis:
        return self._measured[0]

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return self._measured[1]

    def probably_holds(self) -> bool:
        """Whether the reach is from T/2 to 2 T by what takes no analysis: what the gates keep of the state.

        In a cell of one's own the first state may saturate or forget what another keeps, so there it also is by a small
        population, as far as that is followed: where it gives no number, an analysis is needed.
        """
        holds = self._holds_by_gates()
        if not holds or in_catalogue(type(self.spec.cell)):
            return holds
        try:
            steps = min(math.ceil(2 * self.length), _FOLLOWED)
            rough = population_analysis(self.spec, steps, generator=seeded(None), units=_FEW, replicates=_REPLICATES)
        except TheoryMissing:
            return True
        reach = rough.reach.number()
        return 2 * self.length > _FOLLOWED if reach is None else self._is_near(reach)

    def _holds_by_gates(self) -> bool:
        limits = memory_limits(self.spec)
        try:
            found = [carry_of(spec) for spec in limits]
        except NotPolynomial:
            found = [_sampled_carry(spec, state) for state in roles_of(self.spec.cell).gated for spec in limits]
        return bool(found) and all(self._is_near(carry.reach()) for carry in found)

    def _is_near(self, reach: float) -> bool:
        return self.length / 2 <= reach <= 2 * self.length

    def warn_of_unmet_conditions(self) -> None:
        """A warning that names the conditions which do not hold, if any, or says why that is not known."""
        start = f"{self.spec.cell.name} at length {self.length:g}"
        try:
            unmet = [f"{c.name}: {c.wanted}, found {c.found}" for c in self.conditions if not c.met]
        except TheoryMissing as reason:
            warn(f"how far {start} sees is not known: {reason}")
            return
        if unmet:
            warn(f"{start} does not meet {'; '.join(unmet)}")

    @functools.cached_property
    def _measured(self) -> Measured:
        return self.measure()


@usual_modes()
def critical(
    cell: Cell,
    length: float,
    *,
    fixed: Mapping[str, Any] | None = None,
    input: Input = _UNIT_INPUT,
    generator: torch.Generator | None = None,
) -> Critical:
    """The start for sequences of ``length`` steps: what `isornn.init.critical_` draws.

    ``length`` is the reach that units' biases alone give: without input to the retention gate and without recurrent
    weights, the mean square of a small change of the state is 1/e of its value after one step exactly T steps after
    that. An input to that gate shortens it. At the variance that the rule gives it, the reach of the whole cell
    (``analysis.reach``) is 1.03 T for an LSTM and 0.61 T for a GRU, whose retention gate is also its write gate;
    ``conditions`` has the number and says whether it lies between T/2 and 2 T. The norm of the change, rather than its
    square, is then down to ``e^(-1/2)``, 61 %.

    The rule, each part of which ``fixed`` overrides:

    - the retention gate's bias is ``ln r`` for each unit, that of a separate write gate its negative. A third of the
      units has ``ln r ~ U(0, ln high)``, as many in each octave of time scales; the others have r = high, which follows
      from the length alone: 2.5 T at T = 10, 2.7 T at 100, 2.9 T at 1000;
    - recurrent weights are weak, weight_var 1e-5, but on a gate that only shapes the output (the LSTM's o): 1;
    - candidates see the input with variance 4 (input_var = 4 / E x^2), of a cell without a write gate, whose state adds
      them up, 4 / T; the write gate sees it with 1, others do not;
    - a hard retention gate clips, which cuts slow units' memory short: its weight_var is at most 0.01 / T^2 and (where
      it also writes) its input_var 1 / (T^2 E x^2).

    A cell without a retention gate has no time scales of units: its start is that of `isometric`. Of a ReLU network,
    whose states nothing bounds, it is identity matrices and input_var = 1 / (T E x^2): each unit adds up its input less
    its mean, to a variance of 1 after T steps. Of identity matrices the theory says nothing, and ``conditions`` are
    none.

    Args:
        cell: the cell; what its gates are for is derived from its update. A gate that retains by 1 - f gets the
            negative bias; several retained states have a retention gate each, all with the same law.
        length: T from 2 to 1e6, steps to bridge.
        fixed: spec fields by path that must have given values, as ``{"f.weight_var": 1.0}``.
        input: law of the input sequences. The rule reads its second moment only.
        generator: randomness of the population engine, where ``analysis`` needs it.

    Returns:
        the spec at once; ``analysis`` and ``conditions`` when they are read, after up to some seconds.

    Raises:
        SpecError: an argument of another type or out of range, an unknown field, a fixed field that is what sets the
            length, or a cell whose memory no start sets, as one with a leak and no gate; names the field, the value and
            what is allowed.

    Source: this library's own; derived and compared with others in docs/initialisation.md.

    >>> from isornn.cells import Peephole
    >>> point = critical(Peephole(), 100)
    >>> law = point.spec.gates["f"].bias_law
    >>> law.kind, law.low, round(law.high)
    ('capped_timescale', 1.0, 274)
    >>> round(point.analysis.reach.number()), [condition.met for condition in point.conditions]
    (100, [True, True])
    """
    fixed = _checked(cell, length, fixed, input, generator)
    line = rule_line("critical", float(length), fixed, input)
    if rectifies(cell):
        spec = identity_matrices(cell, fixed, input, float(length))
        return Critical(spec, float(length), line, lambda: (analyze(spec, length=math.ceil(length)), ()))
    if not roles_of(cell).gated:
        refuse_leak(cell)
        solved = _solved(cell, float(length), fixed, replace(input, autocorrelation=0.0), "fixed", generator, line)
        return _on_input(solved, input, generator) if input.remembers else solved
    spec = over_octaves(cell, float(length), fixed, input)
    return Critical(spec, float(length), line, functools.partial(_over_octaves, spec, float(length), generator))


@usual_modes()
def isometric(
    cell: Cell,
    length: float,
    *,
    fixed: Mapping[str, Any] | None = None,
    input: Input = _UNIT_INPUT,
    biases: Biases = "fixed",
    objective: Objective | None = None,
    generator: torch.Generator | None = None,
) -> Critical:
    """Hyper-parameters with reach = ``length`` (``biases="fixed"``) or xi = ``length`` ("redrawn"), to 1 %, whose
    one-step Jacobian is nearly an isometry.

    Here the reach is that of the whole cell on its input. Every unit is slow, so that m1, the mean squared singular
    value of the Jacobian, lies within 2/T of 1; `critical`, which keeps some units fast, trains better.

    What that leaves open is closed by this rule, each part of which ``fixed`` overrides:

    - weak recurrent weights and hard gates as for `critical`; candidates and the write gate see the input with
      variance 1 (input_var = 1 / input variance), others do not;
    - ``biases="fixed"``: the retention gate's bias is ln U(low, high) per unit; a write gate of its own has the
      negative. ``high`` sets the reach; ``low`` is the smallest from 1 up for which m1 stays within 2/T of 1.
      ``biases="redrawn"``: one retention bias for all units sets xi.
    - a cell without a retention gate is set by its recurrent weights, orthogonal, with input_var 0.3 / T^1.5 over the
      input variance: it adds up over T steps to a pre-activation variance of 0.3 / sqrt(T), at which the squared
      singular values of diag(tanh') W have a variance of about 0.72 / T.

    Args:
        cell, length, fixed, input: as for `critical`.
        biases: ``"fixed"``, drawn once for each unit, or ``"redrawn"``, one bias for all units.
        objective: experimental, and of no measured use in training: which spec is preferred of those with a
            reach of T, in place of the rule.
        generator: randomness of the population engine, and of the specs that are looked at for an objective; the line
            of Python is for the default one.

    Raises:
        SpecError: as `critical`; a fixed field that the objective varies.

    Sources: Gilboa et al. 2019 section 5 and D.4 (weak weights, m1 and the variance of the squared singular values);
    Tallec & Ollivier 2018 (time scales uniform over units).

    >>> from isornn.cells import Peephole
    >>> point = isometric(Peephole(), 100)
    >>> round(point.analysis.reach.number()), [condition.met for condition in point.conditions]
    (100, [True, True, True])
    >>> preferred = isometric(Peephole(), 100, objective=Objective(), biases="redrawn")
    >>> preferred.analysis.xi.number() >= 100, [condition.met for condition in preferred.conditions]
    (True, [True, True, True])
    """
    fixed = _checked(cell, length, fixed, input, generator)
    if input.remembers:
        allowed = "it must be 0: this rule is for inputs that are independent over time; isornn.critical has a start"
        raise SpecError("input.autocorrelation", input.autocorrelation, allowed)
    if biases not in ("redrawn", "fixed"):
        raise SpecError("biases", biases, 'it must be "redrawn" or "fixed"')
    if objective is None:
        line = rule_line("isometric", float(length), fixed, input, biases)
        return _solved(cell, float(length), fixed, input, biases, generator, line)
    if not isinstance(objective, Objective):
        raise SpecError("objective", objective, "it must be an isornn.Objective or None")
    return _preferred(cell, float(length), objective, fixed, input, biases, generator)


def _checked(cell: Any, length: Any, fixed: Any, input: Any, generator: Any) -> dict[str, Any]:
    """``fixed`` as a dict, once all are of their types."""
    if not isinstance(cell, Cell):
        raise SpecError("cell", cell, "it must be a cell, as isornn.cells.LSTM()")
    if not cell.pointwise:
        raise SpecError(
            "cell", cell.name, "it is not pointwise, so that it has no theory; isornn.init.orthogonal_ sets its layer"
        )
    check_length(length)
    if fixed is not None and not (isinstance(fixed, Mapping) and all(isinstance(path, str) for path in fixed)):
        raise SpecError("fixed", fixed, 'it must be values by field, as {"f.weight_var": 1.0}')
    if not isinstance(input, Input):
        raise SpecError("input", input, "it must be an isornn.Input; Input.of(batch) makes one of a tensor")
    if Spec(cell, {}, input, "fixed").batch_shape:  # which checks the numbers
        raise SpecError("input", input, "it must be one law, not a batch")
    check_generator(generator)
    return dict(fixed or {})


def _solved(
    cell: Cell,
    length: float,
    fixed: Mapping[str, Any],
    input: Input,
    biases: Biases,
    generator: torch.Generator | None,
    line: str,
) -> Critical:
    try:
        analysis = solve(family_of(cell, input, biases, fixed, length), length, biases, generator)
    except NotPolynomial as reason:
        raise SpecError("cell", cell.name, f"{reason}; isornn.critical has a start for it") from None
    return _known(analysis, length, _near_isometry(analysis, length, biases), line)


def _on_input(solved: Critical, input: Input, generator: torch.Generator | None) -> Critical:
    """The spec that was solved for inputs independent over time, measured on ``input``."""
    spec, length = replace(solved.spec, input=input), solved.length

    def measured() -> Measured:
        analysis = analyze(spec, length=math.ceil(length), generator=generator)
        return analysis, _near_isometry(analysis, length, "fixed")

    return Critical(spec, length, solved.python, measured)


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
    ranges = objective.ranges or ranges
    front = pareto_front(spec, length, ranges, counted=objective.counted, specs=objective.specs, generator=generator)
    _, analysis = chosen(front, objective, generator)
    line = objective_line(cell, length, objective, fixed, input, biases)
    return _known(analysis, length, _preferences(analysis, length, generator), line)


def _known(analysis: Analysis, length: float, conditions: tuple[Condition, ...], line: str) -> Critical:
    return Critical(analysis.spec, length, line, lambda: (analysis, conditions))


def _sampled_carry(spec: Spec, state: RetainedState) -> Carry:
    """The carry of a cell whose gates do not factorise, on identical inputs, by quasi-random draws of the inputs."""
    spec = centred(spec)
    kept = {name: torch.tensor(float(gate.bias_var), dtype=torch.float64) for name, gate in spec.gates.items()}
    nodes = bias_nodes(spec, {name: value.reshape(1, 1, 1) for name, value in kept.items()})
    draws = SobolEngine(len(state.retention), scramble=True, seed=SEED).draw(_DRAWS, dtype=torch.float64)
    u = {}
    for name, normal in zip(state.retention, torch.special.ndtri(draws.clamp(1e-12, 1 - 1e-12)).T, strict=True):
        gate = spec.gates[name]
        variance = float(gate.input_var + gate.previous_input_var) * float(spec.input.variance)
        u[name] = float(gate.bias_mean) + nodes.offset[name][0, 0][:, None] + math.sqrt(variance) * normal
    retained = state.coefficient(at_start(spec.cell, u)).square()
    rates = retained.expand(len(nodes.weight), _DRAWS).mean(-1)
    return Carry(state.state, rates, nodes.weight)


# -- conditions -------------------------------------------------------------------------------------------------------


@usual_modes()
def _over_octaves(spec: Spec, length: float, generator: torch.Generator | None) -> Measured:
    """The slow end is set for gates without input; the reach and the farthest step's share where they have one."""
    analysis = analyze(spec, length=math.ceil(length), generator=generator)
    reach = analysis.reach.number()
    try:
        share, error = _first_share(spec, length, analysis.fixed_point.second_moment)
        found = with_error_of(share, error) if error else f"{share:.4g} (exact)"
    except NotPolynomial as error:
        share, found = math.nan, f"none ({error})"
    return analysis, (
        Condition(
            "reach = T within a factor 2",
            f"{length / 2:g} to {2 * length:g}",
            _shown(analysis.reach),
            reach is not None and length / 2 <= reach <= 2 * length,
        ),
        Condition("T times the first step's share of the state", "1/3 to 1, the most", found, share >= FARTHEST_SHARE),
    )


def _first_share(spec: Spec, length: float, second_moment: Quantity) -> tuple[float, float]:
    """T times the share that the first of T steps has in a unit, mean over units, and its standard error: that of the
    state's second moment, which is all that is sampled."""
    known, error = second_moment.number() or 0.0, second_moment.error() or 0.0
    share, moved = (length * carry_of(spec, q).share_of(length - 1, length) for q in (known, known + error))
    return share, abs(moved - share)


def _near_isometry(analysis: Analysis, length: float, biases: Biases) -> tuple[Condition, ...]:
    name, sight = sight_name(analysis.spec), sight_of(analysis, biases)
    value = sight.number()
    met = value is not None and abs(value / length - 1) <= 0.01
    conditions = [Condition(f"{name} = T", f"{length:g} to 1 %", _shown(sight), met)]
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
        middle, q = state_at_0(analysis.spec.cell), analysis.fixed_point.second_moment.number()
        if middle and not (q is not None and middle**2 <= _SMALL_SHARE * q):
            wanted = "0; W times another is a bias that the theory leaves out, with which a network sees far less"
            conditions.append(Condition("state at pre-activation 0", wanted, f"{middle:.4g}", False))
    else:
        for slow in _slow_states(analysis.spec.cell):
            curve = analysis.state_profiles.get(slow)
            name, wanted = f"{slow} to {slow} over T steps", "keeps 1/4 to 1/2 of the first step's mean squared gain"
            if curve is None or not curve[1] > 0:
                conditions.append(Condition(name, wanted, f"none (the response of {slow} is unknown, or 0)", False))
                continue
            kept, error = (
                float(known[slow][-1] / curve[1]) for known in (analysis.state_profiles, analysis.state_profiles_stderr)
            )
            conditions.append(Condition(name, wanted, with_error_of(kept, error), 0.25 <= kept <= 0.5))
    return tuple(conditions)


def _preferences(analysis: Analysis, length: float, generator: torch.Generator | None) -> tuple[Condition, ...]:
    """The sight, and what the spec costs: of m1 and the variance as much as the rule allows."""
    name, sight = sight_name(analysis.spec), sight_of(analysis, analysis.spec.biases)
    generator = seeded(generator)
    found = costs(analysis.spec, length, generator=generator, careful=True)
    conditions = [Condition(f"{name} >= T", f"{length:g}", _shown(sight), steps_seen(sight) >= length)]
    for cost, most in (("isometry", 2.0), ("variance", 2.0)):
        value = found[cost].number()
        wanted = f"{COSTS[cost]} at most {most:g}"
        conditions.append(Condition(cost, wanted, _shown(found[cost]), value is not None and value <= most))
    return tuple(conditions)


def _slow_states(cell: Cell) -> tuple[str, ...]:
    """The states that retain by gates; the last state where there is none."""
    return tuple(state.state for state in roles_of(cell).gated) or cell.states[-1:]


def _shown(quantity: Quantity) -> str:
    value = quantity.number()
    return f"none ({quantity.reason()})" if value is None else with_error_of(value, quantity.error())
