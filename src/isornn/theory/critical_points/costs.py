"""What a start costs at a length: how far it is from each thing that is wanted of it, all in e-folds over T steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from isornn.cells import Cell, Spec, Values, drawn_parameters
from isornn.cells.activations import GATE_FUNCTIONS
from isornn.cells.polynomial import GateFunction, NotPolynomial, Polynomial, structure_of
from isornn.theory.analysis import analyze
from isornn.theory.carry import carry_of
from isornn.theory.critical_points.slow_map import slow_map_moments
from isornn.theory.population.engine import Effort, Population
from isornn.theory.population.sampled import population_analysis
from isornn.theory.quadrature.bias_nodes import BiasNodes, bias_nodes
from isornn.theory.quadrature.gate_law import GateLaw
from isornn.theory.quantities import Quantity, time_scale
from isornn.theory.reasons import NOT_CONVERGED, NOT_EXPONENTIAL, UNENDING

COSTS: Mapping[str, str] = {
    "sight": "ln(T / reach) where the reach is below T, else 0 (xi instead where biases are redrawn)",
    "isometry": "T |m1 - 1|",
    "variance": "T (m2 - m1^2)",
    "time_scales": "mean |ln| by which units' time scales are off U(1, T)",
    "saturation": "ln of the gates' largest slope over their rms slope",
}
"""The costs by name, and what each is."""

NO_UNIT_TIME = "the cell has no remember gate, so its units have no time scales of their own"
NO_GATES = "the cell has no gates"
GATED_READ = "what its gates read is gated itself, so their law does not follow from the state's moments"
UNBOUNDED = "some units' remember gate is entirely open or closed, so their time scale is infinite or 0"
CLOSED = "a gate's slope is 0 to rounding"

# Exploring takes many specs, so each gets few units; what is chosen is asked again with the engine's full effort.
_ROUGH = Effort(settle_steps=300, settle_tolerance=0.1, response_steps=256, response_tolerance=0.05, cohorts=2)
_UNITS, _REPLICATES = 256, 8
_HARD_KINKS = (-2.5, 2.5)


def costs(spec: Spec, length: float, *, generator: torch.Generator, careful: bool = False) -> dict[str, Quantity]:
    """The `COSTS` of a spec, or a batch of specs, at ``length`` steps.

    All are 0 at best and count in one unit, e-folds over T steps:

    - ``sight``: ``max(0, ln(T / reach))``; xi in place of the reach where biases are redrawn.
    - ``isometry``: ``T |m1 - 1|``. Over T steps the mean squared length of a gradient changes by a factor m1^T, about
      e to this power.
    - ``variance``: ``T (m2 - m1^2)``. Relative variances of the squared singular values of free factors add, so this
      is that of the Jacobian over T steps as long as m1 is about 1 and directions mix.
    - ``time_scales``: a unit's time scale is tau = -1/ln E[A | its bias], A = ds'/ds of the slow state. The cost is the
      Wasserstein distance of ln tau over units from ln U(1, T), the law that Tallec & Ollivier 2018 derive for events
      that may lie at any lag up to T: the mean number of e-folds by which a unit's time scale would have to change.
      In logarithms because time scales are compared by ratios; Wasserstein's because it exists for units that are all
      alike and tells how far they are off, where a Kolmogorov or Kullback-Leibler distance only says that they differ.
    - ``saturation``: ``-(1/2) ln(E sigma'^2 / max sigma'^2)``, averaged over the gates: by how many e-folds the rms
      gradient of the gates' own weights is below what it could be. A remember gate with time scale r costs ln(r / 4).

    For cells of several states m1 and m2 are those of the slow state's map (`slow_map_moments`), for the others those
    of the state-to-state Jacobian.

    Args:
        spec: conventions as in `Gate`.
        length: T.
        generator: randomness of the population engine.
        careful: ask sampled cells with the engine's full effort.

    Returns:
        by name, each of the batch's shape, with standard errors (0 by quadrature) and reasons where there is none.

    >>> from isornn.cells import Gate, Peephole
    >>> alike = Spec(Peephole(), {"f": Gate(bias_mean=4.6), "i": Gate(bias_mean=-4.6), "g": Gate(input_var=1.0)})
    >>> found = costs(alike, 50, generator=torch.Generator().manual_seed(0))
    >>> {name: round(cost.number(), 2) for name, cost in found.items()}
    {'sight': 0.0, 'isometry': 0.99, 'variance': 0.0, 'time_scales': 1.61, 'saturation': 2.16}
    """
    measured = _measured(spec, generator, careful)
    statistics = _GateStatistics.of(spec, length)
    return {
        "sight": _shortfall(measured.sight, length),
        "isometry": _times(length, measured.mean, 1.0),
        "variance": _times(length, measured.variance, 0.0),
        "time_scales": statistics.time_scales(measured.second_moment),
        "saturation": statistics.saturation(measured.second_moment),
    }


def sight_name(spec: Spec) -> str:
    """What says how far the spec sees."""
    return "reach" if spec.biases == "fixed" else "xi"


# -- what the engines say ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Measured:
    """Sight, moments of squared singular values that tell of isometry, and the second moment of what is read."""

    sight: Quantity
    mean: Quantity
    variance: Quantity
    second_moment: Quantity


def _measured(spec: Spec, generator: torch.Generator, careful: bool) -> _Measured:
    try:
        found = analyze(spec, length=1, engine="quadrature")
    except NotPolynomial:
        if len(spec.cell.states) > 1 and slow_state(spec.cell) is not None:
            return _by_slow_state(spec, generator, careful)
        sizes = {} if careful else {"units": _UNITS, "replicates": _REPLICATES}
        effort = None if careful else _ROUGH
        found = population_analysis(spec, 1, generator=generator, effort=effort, **sizes)
    sight = found.reach if spec.biases == "fixed" else found.xi
    return _Measured(sight, found.jacobian.mean, found.jacobian.variance, found.fixed_point.second_moment)


def _by_slow_state(spec: Spec, generator: torch.Generator, careful: bool) -> _Measured:
    """The same for a cell of several states, whose Jacobian from all states to all cannot be isometric."""
    sizes = {} if careful else {"units": _UNITS, "replicates": _REPLICATES}
    population = Population(spec, generator=generator, **sizes)
    stable = population.stable(1, Effort() if careful else _ROUGH)
    response, moments = stable.response, stable.stationary.moments
    unsettled = {NOT_CONVERGED: ~(stable.stationary.converged & stable.identical.converged)}

    def quantity(value: Tensor, stderr: Tensor, reasons: dict[str, Tensor | bool] | None = None) -> Quantity:
        return Quantity.of(value, stderr, {**unsettled, **(reasons or {})})

    if spec.biases == "fixed":
        sight = quantity(response.reach, response.stderr["reach"], {UNENDING: torch.isinf(response.reach)})
    else:
        sight = time_scale(quantity(response.chi, response.stderr["chi"], {NOT_EXPONENTIAL: ~response.exponential}))
    state = slow_state(spec.cell)
    assert state is not None
    mean, variance = slow_map_moments(population, stable.stationary, state, generator)
    return _Measured(
        sight=sight,
        mean=quantity(mean.value, mean.stderr),
        variance=quantity(variance.value, variance.stderr),
        second_moment=quantity(moments.second_moment, moments.stderr["second_moment"]),
    )


def _shortfall(sight: Quantity, length: float) -> Quantity:
    """``max(0, ln(T / sight))``; its error is 0 only where the sight is T or more for sure."""
    endless = dict(sight.reasons).get(UNENDING, torch.zeros_like(sight.defined))
    reasons = {reason: where for reason, where in sight.reasons if reason != UNENDING}
    value = torch.where(endless, torch.inf, sight.value)
    error = torch.where(endless, 0.0, sight.stderr / value)
    missing = math.log(length) - value.clamp(min=1e-300).log()
    return Quantity.of(missing.clamp(min=0.0), torch.where(missing > -2 * error, error, 0.0), reasons)


def _times(length: float, moment: Quantity, ideal: float) -> Quantity:
    return Quantity.of(length * (moment.value - ideal).abs(), length * moment.stderr, dict(moment.reasons))


# -- the gates' own law -----------------------------------------------------------------------------------------------


def slow_state(cell: Cell) -> str | None:
    """The state that enters its own update affinely, by one-gate factors; ``None`` where there is none."""
    try:
        return carry_of(Spec(cell)).state
    except NotPolynomial:
        return None


def gates_of(cell: Cell) -> tuple[str, ...]:
    """Pre-activations that the update squashes to (0, 1): what reaches a sigmoid or, where gates are hard, a clamp.

    A cell that names neither a remember nor a write gate has none: a logistic vanilla network's sigmoid makes content.

    >>> from isornn.cells import GRU, Vanilla
    >>> gates_of(GRU()), gates_of(Vanilla("sigmoid"))
    (('r', 'z'), ())
    """
    if cell.remember is None and cell.write is None:
        return ()
    one = torch.ones(1, dtype=torch.float64)
    u = Values(**{gate: one.clone().requires_grad_() for gate in cell.gates})
    leaves = {gate: getattr(u, gate) for gate in cell.gates}
    for name, value in drawn_parameters(cell, 1, torch.Generator().manual_seed(0)).items():
        setattr(u, name, value)
    states = Values(**dict.fromkeys(cell.states, 0.5 * one))
    with _Squashed() as squashed, torch.enable_grad():
        new = cell.update(states, u, 0.5 * one)
        for gate, reads in cell.gates.items():
            if reads.state:
                cell.read(gate, states, u)
        cell.output(Values(**new), u)
    found: set[str] = set()
    for argument in squashed.arguments:
        if argument.requires_grad:
            slopes = torch.autograd.grad(argument.sum(), list(leaves.values()), retain_graph=True, allow_unused=True)
            # A peephole that starts at 0 hands a gate's argument what does not move it.
            moved = {gate: slope for gate, slope in zip(leaves, slopes, strict=True) if slope is not None}
            found |= {gate for gate, slope in moved.items() if bool(slope != 0)}
    return tuple(gate for gate in cell.gates if gate in found)


class _Squashed(TorchFunctionMode):
    """Notes what is handed to a gate function while it is entered."""

    def __init__(self) -> None:
        self.arguments: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in ("sigmoid", "hardsigmoid", "clamp"):
            self.arguments.append(args[0])
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class _GateStatistics:
    """The two costs that follow from the law of the gates' pre-activations alone."""

    spec: Spec
    length: float
    nodes: BiasNodes
    carry: Polynomial | None
    gates: tuple[str, ...]

    @staticmethod
    def of(spec: Spec, length: float) -> _GateStatistics:
        state = slow_state(spec.cell) if spec.cell.remember is not None or spec.cell.write is not None else None
        carry = None if state is None else structure_of(spec.cell).update[state].part(state, 1)
        nodes = bias_nodes(spec, {name: _column(spec, gate.bias_var) for name, gate in spec.gates.items()})
        return _GateStatistics(spec, length, nodes, carry, gates_of(spec.cell))

    def time_scales(self, second_moment: Quantity) -> Quantity:
        """See `costs`."""
        if self.carry is None:
            return self._nothing(NO_UNIT_TIME)
        if any(self._reads_gated(gate) for gate in self.carry.gates):
            return self._nothing(GATED_READ)
        return self._with_error(self._distance, second_moment, UNBOUNDED)

    def saturation(self, second_moment: Quantity) -> Quantity:
        """See `costs`."""
        if not self.gates:
            return self._nothing(NO_GATES)
        if any(self._reads_gated(gate) for gate in self.gates):
            return self._nothing(GATED_READ)
        return self._with_error(self._flatness, second_moment, CLOSED)

    def _nothing(self, reason: str) -> Quantity:
        return Quantity.of(torch.zeros(self.spec.batch_shape, dtype=torch.float64), reasons={reason: True})

    def _reads_gated(self, gate: str) -> bool:
        """Whether the gate's matrix reads something else than the state itself."""
        cell = self.spec.cell
        if not cell.gates[gate].state:
            return False
        half = torch.full((1,), 0.5, dtype=torch.float64)
        states = Values(**{state: half.clone() for state in cell.states})
        u = Values(**dict.fromkeys(cell.gates, half), **drawn_parameters(cell, 1, torch.Generator().manual_seed(0)))
        return cell.read(gate, states, u) is not getattr(states, cell.states[0])

    def _with_error(self, statistic: Callable[[Tensor], Tensor], second_moment: Quantity, reason: str) -> Quantity:
        """The statistic over replicates of the bias nodes, and what the error of E[h^2] adds."""
        second = torch.nan_to_num(second_moment.value, 0.0, 0.0, 0.0)
        spread = torch.nan_to_num(second_moment.stderr, 0.0, 0.0, 0.0)
        values, moved = statistic(second), statistic(second + spread)
        count = values.shape[0]
        error = values.std(0) / count**0.5 if count > 1 else torch.zeros_like(values[0])
        value, error = values.mean(0), (error.square() + (moved - values).mean(0).square()).sqrt()
        shape = self.spec.batch_shape
        value, error = value.reshape(shape), error.reshape(shape)
        reasons: dict[str, Tensor | bool] = {NOT_CONVERGED: ~second_moment.defined, reason: ~torch.isfinite(value)}
        return Quantity.of(torch.nan_to_num(value, 0.0, 0.0, 0.0), torch.nan_to_num(error, 0.0, 0.0, 0.0), reasons)

    def _law(self, gate: str, second_moment: Tensor) -> GateLaw:
        """The gate's pre-activation in every representative unit, (replicates, batch, nodes)."""
        law, spec = self.spec.gates[gate], self.spec
        drive = _column(spec, law.input_var) + _column(spec, law.previous_input_var)
        variance = drive * _column(spec, spec.input.variance)
        variance = variance + _column(spec, law.recurrent_var) * second_moment.reshape(1, -1, 1)
        if spec.biases == "redrawn":
            variance = variance + _column(spec, law.bias_var)
        mean = _column(spec, law.bias_mean) + self.nodes.offset[gate]
        mean, variance = torch.broadcast_tensors(mean, variance)
        return GateLaw(mean, variance, _HARD_KINKS if _is_hard(spec.cell) else ())

    def _distance(self, second_moment: Tensor) -> Tensor:
        """(replicates, batch)."""
        assert self.carry is not None
        laws = {gate: self._law(gate, second_moment) for gate in self.carry.gates}
        kept = torch.zeros(1, 1, 1, dtype=torch.float64)
        for term in self.carry.terms:
            part = torch.as_tensor(term.coefficient, dtype=torch.float64)
            for gate, factors in term.factors.items():
                part = part * laws[gate].expectation(factors)
            kept = kept + part
        weight = self.nodes.weight.expand(kept.shape)
        if self.spec.biases == "redrawn":
            kept, weight = (kept * weight).sum(-1, keepdim=True), torch.ones(1, 1, 1, dtype=torch.float64)
        inside = (kept > 0) & (kept < 1)
        logs = -(-torch.where(inside, kept, 0.5).log()).log()
        return torch.where(inside.all(-1), distance_from_uniform(logs, weight, self.length), torch.inf)

    def _flatness(self, second_moment: Tensor) -> Tensor:
        """(replicates, batch)."""
        total = torch.zeros(1, 1, dtype=torch.float64)
        kinks = _HARD_KINKS if _is_hard(self.spec.cell) else ()
        call = GATE_FUNCTIONS["hard_sigmoid" if kinks else "sigmoid"]
        for gate in self.gates:
            slope = GateFunction(gate, call, kinks).derivative
            squares = self._law(gate, second_moment).expectation((slope, slope))
            steepest = slope.call(torch.zeros(1, dtype=torch.float64)).square()
            mean = (squares * self.nodes.weight).sum(-1) if squares.shape[-1] > 1 else squares[..., 0]
            total = total - (mean / steepest).log() / 2
        return total / len(self.gates)


def distance_from_uniform(log_times: Tensor, weight: Tensor, length: float) -> Tensor:
    """Wasserstein distance ``int_0^1 |F^-1(q) - ln(1 + (T-1) q)| dq`` of ln tau over units from ln U(1, T).

    Units that are all alike are one point mass, whose distance is exact. Several are the nodes of a rule for a smooth
    law: each stands for its share of the quantiles, and is compared with the target's mean over the same.

    Args:
        log_times: ln tau of each unit, units last.
        weight: the units' shares, sum 1 along the last axis.
        length: T > 1.

    >>> alike = torch.zeros(1, dtype=torch.float64)  # all units forget within one step
    >>> round(float(distance_from_uniform(alike, torch.ones(1), 100.0)), 4)  # 100 ln 100 / 99 - 1
    3.6517
    """

    def below(q: Tensor) -> Tensor:
        """``int_0^q ln(1 + (T-1) p) dp``."""
        y = 1 + (length - 1) * q
        return (y * y.log() - y + 1) / (length - 1)

    ordered, place = log_times.sort(-1)
    share = weight.expand(log_times.shape).gather(-1, place)
    high = share.cumsum(-1).clamp(max=1.0)
    low = (high - share).clamp(min=0.0)
    if ordered.shape[-1] > 1:
        return (ordered * (high - low) - (below(high) - below(low))).abs().sum(-1)
    crossing = ((ordered.clamp(max=700.0).exp() - 1) / (length - 1)).clamp(0.0, 1.0)
    under = ordered * crossing - below(crossing)
    over = below(torch.ones_like(crossing)) - below(crossing) - ordered * (1 - crossing)
    return (under + over).sum(-1)


def _is_hard(cell: Cell) -> bool:
    return getattr(cell, "gate", "sigmoid") == "hard_sigmoid"


def _column(spec: Spec, number: float | Tensor) -> Tensor:
    """(1, batch, 1)."""
    return torch.as_tensor(number, dtype=torch.float64).expand(spec.batch_shape).reshape(1, -1, 1)
