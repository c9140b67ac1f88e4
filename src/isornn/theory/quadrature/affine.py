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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isornn.cells import Cell, Spec
from isornn.cells.graph import INPUT
from isornn.cells.polynomial import Polynomial, Term
from isornn.cells.structure import NotPolynomial, form_refusal, structure_of
from isornn.theory.assumptions import check_assumptions
from isornn.theory.inputs import AUTOCORRELATED, centred
from isornn.theory.quadrature.bias_nodes import bias_nodes
from isornn.theory.quadrature.gate_law import GateLaw
from isornn.theory.quadrature.grid import Smoothness
from isornn.theory.quadrature.smoothness import smoothness_of

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
