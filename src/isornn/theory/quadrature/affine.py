"""Exact untied theory, by quadrature, of cells with one state that enters its update affinely.

``s' = A s + B`` where A, B and the pre-activations' reads are built from functions of one pre-activation each. At
infinite width the pre-activations are independent Gaussians given the moments of what they read, so every moment of
s' is a sum of products of one-dimensional integrals. Source: Gilboa et al. 2019 eqs. 2-8; the maps are derived from
the cell's update, not written per cell.

Shapes: every tensor is (replicates, batch, nodes); the last axis runs over representative units where biases are
fixed and has length 1 where they are redrawn, so that all units are alike.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isornn.cells import Cell, Spec
from isornn.cells.bias_laws import SPREAD
from isornn.cells.graph import INPUT
from isornn.cells.openings import bias_of, retention_signs
from isornn.cells.polynomial import Polynomial, Term
from isornn.cells.structure import NotPolynomial, form_refusal, structure_of
from isornn.theory.assumptions import check_assumptions
from isornn.theory.inputs import AUTOCORRELATED, centred
from isornn.theory.quadrature.gate_law import GateLaw
from isornn.theory.quadrature.grid import Smoothness
from isornn.theory.quadrature.smoothness import smoothness_of

SCRAMBLES = 8
SCRAMBLED_NODES = 128
_MOST_NODES = 8000  # of a product rule
_ROUNDING = 1e-16
_WIDTH, _FINEST = 8.5, 0.125  # of a normal variate: the range of nodes and their step
_MOST_OF_HERMITE = 28
_WIDE = 1.0  # standard deviation of biases beyond which drawn units miss those on which moments rest
# the ends of a law of uniform variates matter most: that is where the slow units are; a capped law bends at SPREAD
_EDGES = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, SPREAD, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 1.0)


@dataclass(frozen=True)
class BiasNodes:
    """Representative units: ``offset[gate]`` is what is added to the gate's mean, ``weight`` sums to 1.

    Shapes: offsets (replicates, batch or 1, nodes), weight (nodes,). Few random numbers per unit are integrated by a
    deterministic rule (one replicate), many by scrambled Sobol points, whose scrambles give the standard error.
    """

    offset: dict[str, Tensor]
    weight: Tensor

    @property
    def replicates(self) -> int:
        return max((o.shape[0] for o in self.offset.values()), default=1)

    def mean(self, values: Tensor) -> Tensor:
        """Average over units, the axis of nodes kept with length 1."""
        if values.shape[-1] == 1:
            return values
        return (values * self.weight).sum(-1, keepdim=True)


def bias_nodes(spec: Spec, bias_var: dict[str, Tensor]) -> BiasNodes:
    """Nodes for the random parts of the biases that are not already in the pre-activations' Gaussian.

    Args:
        bias_var: normal variance by gate, shapes (1, batch, 1).
    """
    laws = {name: gate.bias_law for name, gate in spec.gates.items() if gate.bias_law is not None}
    kept = [g for g in spec.gates if spec.biases == "fixed" and bool((bias_var[g] > 0).any())]
    zero = torch.zeros(1, 1, 1, dtype=torch.float64)
    uniform = [_uniform_rule(units=max(len(law.values) for law in laws.values()))] if laws else []
    retain, alone = retention_signs(spec.cell), len(uniform) + len(kept) == 1
    rules = [*uniform, *(_normal_rule(bias_var[gate], gate in retain, alone) for gate in kept)]
    if not rules:
        return BiasNodes(dict.fromkeys(spec.gates, zero), torch.ones(1, dtype=torch.float64))
    if math.prod(len(weight) for _, weight in rules) <= _MOST_NODES:
        columns, weight = _product_rule(rules)
    else:
        columns, weight = _sobol(len(uniform), len(kept), _widest(kept, retain, bias_var))
    offset = {}
    for gate in spec.gates:
        total = zero.expand(columns[0].shape[0], 1, weight.numel())
        if gate in laws:
            total = total + bias_of(spec.cell, gate, laws[gate], columns[0])[:, None]
        if gate in kept:
            total = total + bias_var[gate].sqrt() * columns[bool(laws) + kept.index(gate)][:, None]
        offset[gate] = total
    return BiasNodes(offset, weight)


Rule = tuple[Tensor, Tensor]  # nodes and weights


def _uniform_rule(units: int) -> Rule:
    """Gauss-Legendre in panels that shrink towards 0 and 1; of an empirical law the units themselves, if any."""
    if units:
        return (torch.arange(units, dtype=torch.float64) + 0.5) / units, torch.full((units,), 1 / units).double()
    x, w = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(16))
    low, high = torch.tensor(_EDGES[:-1]).double()[:, None], torch.tensor(_EDGES[1:]).double()[:, None]
    return (low + (high - low) * (x + 1) / 2).reshape(-1), ((high - low) * w / 2).reshape(-1)


def _normal_rule(bias_var: Tensor, retains: bool, alone: bool) -> Rule:
    """The trapezoid rule, or where gates are near to polynomials of their bias Gauss and Hermite's, of fewer nodes.

    Both converge exponentially. In a product of rules errors are 1e-7 of a gate, a function of width 1 of its bias, and
    1e-5 of high powers of one that retains; where the standard deviation is 3 to 6 up to 1e-3, so that there are not
    too many nodes.
    """
    spread = float(bias_var.detach().max()) ** 0.5
    few = 3 + math.ceil(11 * spread**2)
    if not (retains or alone) and few < _MOST_OF_HERMITE:
        z, weight = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(few))
        return z, weight / weight.sum()
    step = _FINEST if alone else _step(spread)
    z = torch.linspace(-_WIDTH, _WIDTH, 1 + 2 * round(_WIDTH / step), dtype=torch.float64)
    weight = torch.exp(-(z**2) / 2)
    return z, weight / weight.sum()


def _step(spread: float) -> float:
    fine = 0.75 / max(spread, 1e-9)
    if fine < 0.12:  # a coarser one would not do: so many nodes that scrambled points take their place
        return fine
    return min(max(fine, 0.25), 0.57)


def _product_rule(rules: Sequence[Rule]) -> tuple[list[Tensor], Tensor]:
    """Columns ``(1, nodes)``, without the nodes that have next to no weight."""
    nodes = torch.cartesian_prod(*(nodes for nodes, _ in rules)).reshape(-1, len(rules))
    weight = functools.reduce(lambda a, b: (a[:, None] * b).flatten(), (weight for _, weight in rules))
    matters = weight > _ROUNDING * weight.max()
    return [column[None] for column in nodes[matters].unbind(-1)], weight[matters] / weight[matters].sum()


def _widest(kept: Sequence[str], retain: Mapping[str, int], bias_var: Mapping[str, Tensor]) -> int | None:
    """The place of the retaining gate whose biases are widest, if so wide that moments rest on rare units."""
    spreads = {place: float(bias_var[gate].detach().max()) ** 0.5 for place, gate in enumerate(kept) if gate in retain}
    wide = {place: spread for place, spread in spreads.items() if spread > _WIDE}
    return max(wide, key=wide.__getitem__, default=None)


def _sobol(uniform: int, normal: int, widest: int | None) -> tuple[list[Tensor], Tensor]:
    """Columns ``(scrambles, nodes)``: uniform variates, then normal ones.

    Moments may rest on units whose biases of a retaining gate are 4 standard deviations out, which points drawn by
    their law would miss, and standard errors with them: the ``widest`` has nodes that are common to all scrambles, half
    of them by its law and half evenly spread, and weighted back.
    """
    points = [
        torch.quasirandom.SobolEngine(uniform + normal, scramble=True, seed=seed).draw(
            SCRAMBLED_NODES, dtype=torch.float64
        )
        for seed in range(SCRAMBLES)
    ]
    columns = list(torch.stack(points).clamp(1e-12, 1 - 1e-12).unbind(-1))
    columns[uniform:] = map(torch.special.ndtri, columns[uniform:])
    if widest is None:
        return columns, torch.full((SCRAMBLED_NODES,), 1 / SCRAMBLED_NODES, dtype=torch.float64)
    order = columns[uniform + widest].argsort(-1)
    columns = [column.gather(-1, order) for column in columns]
    nodes, weight = _widened_rule(SCRAMBLED_NODES)
    columns[uniform + widest] = nodes.expand(SCRAMBLES, -1)
    return columns, weight


def _widened_rule(count: int) -> Rule:
    """The midpoint rule over the shares of a normal and of a uniform law in equal parts: smooth, and nothing at its
    ends, so that errors fall exponentially until those of the table of shares, 1e-7, are left."""
    z = torch.linspace(-_WIDTH, _WIDTH, 2**14 + 1, dtype=torch.float64)
    share = (torch.special.ndtr(z) + (z + _WIDTH) / (2 * _WIDTH)) / 2
    middles = (np.arange(count) + 0.5) / count
    nodes = torch.from_numpy(np.interp(middles, share.numpy(), z.numpy()))
    normal = torch.exp(-(nodes**2) / 2) / math.sqrt(2 * math.pi)
    weight = normal / (normal + 1 / (2 * _WIDTH))
    return nodes, weight / weight.sum()


GateLaws = dict[str, GateLaw]
FROZEN_CARRY = 1 - 1e-14  # a carry above this is 1 to rounding: the state stays what it was
_FROZEN_SHARE = 0.01  # of the units, up to which a law of biases may freeze some, as in the population engine
_NOTHING = 1e-6  # of a moment, as which what such units add to it counts


@dataclass(frozen=True)
class PowerMoments:
    """``E[s^p]`` per representative unit, powers 0 and up."""

    powers: tuple[Tensor, ...]

    @staticmethod
    def of(mean: Tensor, second: Tensor, *higher: Tensor) -> PowerMoments:
        return PowerMoments((torch.ones_like(mean), mean, second, *higher))

    @property
    def mean(self) -> Tensor:
        return self.powers[1]

    @property
    def second(self) -> Tensor:
        return self.powers[2]


@functools.cache
def affine_refusal(cell: Cell) -> str | None:
    """Why the deterministic engine does not cover ``cell``, or ``None`` where it does.

    It covers cells with one state that enters its update affinely, with coefficients that are products of functions of
    one pre-activation each. Pre-activations know the state by its second moment alone, so what they read has no part
    without it.

    Raises:
        CellError: the cell has a mistake.

    >>> from isornn.cells import LSTM, Peephole
    >>> affine_refusal(Peephole()), affine_refusal(LSTM())
    (None, 'lstm has several states: h, c')
    """
    reason = form_refusal(cell)
    if reason is not None:
        return reason
    if len(cell.states) != 1:
        return f"{cell.name} has several states: {', '.join(cell.states)}"
    structure, (state,) = structure_of(cell), cell.states
    parts = {"the update": structure.update[state], **{f"what u_{k} reads": p for k, p in structure.reads.items()}}
    for what, polynomial in parts.items():
        if polynomial.obstacle():
            return f"{what} has {polynomial.obstacle()}"
        if polynomial.degree(state) > 1 or polynomial.degree(INPUT) > 1:
            return f"{what} is not affine in {state} and input"
    for gate, read in structure.reads.items():
        if read.part(state, 1).terms and read.part(state, 0).part(INPUT, 0).terms:
            return f"what u_{gate} reads has a part without {state}, so that it rests on the mean of {state} too"
    try:
        _smoothness(cell)
    except NotPolynomial as reason:
        return str(reason)
    return None


def quadrature_refusal(spec: Spec) -> str | None:
    """Why this engine has no answer for ``spec``, or ``None``: its cell, or inputs that are correlated over time.

    >>> from isornn.cells import Gate, Input, Minimal
    >>> spec = Spec(Minimal(), {"u": Gate(input_var=1.0)}, Input(autocorrelation=0.9), biases="fixed")
    >>> quadrature_refusal(spec.replace("input.autocorrelation", 0.0)), quadrature_refusal(spec) == AUTOCORRELATED
    (None, True)
    """
    reason = affine_refusal(spec.cell)
    return AUTOCORRELATED if reason is None and spec.input.remembers else reason


class AffineTheory:
    """The moment algebra of one spec (or a batch of specs).

    Args:
        spec: the cell and its hyper-parameters.

    Raises:
        TheoryMissing: an update that is not pointwise, or identity matrices.
        NotPolynomial: `quadrature_refusal` has a reason.
    """

    def __init__(self, spec: Spec) -> None:
        check_assumptions(spec)
        reason = quadrature_refusal(spec)
        if reason is not None:
            raise NotPolynomial(reason)
        spec = centred(spec)
        structure, (self.state,) = structure_of(spec.cell), spec.cell.states
        self.spec = spec
        self.update = structure.update[self.state]
        self.reads = structure.reads
        self.A, self.B = self.update.part(self.state, 1), self.update.part(self.state, 0)
        self.D = {gate: self.update.derivative(gate) for gate in spec.gates}
        self.batch = spec.batch_shape.numel()
        self.number = {
            gate: {
                name: self._column(getattr(law, name))
                for name in ("recurrent_var", "input_var", "previous_input_var", "bias_mean", "bias_var")
            }
            for gate, law in spec.gates.items()
        }
        self.input_variance = self._column(spec.input.variance)
        # two copies have the same input where nothing reads it
        reading = sum(n["input_var"] + n["previous_input_var"] for n in self.number.values())
        received = (reading + (INPUT in self.update.variables)) * self.input_variance
        self.input_correlation = torch.where(received > 0, self._column(spec.input.correlation), 1.0)
        # Units with another bias at a gate that no new state depends on, as an output that is not read, are alike.
        felt = self.update.gates.union(*(self.reads[g].gates for g in self.update.gates & self.reads.keys()))
        blank = torch.zeros(1, 1, 1, dtype=torch.float64)
        self.nodes = bias_nodes(spec, {g: n["bias_var"] if g in felt else blank for g, n in self.number.items()})
        self.fixed = spec.biases == "fixed"
        self.smoothness = _smoothness(spec.cell)

    def _column(self, number: Any) -> Tensor:
        value = torch.as_tensor(number, dtype=torch.float64)
        return value.expand(self.spec.batch_shape).reshape(1, self.batch, 1)

    def full(self, value: float) -> Tensor:
        """A constant per replicate, batch and (if biases are fixed) unit."""
        nodes = self.nodes.weight.numel() if self.fixed else 1
        return torch.full((self.nodes.replicates, self.batch, nodes), value, dtype=torch.float64)

    def over_units(self, values: Tensor) -> Tensor:
        """Average over units."""
        return self.nodes.mean(values)

    def _per_unit(self, values: Tensor) -> Tensor:
        """Units keep their bias, or draw it afresh each step and are all alike."""
        return values if self.fixed else self.nodes.mean(values)

    # -- the law of the pre-activations ---------------------------------------------------------------------------

    def laws(self, state: PowerMoments) -> GateLaws:
        """Law of every pre-activation given the state's moments (Gilboa et al. eqs. 3, 4a, 10a)."""
        laws: GateLaws = {}
        for gate, number in self.number.items():
            read = self._read_moment(gate, laws, state)
            variance = number["recurrent_var"] * read + self._drive(gate, self.input_variance)
            mean = number["bias_mean"] + self.nodes.offset[gate]
            mean, variance = torch.broadcast_tensors(mean, variance)
            laws[gate] = GateLaw(mean, variance, self.smoothness[gate])
        return laws

    def _read_moment(self, gate: str, laws: GateLaws, state: PowerMoments) -> Tensor:
        if gate not in self.reads:
            return torch.zeros_like(self.input_variance)
        return self.over_units(self.expect(self.reads[gate] * self.reads[gate], laws, state))

    def _drive(self, gate: str, input_moment: Tensor) -> Tensor:
        """Variance that does not come from the state: inputs, and biases redrawn each step."""
        number = self.number[gate]
        inputs = (number["input_var"] + number["previous_input_var"]) * input_moment
        return inputs if self.fixed else inputs + number["bias_var"]

    def correlations(
        self, laws: GateLaws, state: PowerMoments, pair: Tensor, input_correlation: Tensor
    ) -> dict[str, Tensor]:
        """Correlation of u_a and u_b for every pre-activation given ``pair = E[s_a s_b]`` (eqs. 4b, 10d)."""
        c: dict[str, Tensor] = {}
        for gate, number in self.number.items():
            if gate in self.reads:
                read = self.reads[gate]
                moment = self.over_units(self.expect_pair(read, read, laws, c, state, pair, input_correlation))
            else:
                moment = torch.zeros_like(pair)
            covariance = number["recurrent_var"] * moment + self._drive(gate, self.input_variance * input_correlation)
            variance = laws[gate].variance
            same = variance <= 0
            ratio = covariance / torch.where(same, 1.0, variance)
            c[gate] = torch.where(same, 1.0, ratio).clamp(-1.0, 1.0)
        return c

    # -- expectations ---------------------------------------------------------------------------------------------

    def expect(self, polynomial: Polynomial, laws: GateLaws, state: PowerMoments) -> Tensor:
        """``E[polynomial]`` per unit."""
        total = self.full(0.0)
        for term in polynomial.terms:
            value = self._per_unit(_product(laws[g].expectation(f) for g, f in term.factors.items()))
            value = value * state.powers[term.powers.get(self.state, 0)]
            total = total + term.coefficient * value * _normal_moment(term.powers.get(INPUT, 0), self.input_variance)
        return total

    def expect_pair(
        self,
        left: Polynomial,
        right: Polynomial,
        laws: GateLaws,
        c: Mapping[str, Tensor],
        state: PowerMoments,
        pair: Tensor,
        input_correlation: Tensor,
    ) -> Tensor:
        """``E[left_a right_b]`` per unit; both are of degree at most 1 in state and input."""
        total = self.full(0.0)
        for a in left.terms:
            for b in right.terms:
                value = self._per_unit(
                    _product(
                        laws[gate].pair_expectation(a.factors.get(gate, ()), b.factors.get(gate, ()), c[gate])
                        for gate in a.factors.keys() | b.factors.keys()
                    )
                )
                value = value * _pair_moment(a, b, self.state, state.mean, pair)
                zero = torch.zeros_like(self.input_variance)
                value = value * _pair_moment(a, b, INPUT, zero, self.input_variance * input_correlation)
                total = total + a.coefficient * b.coefficient * value
        return total

    # -- one step, and what one step would leave unchanged --------------------------------------------------------

    def step(self, laws: GateLaws, state: PowerMoments) -> PowerMoments:
        """Mean and second moment after one step (eq. 5)."""
        mean = self.expect(self.update, laws, state)
        return PowerMoments.of(mean, self.expect(self.update * self.update, laws, state))

    def settled(self, laws: GateLaws) -> PowerMoments:
        """Mean and second moment that the affine map with these laws leaves unchanged; infinite where it has none."""
        one = PowerMoments.of(self.full(0.0), self.full(0.0))
        mean = self._solve(self.expect(self.A, laws, one), self.expect(self.B, laws, one))
        cross = 2 * self.expect(self.A * self.B, laws, one) * mean
        carry = self.expect(self.A * self.A, laws, one)
        second = self._solve(carry, cross + self.expect(self.B * self.B, laws, one))
        # Those of units that only add up what they are fed have no limit as their carry comes near to 1.
        frozen = is_frozen(carry)
        part, whole = (self.over_units(torch.where(some, second, 0.0)) for some in (frozen, ~frozen))
        second = torch.where(frozen & (part > _NOTHING * whole), torch.inf, second)
        return PowerMoments.of(mean, second)

    def _solve(self, slope: Tensor, offset: Tensor) -> Tensor:
        """x = slope x + offset per unit; infinite where the slope is 1 to rounding or above.

        Of frozen units that are few what units next to them have, which is a limit where what is written fades as fast.
        """
        found = _solve(slope, offset)
        frozen = few_frozen(slope, self.nodes.weight)
        if not bool(frozen.any()):
            return found
        nearest = torch.where(slope < FROZEN_CARRY, slope, -torch.inf).argmax(-1, keepdim=True)
        return torch.where(frozen, found.gather(-1, nearest), found)

    def with_higher(self, laws: GateLaws, state: PowerMoments) -> PowerMoments:
        """The fixed point's third and fourth moments as well."""
        powers = list(state.powers)
        for p in (3, 4):
            lower = Polynomial(t for t in (self.update**p).terms if t.powers.get(self.state, 0) < p)
            rest = self.expect(lower, laws, PowerMoments(tuple(powers)))
            powers.append(self._solve(self.expect(self.A**p, laws, state), rest))
        return PowerMoments(tuple(powers))

    def pair_step(self, laws: GateLaws, state: PowerMoments, pair: Tensor, input_correlation: Tensor) -> Tensor:
        """``E[s_a s_b]`` after one step (eq. 6 before normalisation)."""
        c = self.correlations(laws, state, pair, input_correlation)
        return self.expect_pair(self.update, self.update, laws, c, state, pair, input_correlation)

    def settled_pair(self, laws: GateLaws, state: PowerMoments, pair: Tensor) -> Tensor:
        """``E[s_a s_b]`` that the affine map leaves unchanged when the pre-activations' correlations are ``pair``'s."""
        c = self.correlations(laws, state, pair, self.input_correlation)
        one = torch.zeros_like(pair)

        def expect(a: Polynomial, b: Polynomial) -> Tensor:
            return self.expect_pair(a, b, laws, c, state, one, self.input_correlation)

        cross = 2 * expect(self.A, self.B) * state.mean
        return self._solve(expect(self.A, self.A), cross + expect(self.B, self.B))


def is_frozen(carry: Tensor) -> Tensor:
    """Where a factor per step is 1 to rounding."""
    return (carry >= FROZEN_CARRY) & (carry <= 2 - FROZEN_CARRY)


def few_frozen(carry: Tensor, weight: Tensor) -> Tensor:
    """Where units of these carries and weights are frozen, if they are few of all: beyond, networks stay at their start
    to an extent that matters."""
    frozen = is_frozen(carry)
    if carry.shape[-1] == 1:
        return torch.zeros_like(frozen)
    return frozen & ((frozen * weight).sum(-1, keepdim=True) <= _FROZEN_SHARE)


def _solve(slope: Tensor, offset: Tensor) -> Tensor:
    """x = slope x + offset; infinite where the slope is 1 to rounding or above."""
    room = 1 - slope
    stays = slope < FROZEN_CARRY
    return torch.where(stays, offset / torch.where(stays, room, 1.0), torch.inf)


def _product(values: Any) -> Any:
    result: Any = torch.ones(1, 1, 1, dtype=torch.float64)
    for value in values:
        result = result * value
    return result


def _normal_moment(power: int, variance: Tensor) -> Tensor | float:
    """E[x^power] of a centred normal variable."""
    if power % 2:
        return 0.0
    result: Tensor | float = 1.0
    for odd in range(1, power, 2):
        result = result * odd * variance
    return result


def _pair_moment(a: Term, b: Term, name: str, mean: Tensor, pair: Tensor) -> Tensor | float:
    """E[v_a^p v_b^q] for p, q <= 1."""
    powers = a.powers.get(name, 0) + b.powers.get(name, 0)
    return (1.0, mean, pair)[powers]


@functools.cache
def _smoothness(cell: Cell) -> dict[str, Smoothness]:
    structure = structure_of(cell)
    parts = [*structure.update.values(), *structure.reads.values()]
    return {gate: smoothness_of(f for part in parts for f in part.functions(gate)) for gate in cell.gates}
