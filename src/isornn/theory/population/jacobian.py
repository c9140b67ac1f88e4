"""Moments of the squared singular values of the untied state-to-state Jacobian, from a stationary population."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isornn.cells import Cell, Values, initial_parameters
from isornn.cells.graph import Leaf, evaluate, needed
from isornn.cells.polynomial import Polynomial
from isornn.cells.structure import form_refusal, structure_of
from isornn.cells.trace import graph_of
from isornn.theory.matrix_law import fourth_cumulant
from isornn.theory.population.units import Field, Laws, Units, draw_gates
from isornn.theory.quantity import ROUNDING, jackknife, pooled
from isornn.theory.reasons import TheoryMissing

Derivatives = dict[tuple[str, str], Tensor]
_TINY = 1e-150


def linearise(
    cell: Cell, states: Mapping[str, Tensor], u: Values, x: Tensor | None, gates: Iterable[str] = ()
) -> tuple[dict[str, Tensor], Derivatives, Derivatives]:
    """The update and its pointwise derivatives.

    Returns:
        New states by name; ``d new_i / d s_j`` by ``(i, j)``; ``d new_i / d u_k`` by ``(i, k)`` for the gates asked
        for. A pair that is absent is zero by structure.
    """
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in states.items()}
        inputs = {**vars(u), **{gate: getattr(u, gate).detach().requires_grad_() for gate in gates}}
        new = cell.update(Values(**leaves), Values(**inputs), x)
    shape = next(iter(states.values())).shape
    asked = {gate: inputs[gate] for gate in gates}
    carry: Derivatives = {}
    push: Derivatives = {}
    for name in cell.states:
        by_state, by_gate = _gradients(new[name], leaves, asked)
        carry |= {(name, source): value for source, value in by_state.items()}
        push |= {(name, source): value for source, value in by_gate.items()}
    return {name: new[name].detach().expand(shape) for name in cell.states}, carry, push


def linearise_read(
    cell: Cell, gate: str, states: Mapping[str, Tensor], u: Values
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Derivatives of what ``gate`` reads, by state and by pre-activation; absent ones are zero by structure."""
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in states.items()}
        inputs = {name: getattr(u, name).detach().requires_grad_() for name in cell.gates if hasattr(u, name)}
        value = cell.read(gate, Values(**leaves), Values(**{**vars(u), **inputs}))
    return _gradients(value, leaves, inputs)


def formed_from(
    cell: Cell, moved: str, states: Mapping[str, Tensor], u: Values, x: Tensor | None, carry: Derivatives
) -> dict[str, Tensor]:
    """``d new_a / d new_s`` of every other state a that is formed from the new state s, as an LSTM's h from c.

    It is ``(d new_a / d old_s) / (d new_s / d old_s)``. Where the new state has nothing of the old one, as behind
    a hard gate that is 0, it is the derivative by the new state itself; 0 for a cell that could not be traced.

    Args:
        carry: of `linearise` at the same values.
    """
    own = carry.get((moved, moved), torch.zeros_like(states[moved]))
    kept = own.abs() > _TINY
    direct = {} if bool(kept.all()) else _by_new_state(cell, moved, states, u, x)
    quotients = {
        name: carry[name, moved] / torch.where(kept, own, 1.0)
        for name in _may_contain(cell, moved)
        if (name, moved) in carry
    }
    return {name: torch.where(kept, value, direct.get(name, 0.0)) for name, value in quotients.items()}


def _may_contain(cell: Cell, moved: str) -> list[str]:
    """The other states whose update has all that the new state ``moved`` is made of; not those that only keep its old
    value, as a delay does. All of a cell that could not be traced."""
    graph = graph_of(cell)
    others = [name for name in cell.states if name != moved]
    if "update" in graph.untraced:
        return others
    leaves = {node for node in needed([graph.update[moved]]) if node.op == "placeholder"}
    return [name for name in others if leaves <= needed([graph.update[name]])]


@functools.cache
def seen_states(cell: Cell, gated: tuple[str, ...]) -> tuple[int, ...]:
    """Places of the states on which h, or what one of these gates reads, depends at some later step.

    >>> from isornn.cells import LSTM
    >>> seen_states(LSTM(), ())
    (0, 1)
    """
    one = torch.ones(1, dtype=torch.float64)
    u = Values(**dict.fromkeys(cell.gates, one), **initial_parameters(cell))
    states = dict.fromkeys(cell.states, one)
    _, carry, _ = linearise(cell, states, u, one)
    seen = {cell.states[0]}.union(*(linearise_read(cell, gate, states, u)[0] for gate in gated))
    while more := {source for new, source in carry if new in seen} - seen:
        seen |= more
    return tuple(place for place, name in enumerate(cell.states) if name in seen)


def _by_new_state(
    cell: Cell, moved: str, states: Mapping[str, Tensor], u: Values, x: Tensor | None
) -> dict[str, Tensor]:
    """Derivatives by the expression of the new state ``moved``, of the new states that contain it."""
    graph = graph_of(cell)
    if "update" in graph.untraced:
        return {}
    made = graph.update[moved]
    formed = {name: new for name, new in graph.update.items() if name != moved and made in needed([new])}
    if not formed:
        return {}

    def leaf(of: Leaf) -> Any:
        return x if of.kind == "input" else states[of.name] if of.kind == "state" else getattr(u, of.name)

    with torch.enable_grad():
        start = graph.interpret(leaf, evaluate, [made])(made).detach().requires_grad_()
        value = graph.interpret(leaf, evaluate, formed.values(), {made: start})
        return {
            name: torch.autograd.grad(value(new).sum(), start, retain_graph=True)[0] for name, new in formed.items()
        }


def _gradients(
    value: Tensor, states: Mapping[str, Tensor], gates: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    if not value.requires_grad:
        return {}, {}
    # Pointwise: the gradient of the sum is each unit's own derivative. A gate may be named like a state.
    leaves = [*states.values(), *gates.values()]
    with torch.enable_grad():
        total = value.sum()
    found = torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True)
    by_state = {name: g for name, g in zip(states, found, strict=False) if g is not None}
    by_gate = {name: g for name, g in zip(gates, found[len(states) :], strict=True) if g is not None}
    return by_state, by_gate


@dataclass(frozen=True)
class StateStructure:
    """How an update depends on the old states.

    Args:
        persistent: states that enter the update pointwise: their old value matters beyond the gates.
        self_coupled: persistent states that enter their own update.
        slow: persistent states with ``s' = A s + B``, A and B free of every state: their stationary moments are closed.
        joint: the same of several states together, A a matrix, as an LRU's two parts.
        retention_gates: gates that d s'/d s of a self-coupled state depends on.
    """

    persistent: tuple[str, ...]
    self_coupled: tuple[str, ...]
    slow: tuple[str, ...]
    joint: tuple[str, ...]
    retention_gates: tuple[str, ...]

    @property
    def closed(self) -> tuple[str, ...]:
        """The states whose stationary moments are closed."""
        return self.slow + self.joint

    @staticmethod
    def of(cell: Cell) -> StateStructure:
        """Read off the cell's polynomial form.

        A cell that could not be traced can still be differentiated. That shows which states matter, though neither
        that one is slow nor what its retention depends on: none and all gates are assumed.

        >>> from isornn.cells import LSTM
        >>> found = StateStructure.of(LSTM())
        >>> found.persistent, found.slow, found.retention_gates
        (('c',), ('c',), ('f',))
        """
        if form_refusal(cell) is not None:
            return _differentiated(cell)
        update = structure_of(cell).update
        persistent = tuple(name for name in cell.states if any(name in new.variables for new in update.values()))
        coupled = tuple(name for name in persistent if name in update[name].variables)
        slow = tuple(name for name in persistent if _is_affine(cell, name, update[name]))
        joint = _jointly_affine(cell, persistent, update)
        if set(joint) <= set(slow):
            joint = ()
        retaining = {gate for s in coupled for term in update[s].terms if s in term.variables for gate in term.gates}
        return StateStructure(
            persistent,
            coupled,
            tuple(name for name in slow if name not in joint),
            joint,
            tuple(gate for gate in cell.gates if gate in retaining),
        )


def _differentiated(cell: Cell) -> StateStructure:
    one = torch.ones(1, dtype=torch.float64)
    u = Values(**dict.fromkeys(cell.gates, one), **initial_parameters(cell))
    _, carry, _ = linearise(cell, dict.fromkeys(cell.states, one), u, one)
    persistent = tuple(name for name in cell.states if any(source == name for _, source in carry))
    coupled = tuple(name for name in persistent if (name, name) in carry)
    return StateStructure(persistent, coupled, (), (), tuple(cell.gates))


def _is_affine(cell: Cell, name: str, new: Polynomial) -> bool:
    others = set(cell.states) - {name}
    return new.degree(name) <= 1 and new.obstacle(name) is None and not others & new.variables


def _jointly_affine(cell: Cell, names: Sequence[str], update: Mapping[str, Polynomial]) -> tuple[str, ...]:
    """The most of the states ``names`` that are an affine function of their own old values, free of every other's."""
    kept = [name for name in names if _is_affine_in_all(update[name], cell.states, names)]
    return tuple(names) if len(kept) == len(names) else _jointly_affine(cell, kept, update)


def _is_affine_in_all(new: Polynomial, states: Sequence[str], names: Sequence[str]) -> bool:
    """Whether ``new`` is affine in the states ``names`` together and depends on no other."""
    curved = any(new.obstacle(name) is not None for name in names)
    together = max((sum(term.powers.get(name, 0) for name in names) for term in new.terms), default=0)
    return not curved and together <= 1 and not new.variables & (set(states) - set(names))


@dataclass(frozen=True)
class SampledJacobianMoments:
    """``m1 = (1/NM) E tr J J^T``, ``m2 = (1/NM) E tr (J J^T)^2``, ``variance = m2 - m1^2``, batch-shaped; M states."""

    first: Tensor
    second: Tensor
    variance: Tensor
    stderr: dict[str, Tensor]


class JacobianSums:
    """Expectations over units that the moments need, gathered over several steps.

    For states s of a unit, A = d s'/d s pointwise (column 0: the state that recurrent matrices read), V = sum_k
    weight_var_k D_k D_k^T with D_k = d s'/d u_k, and x the part of V from a gate n that reads g h with its own random
    matrices inside. Wick's theorem, and the fourth cumulants of matrices that are not Gaussian, give::

        M m1 = E tr AA^T + E tr V
        M m2 = E tr (AA^T)^2 + 2 E tr AA^T V + 2 E|a_0|^2 E tr V + E tr V^2 + (E tr V)^2
               + sum_k k_4(W_k) (E tr V_k)^2,

    where for a gated read, with y = weight_var_n D_n^2, the x-x part (E x)^2 of the last term is (E y)^2 b2 with
    b2 = E g^4 + 2 E g^2 w + 2 E g^2 E w + E w^2 + (E w)^2 + sum_j k_4(W_j) (E w_j)^2, g = d r/d h,
    w = sum_j w_j, w_j = weight_var_j (d r/d u_j)^2; and 2 E y (Cov(a_0^2, g^2) + 2 E a_0 g t + E t^2
    + sum_j k_4(W_j) E w_j E V_j) is added, as a unit's a_0 and g may be moved by one pre-activation or bias, and a
    matrix W_j may act both in the read and directly, with t = sum_j weight_var_j (d r/d u_j) D_j.

    Raises:
        TheoryMissing: more than one gated read, or one in a cell of several states.
    """

    def __init__(self, laws: Laws) -> None:
        self.laws = laws
        cumulants = {gate: fourth_cumulant(laws.ensemble[gate]) for gate in laws.weighted}
        self._cumulants = {gate: cumulant for gate, cumulant in cumulants.items() if cumulant != 0}
        self.gated = self._gated_read()
        self._sums: list[dict[str, Tensor]] = []

    def _gated_read(self) -> str | None:
        laws, cell = self.laws, self.laws.cell
        graph, gated = graph_of(cell), laws.gated
        if not gated:
            return None
        if {"read", "update"} & graph.untraced.keys():
            raise TheoryMissing(f"{cell.name}: Jacobian moments of a gated read need a cell that can be traced")
        if len(gated) > 1:
            raise TheoryMissing(f"{cell.name}: Jacobian moments allow one gated read, found {', '.join(gated)}")
        if len(cell.states) > 1:
            raise TheoryMissing(
                f"{cell.name}: Jacobian moments of a gated read allow one state, found {', '.join(cell.states)}"
            )
        return gated[0]

    def add(self, units: Units, held: Field, uniform: Tensor) -> None:
        """Gather one step of a one-copy population."""
        laws, cell = self.laws, self.laws.cell
        with torch.no_grad():
            u, x = draw_gates(laws, units, held, uniform)
        _, slopes, push = linearise(cell, units.states, u, x, laws.weighted)
        plain = [gate for gate in laws.weighted if gate != self.gated]
        with torch.no_grad():
            carry = derivative_matrix(cell.states, cell.states, slopes, units)
            source_terms = self._source_terms(plain, push, units)
            sums = _block_sums(units, carry, source_terms)
            for gate in self._cumulants.keys() - {self.gated}:
                sums[f"v {gate}"] = units.mean(torch.einsum("ii...->...", self._source_terms([gate], push, units)))
        if self.gated is not None:
            by_state, by_gate = linearise_read(cell, self.gated, units.states, u)
            with torch.no_grad():
                sums |= self._gated_sums(units, carry, source_terms, push, by_state, by_gate)
        self._sums.append({name: value[..., 0] for name, value in sums.items()})

    def _source_terms(self, gates: list[str], push: Derivatives, units: Units) -> Tensor:
        states = self.laws.cell.states
        total = torch.zeros(len(states), len(states), *_shape(units), dtype=torch.float64)
        for gate in gates:
            column = derivative_matrix(states, (gate,), push, units)[:, 0]
            total = total + self.laws.weight[gate] * column[:, None] * column[None, :]
        return total

    def _gated_sums(
        self,
        units: Units,
        carry: Tensor,
        source_terms: Tensor,
        push: Derivatives,
        by_state: Mapping[str, Tensor],
        by_gate: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """Expectations with y = weight_var_n D_n^2, the gated gate's variance per unit of b1."""
        name, zero = self.laws.cell.states[0], torch.zeros(_shape(units), dtype=torch.float64)
        assert self.gated is not None
        slope = push.get((name, self.gated))
        y = zero if slope is None else self.laws.weight[self.gated] * slope[0].square()
        inside = [gate for gate in self.laws.weighted if gate in by_gate]
        own = {gate: self.laws.weight[gate] * by_gate[gate][0].square() for gate in inside}
        twice = [self.laws.weight[k] * by_gate[k][0] * push[name, k][0] for k in inside if (name, k) in push]
        w, t = sum(own.values(), zero), sum(twice, zero)
        a2, v = carry[0, 0].square(), source_terms[0, 0]
        g = by_state[name][0] if name in by_state else zero
        g2 = g.square()
        products = {"g2": g2, "w": w, "g4": g2 * g2, "g2w": g2 * w, "w2": w * w, "y": y, "a2y": a2 * y, "vy": v * y}
        products |= {"y2": y * y, "a2g2": a2 * g2, "agt": carry[0, 0] * g * t, "t2": t * t}
        products |= {f"w {gate}": value for gate, value in own.items()}
        return {key: units.mean(value) for key, value in products.items()}

    def moments(self, shape: torch.Size) -> SampledJacobianMoments:
        """m1, m2 and the variance of squared singular values, with standard errors from replicates."""
        e = {name: pooled(torch.stack([sums[name] for sums in self._sums]).mean(0)) for name in self._sums[0]}
        states = len(self.laws.cell.states)
        m1 = e["a"] + e["v"]
        m2 = e["aa"] + 2 * e["av"] + 2 * e["a0"] * e["v"] + e["vv"] + e["v"].square()
        for gate, cumulant in self._cumulants.items():
            if gate != self.gated:
                m2 = m2 + cumulant * e[f"v {gate}"].square()
        if self.gated is not None:
            b1 = e["g2"] + e["w"]
            b2 = e["g4"] + 2 * e["g2w"] + 2 * e["g2"] * e["w"] + e["w2"] + e["w"].square()
            for gate, cumulant in self._cumulants.items():
                if f"w {gate}" in e:
                    b2 = b2 + cumulant * e[f"w {gate}"].square()
            x = b1 * e["y"]
            m1 = m1 + x
            m2 = m2 + 2 * b1 * e["a2y"] + 2 * e["a0"] * x + 2 * b1 * e["vy"] + 2 * e["v"] * x
            m2 = m2 + b1.square() * e["y2"] + e["y"].square() * b2
            shared = e["a2g2"] - e["a0"] * e["g2"] + 2 * e["agt"] + e["t2"]
            for gate, cumulant in self._cumulants.items():
                if f"w {gate}" in e:
                    shared = shared + cumulant * e[f"w {gate}"] * e[f"v {gate}"]
            m2 = m2 + 2 * e["y"] * shared
            m2 = m2 + self._cumulants.get(self.gated, 0.0) * x.square()
        m1, m2 = m1 / states, m2 / states
        spread = m2 - m1.square()
        spread = torch.where(spread.abs() <= ROUNDING * m2, 0.0, spread)
        both = {"first": jackknife(m1), "second": jackknife(m2), "variance": jackknife(spread)}
        values = {name: value.reshape(shape) for name, (value, _) in both.items()}
        return SampledJacobianMoments(
            **values, stderr={name: error.reshape(shape) for name, (_, error) in both.items()}
        )


def _shape(units: Units) -> torch.Size:
    return next(iter(units.states.values())).shape[1:]


def derivative_matrix(rows: tuple[str, ...], columns: tuple[str, ...], slopes: Derivatives, units: Units) -> Tensor:
    """``(rows, columns, G, R, n)`` of one copy, zeros filled in."""
    zero = torch.zeros(_shape(units), dtype=torch.float64)

    def entry(row: str, column: str) -> Tensor:
        return slopes[row, column][0] if (row, column) in slopes else zero

    return torch.stack([torch.stack([entry(row, column) for column in columns]) for row in rows])


def _block_sums(units: Units, carry: Tensor, source_terms: Tensor) -> dict[str, Tensor]:
    gram = torch.einsum("ik...,jk...->ij...", carry, carry)
    products = {
        "a": torch.einsum("ii...->...", gram),
        "v": torch.einsum("ii...->...", source_terms),
        "aa": torch.einsum("ij...,ij...->...", gram, gram),
        "av": torch.einsum("ij...,ij...->...", gram, source_terms),
        "vv": torch.einsum("ij...,ij...->...", source_terms, source_terms),
        "a0": carry[:, 0].square().sum(0),
    }
    return {name: units.mean(value) for name, value in products.items()}
