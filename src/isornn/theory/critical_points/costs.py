"""What a start costs at a length: how far it is from each thing that is wanted of it, all in e-folds over T steps."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isornn.cells import Spec, spread_parameters
from isornn.cells.polynomial import GateFunction, Polynomial
from isornn.cells.roles import Squash, roles_of
from isornn.cells.structure import NotPolynomial, structure_of
from isornn.cells.trace import graph_of
from isornn.modes import usual_modes
from isornn.theory.analysis import analyze
from isornn.theory.inputs import centred, reads_memory
from isornn.theory.matrix_law import fourth_cumulant
from isornn.theory.population.analysis import population_analysis
from isornn.theory.population.engine import Effort, Population, Stationary
from isornn.theory.population.jacobian import formed_from, linearise
from isornn.theory.population.units import draw_gates, next_inputs, variates
from isornn.theory.quadrature.bias_nodes import BiasNodes, bias_nodes
from isornn.theory.quadrature.gate_law import GateLaw
from isornn.theory.quadrature.smoothness import smoothness_of
from isornn.theory.quantity import Quantity, jackknife, over_replicates, pooled, time_scale
from isornn.theory.reasons import BEYOND, NOT_CONVERGED, NOT_EXPONENTIAL, PAIR_TOO_SOON, UNENDING

COSTS: Mapping[str, str] = {
    "sight": "ln(T / reach) where the reach is below T, else 0 (xi instead where biases are redrawn)",
    "isometry": "T |m1 - 1|",
    "variance": "T (m2 - m1^2)",
    "time_scales": "mean |ln| by which units' time scales are off U(1, T)",
    "saturation": "ln of the gates' largest slope over their rms slope",
}
"""The costs by name, and what each is."""

# Exploring takes many specs, so each gets few units; what is chosen is asked again with the engine's full effort.
_ROUGH = Effort(settle_steps=300, settle_tolerance=0.1, response_steps=256, response_tolerance=0.05, cohorts=2)
_UNITS, _REPLICATES = 256, 8
_SLOW_STEPS = 8  # independent steps that the moments are averaged over
NO_UNIT_TIME = "the cell has no retention gate, so its units have no time scales of their own"
CORRELATED_RETENTION = "inputs are correlated over time, so what a unit keeps in one step does not say for how long"
MIXED_RETENTION = "what the state keeps of itself is no sum of products of one-gate functions"
UNITS_DIFFER = "its units start with different parameters, so no one law holds for all of them"
GATED_READ = "what its gates read is gated itself, so their law does not follow from the state's moments"
UNBOUNDED = "some units' retention gate is entirely open or closed, so their time scale is infinite or 0"
SEES_NOTHING = "infinite: nothing is left of a displacement one step later, so the reach is 0"
CLOSED = "a gate's slope is 0 to rounding"


@usual_modes()
def costs(spec: Spec, length: float, *, generator: torch.Generator, careful: bool = False) -> dict[str, Quantity]:
    """The `COSTS` of a spec, or a batch of specs, at ``length`` steps.

    All are 0 at best and count in one unit, e-folds over T steps:

    - ``sight``: ``max(0, ln(T / reach))``; xi in place of the reach where biases are redrawn. Infinite at a reach of 0.
    - ``isometry``: ``T |m1 - 1|``. Over T steps the mean squared length of a gradient changes by a factor m1^T, about
      e to this power.
    - ``variance``: ``T (m2 - m1^2)``. Relative variances of the squared singular values of free factors add, so this
      is that of the Jacobian over T steps as long as m1 is about 1 and directions mix.
    - ``time_scales``: a unit's time scale is tau = -1/ln E[A | its bias], A = ds'/ds of the slow state. The cost is the
      Wasserstein distance of ln tau over units from ln U(1, T), the law that Tallec & Ollivier 2018 derive for events
      that may lie at any lag up to T: the mean number of e-folds by which a unit's time scale would have to change.
      In logarithms because time scales are compared by ratios; Wasserstein's because it exists for units that are all
      alike and measures how far they are off, where a Kolmogorov or Kullback-Leibler distance only says they differ.
    - ``saturation``: ``-(1/2) ln(E sigma'^2 / max sigma'^2)``, averaged over the gates: by how many e-folds the rms
      gradient of the gates' own weights is below what it could be. A retention gate with time scale r costs ln(r / 4).

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
    statistics = GateStatistics.of(spec, length)
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
        roles = roles_of(spec.cell)
        retained = roles.gated or roles.retained
        if len(spec.cell.states) > 1 and retained:
            return _by_slow_state(spec, retained[0].state, generator, careful)
        sizes = {} if careful else {"units": _UNITS, "replicates": _REPLICATES}
        effort = None if careful else _ROUGH
        found = population_analysis(spec, 1, generator=generator, effort=effort, **sizes)
    sight = found.reach if spec.biases == "fixed" else found.xi
    return _Measured(sight, found.jacobian.mean, found.jacobian.variance, found.fixed_point.second_moment)


def _by_slow_state(spec: Spec, state: str, generator: torch.Generator, careful: bool) -> _Measured:
    """The same for a cell of several states, whose Jacobian from all states to all cannot be isometric."""
    sizes = {} if careful else {"units": _UNITS, "replicates": _REPLICATES}
    population = Population(spec, generator=generator, **sizes)
    stable = population.stable(1, Effort() if careful else _ROUGH)
    response, moments = stable.response, stable.stationary.moments
    unsettled = {NOT_CONVERGED: ~(stable.stationary.converged & stable.identical.converged)}

    def quantity(value: Tensor, stderr: Tensor, reasons: dict[str, Tensor | bool] | None = None) -> Quantity:
        return Quantity.of(value, stderr, {**unsettled, **(reasons or {})})

    apart: dict[str, Tensor | bool] = {PAIR_TOO_SOON: ~stable.pair_settled}
    if spec.biases == "fixed":
        sight = quantity(response.reach, response.stderr["reach"], apart | response.without_reach)
    else:
        chi = quantity(response.chi, response.stderr["chi"], {**apart, NOT_EXPONENTIAL: ~response.exponential})
        sight = time_scale(chi)
    mean, variance = slow_map_moments(population, stable.stationary, state, generator)
    return _Measured(
        sight=sight,
        mean=quantity(mean.value, mean.stderr),
        variance=quantity(variance.value, variance.stderr),
        second_moment=quantity(moments.second_moment, moments.stderr["second_moment"]),
    )


def _shortfall(sight: Quantity, length: float) -> Quantity:
    """``max(0, ln(T / sight))``, infinite at a sight of 0.

    Its error is 0 only where the sight is T or more for sure.
    """
    infinite = [where for reason, where in sight.reasons if reason in (BEYOND, UNENDING)]
    endless = torch.stack([torch.zeros_like(sight.defined), *infinite]).any(0)
    reasons = {reason: where for reason, where in sight.reasons if reason not in (BEYOND, UNENDING)}
    value = torch.where(endless, torch.inf, sight.value)
    error = torch.where(endless, 0.0, sight.stderr / value)
    missing = math.log(length) - value.log()
    return Quantity.of(
        missing.clamp(min=0.0), torch.where(missing > -2 * error, error, 0.0), reasons | {SEES_NOTHING: value <= 0}
    )


def _times(length: float, moment: Quantity, ideal: float) -> Quantity:
    return Quantity.of(length * (moment.value - ideal).abs(), length * moment.stderr, dict(moment.reasons))


# -- of the gates' law alone -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GateStatistics:
    """The two costs that follow from the law of the gates' pre-activations alone."""

    spec: Spec
    laws: Spec
    length: float
    nodes: BiasNodes

    @staticmethod
    def of(spec: Spec, length: float) -> GateStatistics:
        laws = centred(spec)
        nodes = bias_nodes(laws, {name: _column(spec, gate.bias_var) for name, gate in laws.gates.items()})
        return GateStatistics(spec, laws, length, nodes)

    def time_scales(self, second_moment: Quantity) -> Quantity:
        """See `costs`."""
        roles = roles_of(self.spec.cell)
        if not roles.gated:
            return self._nothing(NO_UNIT_TIME)
        state = roles.gated[0].state
        if self._spread(graph_of(self.spec.cell).update[state]):
            return self._nothing(UNITS_DIFFER)
        carry = structure_of(self.spec.cell).update[state].part(state, 1)
        if carry.obstacle():
            return self._nothing(MIXED_RETENTION)
        if self._reads_gated(carry.gates):
            return self._nothing(GATED_READ)
        if reads_memory(self.spec, carry.gates):
            return self._nothing(CORRELATED_RETENTION)
        return self._with_error(lambda second: self._distance(carry, second), second_moment, UNBOUNDED)

    def saturation(self, second_moment: Quantity) -> Quantity:
        """See `costs`."""
        roles = roles_of(self.spec.cell)
        gates = roles.gates
        if roles.no_gates is not None:
            return self._nothing(roles.no_gates)
        if any(self._spread(squash.node) for squash in gates.values()):
            return self._nothing(UNITS_DIFFER)
        if self._reads_gated(gates):
            return self._nothing(GATED_READ)
        return self._with_error(lambda second: self._flatness(gates, second), second_moment, CLOSED)

    def _nothing(self, reason: str) -> Quantity:
        return Quantity.of(torch.zeros(self.spec.batch_shape, dtype=torch.float64), reasons={reason: True})

    def _spread(self, node: Any) -> bool:
        """Whether a node of the cell's graph depends on parameters that units start with differently."""
        laws = spread_parameters(self.spec.cell)
        return any(leaf.kind == "parameter" and leaf.name in laws for leaf in graph_of(self.spec.cell).depends_on(node))

    def _reads_gated(self, gates: Iterable[str]) -> bool:
        """Whether one of the gates' matrices reads something else than the state itself."""
        return any(gate in graph_of(self.spec.cell).gated_reads for gate in gates)

    def _with_error(self, statistic: Callable[[Tensor], Tensor], second_moment: Quantity, reason: str) -> Quantity:
        """The statistic over replicates of the bias nodes, and what the error of E[h^2] adds."""
        second = torch.nan_to_num(second_moment.value, 0.0, 0.0, 0.0)
        spread = torch.nan_to_num(second_moment.stderr, 0.0, 0.0, 0.0)
        try:
            values, moved = statistic(second), statistic(second + spread)
        except NotPolynomial as unresolved:  # by any grid
            return self._nothing(str(unresolved))
        value, error = over_replicates(values)
        error = (error.square() + (moved - values).mean(0).square()).sqrt()
        shape = self.spec.batch_shape
        value, error = value.reshape(shape), error.reshape(shape)
        reasons: dict[str, Tensor | bool] = {NOT_CONVERGED: ~second_moment.defined, reason: ~torch.isfinite(value)}
        return Quantity.of(torch.nan_to_num(value, 0.0, 0.0, 0.0), torch.nan_to_num(error, 0.0, 0.0, 0.0), reasons)

    def _law(self, gate: str, second_moment: Tensor, functions: Iterable[GateFunction]) -> GateLaw:
        """The gate's pre-activation in every representative unit, (replicates, batch, nodes), for such functions."""
        law, spec = self.laws.gates[gate], self.laws
        drive = _column(spec, law.input_var) + _column(spec, law.previous_input_var)
        variance = drive * _column(spec, spec.input.variance)
        variance = variance + _column(spec, law.recurrent_var) * second_moment.reshape(1, -1, 1)
        if spec.biases == "redrawn":
            variance = variance + _column(spec, law.bias_var)
        mean = _column(spec, law.bias_mean) + self.nodes.offset[gate]
        mean, variance = torch.broadcast_tensors(mean, variance)
        return GateLaw(mean, variance, smoothness_of(functions))

    def _distance(self, carry: Polynomial, second_moment: Tensor) -> Tensor:
        """(replicates, batch)."""
        laws = {gate: self._law(gate, second_moment, carry.functions(gate)) for gate in sorted(carry.gates)}
        kept = torch.zeros(1, 1, 1, dtype=torch.float64)
        for term in carry.terms:
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

    def _flatness(self, gates: Mapping[str, Squash], second_moment: Tensor) -> Tensor:
        """(replicates, batch)."""
        total = torch.zeros(1, 1, dtype=torch.float64)
        for gate, squash in gates.items():
            value = _function(squash)
            slope = value.derivative
            squares = self._law(gate, second_moment, [value]).expectation((slope, slope))
            steepest = slope.call(torch.full((1,), squash.middle, dtype=torch.float64)).square()
            mean = (squares * self.nodes.weight).sum(-1) if squares.shape[-1] > 1 else squares[..., 0]
            total = total - (mean / steepest).log() / 2
        return total / len(gates)


@functools.cache
def _function(squash: Squash) -> GateFunction:
    return GateFunction(squash.gate, squash, squash.kinks)


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


def _column(spec: Spec, number: float | Tensor) -> Tensor:
    """(1, batch, 1)."""
    return torch.as_tensor(number, dtype=torch.float64).expand(spec.batch_shape).reshape(1, -1, 1)


# -- isometry of a slow state ------------------------------------------------------------------------------------------


def slow_map_moments(
    population: Population, stationary: Stationary, state: str, generator: torch.Generator
) -> tuple[Quantity, Quantity]:
    """Mean and variance of the squared singular values of the map from ``state`` to itself over one step.

    The LSTM's block Jacobian has N zeros even at perfect memory, so its isometry is that of its slow state. The state c
    is changed, the h that is formed from it moves along, and the next c is read off:

        J = A + sum_k D_k W_k H,   A = dc'/dc,  D_k = dc'/du_k,  H = dh/dc of the step before.

    With v = sum_k v_k, v_k = weight_var_k D_k^2, Wick's theorem, and the fourth cumulants of matrices that are not
    Gaussian (`isornn.theory.matrix_law`), give

        m1 = E A^2 + E v E H^2
        m2 = E A^4 + 2 E[A^2 v] E H^2 + 2 E[A^2 H^2] E v + (E v)^2 E H^4 + E v^2 (E H^2)^2
             + sum_k k_4(W_k) (E v_k)^2 (E H^2)^2.

    Changes that return through the older h, by a gate that reads it and only shapes the output, are left out.

    Args:
        population, stationary: of one spec or a batch, settled.
        state: a state that carries itself; the recurrent matrices read another that is formed from it.
        generator: randomness of the gates.

    Returns:
        m1 and m2 - m1^2, batch-shaped, standard errors from replicates.
    """
    laws = population.laws
    read = laws.cell.states[0]
    sums: list[dict[str, Tensor]] = []
    for units, u, x in population.snapshots(stationary, _SLOW_STEPS):
        new, slopes, _ = linearise(laws.cell, units.states, u, x)
        along = formed_from(laws.cell, state, units.states, u, x, slopes)[read][0]
        later = replace(units, states={name: value.detach() for name, value in new.items()})
        shape = next(iter(later.states.values())).shape[1:]
        uniform = torch.rand(variates(laws, 1), *shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            uniform = uniform.clamp(1e-15, 1 - 1e-15)
            later = next_inputs(laws, later, uniform)
            u, x = draw_gates(laws, later, stationary.field, uniform)
        _, slopes, push = linearise(laws.cell, later.states, u, x, laws.weighted)
        a2, h2 = slopes[state, state][0].square(), along.square()
        own = {k: laws.weight[k] * push[state, k][0].square() for k in laws.weighted if (state, k) in push}
        v = sum(own.values(), torch.zeros(shape, dtype=torch.float64))
        products = {"a2": a2, "v": v, "h2": h2, "a4": a2 * a2, "a2v": a2 * v, "a2h2": a2 * h2, "h4": h2 * h2}
        products |= {"v2": v * v} | {f"v {k}": value for k, value in own.items()}
        sums.append({name: later.mean(value)[..., 0] for name, value in products.items()})
    e = {name: pooled(torch.stack([part[name] for part in sums]).mean(0)) for name in sums[0]}
    m1 = e["a2"] + e["v"] * e["h2"]
    m2 = e["a4"] + 2 * e["a2v"] * e["h2"] + 2 * e["a2h2"] * e["v"]
    cumulants = sum(fourth_cumulant(laws.ensemble[k]) * e[f"v {k}"].square() for k in laws.weighted if f"v {k}" in e)
    m2 = m2 + e["v"].square() * e["h4"] + (e["v2"] + cumulants) * e["h2"].square()
    found = (jackknife(value) for value in (m1, m2 - m1.square()))
    shape = population.batch_shape
    first, variance = (Quantity(value.reshape(shape), error.reshape(shape)) for value, error in found)
    return first, variance
