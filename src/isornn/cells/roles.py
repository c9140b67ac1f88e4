"""What the pre-activations of a cell are for, derived from its graph: to retain, write, make content, read out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isornn.cells.cell import Cell
from isornn.cells.errors import CellError
from isornn.cells.graph import CellGraph, Leaf, Node, name_of, values_in
from isornn.cells.trace import graph_of

LeafValues = Callable[[Leaf], Tensor]
NO_GATES = "the cell has no gates"


@dataclass(frozen=True)
class Squash:
    """A pre-activation u as a gate: the node of the graph that maps it to (0, 1).

    Args:
        cell, gate: the cell and the pre-activation's name.
        node: ``sigmoid(u)``, ``clamp(0.2 u + 0.5, 0, 1)``, ...; its argument may have a peephole term.
        rises: whether the value rises with u.
        middle: u at which the slope is steepest, states 0.
        kinks: u at which a hard gate's slope jumps; empty for a smooth one.
    """

    cell: Cell
    gate: str
    node: Node
    rises: bool
    middle: float
    kinks: tuple[float, ...]

    def value(self, leaves: LeafValues) -> Tensor:
        """The gate's value where states, pre-activations, parameters and input have the values ``leaves``."""
        return _evaluate(graph_of(self.cell), self.node, leaves)

    def __call__(self, u: Tensor) -> Tensor:
        """The gate's value at ``u``, with states 0 and parameters as they start."""
        return self.value(at_start(self.cell, {self.gate: u}))


@dataclass(frozen=True)
class RetainedState:
    """A state that is carried affinely, ``s' = A s + B``, A a function of pre-activations and parameters alone.

    A gate counts as a number here: a peephole on s within it does not make the update curved.

    Args:
        cell, state: the cell and the state's name.
        retention: by pre-activation that A depends on: +1 where A rises with it, -1 where it falls, 0 where neither.
        write: the gates that B is multiplied by; one of ``retention`` where the two are coupled, as f and 1 - f.
        candidates: the other pre-activations in B, which make the content.
    """

    cell: Cell
    state: str
    retention: Mapping[str, int]
    write: tuple[str, ...]
    candidates: tuple[str, ...]

    @property
    def coupled(self) -> bool:
        """Whether the gate that retains also writes."""
        return any(gate in self.retention for gate in self.write)

    @property
    def own_write(self) -> tuple[str, ...]:
        """The write gates of a state whose retention is not coupled to one."""
        return () if self.coupled else self.write

    def coefficient(self, leaves: LeafValues) -> Tensor:
        """A where pre-activations, parameters, states and input have the values ``leaves``.

        >>> from isornn.cells import GRU
        >>> (state,) = roles_of(GRU()).retained
        >>> state.coefficient(at_start(GRU(), {"z": torch.zeros(2)}))
        tensor([0.5000, 0.5000])
        """
        graph, own = graph_of(self.cell), Leaf("state", self.state)
        with torch.enable_grad():
            # The affine part is the derivative with gates held: what a peephole adds to it is no retention.
            s = leaves(own).detach().requires_grad_()
            new = _evaluate(graph, graph.update[self.state], lambda leaf: s if leaf == own else leaves(leaf), held=True)
            (slope,) = torch.autograd.grad(new.sum(), s)  # elementwise
        return slope


@dataclass(frozen=True)
class Roles:
    """What the pre-activations of a cell are for.

    Args:
        retained: states that are carried affinely, in the cell's order.
        gates: pre-activations that are squashed to (0, 1) and multiply something.
        candidates: what makes the content, of all states.
        read_out: what only shapes the output, or a state that is not carried.
        unknown: why nothing is known, if the update could not be traced.
    """

    retained: tuple[RetainedState, ...]
    gates: Mapping[str, Squash]
    candidates: tuple[str, ...]
    read_out: tuple[str, ...]
    unknown: str | None

    @property
    def gated(self) -> tuple[RetainedState, ...]:
        """The retained states whose retention is gated, each by its own gates."""
        return tuple(state for state in self.retained if state.retention)

    @property
    def retention(self) -> tuple[str, ...]:
        """All pre-activations that retain."""
        return tuple(dict.fromkeys(gate for state in self.retained for gate in state.retention))

    @property
    def write(self) -> tuple[str, ...]:
        """All write gates."""
        return tuple(dict.fromkeys(gate for state in self.retained for gate in state.write))

    @property
    def remember(self) -> str | None:
        """The first pre-activation that retains."""
        return next(iter(self.retention), None)

    @property
    def no_gates(self) -> str | None:
        """Why no gate has a value of its own; ``None`` where one has.

        >>> from isornn.cells.min_rnn import MinLSTM
        >>> roles_of(MinLSTM()).no_gates
        'the cell has no gates of one pre-activation each: one function mixes u_f, u_i'
        """
        if self.gates:
            return None
        if not self.retention:
            return NO_GATES
        mixed = ", ".join(f"u_{gate}" for gate in self.retention)
        return f"the cell has no gates of one pre-activation each: one function mixes {mixed}"


@functools.cache
def roles_of(cell: Cell) -> Roles:
    """The roles of the pre-activations of ``cell``.

    A class attribute of the cell (``remember``, ``write``, ``candidates``) replaces what is derived; the sign with
    which a gate retains is derived always.

    Raises:
        CellError: the cell has a mistake; its ``remember`` or ``write`` names a gate that no retained state depends on.

    >>> from isornn.cells import GRU, LSTM
    >>> (c,) = roles_of(LSTM()).retained
    >>> c.state, c.retention, c.write, c.candidates, roles_of(LSTM()).read_out
    ('c', {'f': 1}, ('i',), ('g',), ('o',))
    >>> tuple(roles_of(GRU()).gates), roles_of(GRU()).candidates
    (('r', 'z'), ('nx', 'nh'))
    """
    with torch.device("cpu"):  # signs are found by values, whatever the default device
        return _derived(graph_of(cell))


def _derived(graph: CellGraph) -> Roles:
    cell, parts = graph.cell, _Parts(graph)
    derived = [state for name in cell.states if (state := parts.retained(name)) is not None]
    retained = _overridden(cell, derived, parts)
    content = {gate for state in derived for gate in state.candidates}
    gates = {gate: parts.squash(gate) for gate in cell.gates if gate in parts.gates - content}
    made = {gate for state in retained for gate in state.candidates} if retained else parts.ungated()
    candidates = parts.ordered(made) if cell.candidates is None else cell.candidates
    inside = {gate for state in retained for gate in parts.inside(state.state)}
    shown = {gate for value in (graph.output, *graph.update.values()) for gate in parts.sum_of(value).preactivations}
    read_out = parts.ordered(shown - inside) if retained else ()
    return Roles(retained, gates, candidates, read_out, graph.untraced.get("update"))


def _overridden(cell: Cell, states: list[RetainedState], parts: _Parts) -> tuple[RetainedState, ...]:
    """The states with the roles that the cell itself states."""
    found = []
    for state in states:
        retention, write, candidates = state.retention, state.write, state.candidates
        if cell.remember is not None and cell.remember in retention:
            retention = {cell.remember: retention[cell.remember]}
        if cell.write is not None and cell.write in parts.inside(state.state):
            write = (cell.write,)
        if cell.candidates is not None:
            candidates = parts.ordered(set(cell.candidates) & parts.inside(state.state))
        found.append(replace(state, retention=retention, write=write, candidates=candidates))
    if states:
        _check_stated(cell, "remember", cell.remember, [gate for state in states for gate in state.retention])
        _check_stated(cell, "write", cell.write, [gate for state in states for gate in parts.inside(state.state)])
    return tuple(found)


def _check_stated(cell: Cell, role: str, gate: str | None, allowed: Iterable[str]) -> None:
    if gate is not None and gate not in allowed:
        known = ", ".join(dict.fromkeys(allowed)) or "none"
        raise CellError(
            f"{cell.name}.{role}: {gate!r} is none of the gates that its retained states depend on: {known}"
        )


def _sign(state: RetainedState, gate: str) -> int | None:
    """Of dA/du, by differences at drawn pre-activations; 0 if it has both signs, None if A does not depend on u."""
    generator = torch.Generator().manual_seed(0)
    u = {name: 2 * torch.randn(64, dtype=torch.float64, generator=generator) for name in state.cell.gates}
    before, after = (state.coefficient(at_start(state.cell, u | {gate: u[gate] + step})) for step in (0.0, 0.1))
    rises, falls = bool((after > before).any()), bool((after < before).any())
    return rises - falls if rises or falls else None


def at_start(cell: Cell, u: Mapping[str, Tensor]) -> LeafValues:
    """Values of a graph's leaves: these pre-activations, the others, states and input 0, parameters as they start."""
    u = dict(zip(u, torch.broadcast_tensors(*u.values()), strict=True))
    like = next(iter(u.values()))

    def value(leaf: Leaf) -> Tensor:
        if leaf.kind == "parameter":
            return torch.full_like(like, start_of(cell, leaf.name))
        return u[leaf.name] if leaf.kind == "gate" and leaf.name in u else torch.zeros_like(like)

    return value


def silences(cell: Cell, gate: str) -> bool:
    """Whether a new state or the output is 0, whatever the rest, where the pre-activation of ``gate`` is 0.

    >>> from isornn.cells import LSTM, TLSTM
    >>> silences(TLSTM(), "o"), silences(LSTM(), "o")  # tanh(0) and sigmoid(0)
    (True, False)
    """
    graph, generator = graph_of(cell), torch.Generator().manual_seed(0)
    like = torch.zeros(8, dtype=torch.float64)

    @functools.cache
    def drawn(leaf: Leaf) -> Tensor:
        if leaf.kind == "parameter":
            return torch.full_like(like, start_of(cell, leaf.name))
        return like if leaf == Leaf("gate", gate) else torch.randn(8, dtype=torch.float64, generator=generator)

    values = [
        value for value in (graph.output, *graph.update.values()) if Leaf("gate", gate) in graph.depends_on(value)
    ]
    return any(not bool(_evaluate(graph, value, drawn).any()) for value in values)


def start_of(cell: Cell, parameter: str) -> float:
    """What a parameter starts as; the median over units where they start differently."""
    start = cell.parameters[parameter]
    return float(start) if isinstance(start, (int, float)) else float(start.quantile(torch.tensor(0.5).double()))


def _evaluate(graph: CellGraph, wanted: Any, leaves: LeafValues, held: bool = False) -> Tensor:
    """A node's value; with ``held``, gates are constants to autograd."""

    def apply(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        value = function(*args, **kwargs)
        return value.detach() if held and name in _SQUASHES else value

    value: Tensor = graph.interpret(leaves, apply, [wanted])(wanted)
    return value


# -- structure: sums of products, whose factors say what they depend on -----------------------------------------------


@dataclass(frozen=True)
class _Factor:
    """A factor of a product: the leaves that it depends on, and the pre-activations behind a squash."""

    leaves: frozenset[Leaf] = frozenset()
    squashed: frozenset[str] = frozenset()
    is_leaf: bool = False

    @property
    def preactivations(self) -> frozenset[str]:
        return self.squashed | {leaf.name for leaf in self.leaves if leaf.kind == "gate"}

    @property
    def is_gate(self) -> bool:
        """Whether it depends on squashed pre-activations and parameters alone."""
        return bool(self.squashed) and not self.moving

    @property
    def moving(self) -> frozenset[Leaf]:
        """Leaves that are not parameters."""
        return frozenset(leaf for leaf in self.leaves if leaf.kind != "parameter")


@dataclass(frozen=True)
class _Sum:
    """Terms, each a product of factors; a number is a term without factors."""

    terms: tuple[tuple[_Factor, ...], ...]

    @property
    def whole(self) -> _Factor:
        """What all of it depends on, as one factor."""
        factors = [factor for term in self.terms for factor in term]
        leaves, squashed = (f.leaves for f in factors), (f.squashed for f in factors)
        return _Factor(frozenset[Leaf]().union(*leaves), frozenset[str]().union(*squashed))

    @property
    def preactivations(self) -> frozenset[str]:
        return self.whole.preactivations


def _sum(value: Any) -> _Sum:
    return value if isinstance(value, _Sum) else _Sum(((),))


# Functions with bounds of the caller's, by the names these go by.
_BOUNDED = {"clamp": ("min", "max"), "hardtanh": ("min_val", "max_val")}


def _is_unit_range(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    given = dict(zip(_BOUNDED[name], args[1:], strict=False)) | dict(kwargs)
    low, high = (given.get(bound) for bound in _BOUNDED[name])
    return isinstance(low, (int, float)) and isinstance(high, (int, float)) and (low, high) == (0, 1)


# Functions onto (0, 1) with the values of their argument between which they are not constant, if they are hard.
_SQUASHES: Mapping[str, tuple[float, float] | None] = {
    "sigmoid": None,
    "clamp": (0.0, 1.0),
    "hardtanh": (0.0, 1.0),
    "hardsigmoid": (-3.0, 3.0),
}


class _Parts:
    """A cell's graph, interpreted as sums of products."""

    def __init__(self, graph: CellGraph) -> None:
        self.graph = graph
        self.gates: set[str] = set()
        results = (*graph.reads.values(), *graph.update.values(), graph.output)
        values = graph.interpret(self._leaf, self._apply, results)
        self.sum_of: Callable[[Any], _Sum] = lambda node: _sum(values(node))
        self.nodes = self._live(results)

    def ordered(self, names: Iterable[str]) -> tuple[str, ...]:
        """Pre-activations in the order of the cell."""
        chosen = set(names)
        return tuple(gate for gate in self.graph.cell.gates if gate in chosen)

    def retained(self, state: str) -> RetainedState | None:
        """The roles for a state, if it is carried affinely."""
        carried, rest = self._split(state)
        if not carried:
            return None
        steering = self.ordered(gate for term in carried for factor in term for gate in factor.preactivations)
        write, candidates = set[str](), set[str]()
        for term in rest:
            gating = [factor for factor in term if self._gates(factor, steering)]
            content = [factor for factor in term if factor not in gating]
            gates = {gate for factor in gating for gate in factor.preactivations}
            made = {gate for factor in content for gate in factor.preactivations} - self.gates
            if not any(factor.moving or factor.squashed for factor in content):
                made, gates = gates - set(steering), gates & set(steering)  # sigmoid(u_i) sigmoid(u_g): all of it
            write, candidates = write | gates, candidates | made
        cell = self.graph.cell
        found = RetainedState(cell, state, dict.fromkeys(steering, 0), self.ordered(write), self.ordered(candidates))
        retention = {gate: sign for gate in steering if (sign := _sign(found, gate)) is not None}
        return RetainedState(cell, state, retention, found.write, found.candidates)

    def _gates(self, factor: _Factor, steering: tuple[str, ...]) -> bool:
        """Whether a factor of B is a gate: squashed, or a function of what the state is retained by."""
        alone = all(leaf.kind == "gate" for leaf in factor.moving)
        coupled = alone and factor.preactivations and factor.preactivations <= set(steering)
        return bool(coupled) or (factor.is_gate and factor.squashed <= self.gates)

    def inside(self, state: str) -> frozenset[str]:
        """The pre-activations that a state's new value depends on."""
        return self.sum_of(self.graph.update[state]).preactivations

    def ungated(self) -> set[str]:
        """The pre-activations that new states depend on and that are no gates."""
        return {gate for name in self.graph.update for gate in self.inside(name)} - self.gates

    def squash(self, gate: str) -> Squash:
        """The node that squashes a pre-activation, the update's own before one that is only read or given out."""
        nodes = [node for node in self.nodes if self._squashes(node, gate)]
        node = min(nodes, key=lambda node: self.graph.method_of(node) != "update")
        argument = node.args[0]
        ends = torch.tensor([-5.0, 5.0], dtype=torch.float64)
        low, high = _evaluate(self.graph, argument, at_start(self.graph.cell, {gate: ends})).tolist()
        slope, offset, bounds = (high - low) / 10, (low + high) / 2, _SQUASHES[name_of(node)]
        kinks = () if bounds is None else tuple(sorted((bound - offset) / slope for bound in bounds))
        middle = 0.0 if bounds is None else sum(bounds) / 2
        return Squash(self.graph.cell, gate, node, slope > 0, (middle - offset) / slope, kinks)

    def _live(self, results: Iterable[Any]) -> list[Node]:
        """The nodes that results depend on, in the order of computation."""
        live = {node for node in results if isinstance(node, Node)}
        for node in reversed(self.graph.nodes):
            live |= set(node.all_input_nodes) if node in live else set()
        return [node for node in self.graph.nodes if node in live]

    def _split(self, state: str) -> tuple[list[tuple[_Factor, ...]], list[tuple[_Factor, ...]]]:
        """The terms of A and of B; no terms of A where the update is not ``A s + B`` with such an A."""
        own = Leaf("state", state)
        if state not in self.graph.update:
            return [], []
        carried, rest = [], []
        for term in self.sum_of(self.graph.update[state]).terms:
            others = [factor for factor in term if not (factor.is_leaf and own in factor.leaves)]
            moving = [leaf for factor in others for leaf in factor.moving]
            if len(term) - len(others) > 1 or own in moving:
                return [], []
            if len(others) == len(term):
                rest.append(term)
            elif any(leaf.kind != "gate" for leaf in moving):
                return [], []
            else:
                carried.append(tuple(others))
        return carried, rest

    def _squashes(self, node: Node, gate: str) -> bool:
        found = self.sum_of(node).terms if name_of(node) in _SQUASHES and node not in self.graph.leaves else ()
        return found == ((_Factor(squashed=frozenset({gate})),),)

    @staticmethod
    def _leaf(leaf: Leaf) -> _Sum:
        return _Sum(((_Factor(frozenset({leaf}), is_leaf=True),),))

    def _apply(self, name: str, _: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if name in _ARITHMETIC and not kwargs:
            return _ARITHMETIC[name](self, *args)
        if (gate := self._squashed_alone(name, args, kwargs)) is not None:
            return _Sum(((_Factor(squashed=frozenset({gate})),),))
        given = [value for value in values_in(args, kwargs) if isinstance(value, _Sum)]
        return _Sum(((_Sum(tuple(term for value in given for term in value.terms)).whole,),)) if given else 0.0

    def _squashed_alone(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """The pre-activation of a gate: ``sigmoid(a u + peephole)``, or a clamp; a peephole has a weight per unit."""
        if name not in _SQUASHES or not isinstance(args[0], _Sum):
            return None
        if name in _BOUNDED and not _is_unit_range(name, args, kwargs):
            return None
        steered = [term for term in args[0].terms if any(factor.preactivations for factor in term)]
        own = [term[0] for term in steered if len(term) == 1 and term[0].is_leaf]
        peepholes = [term for term in steered if any(f.is_leaf and not f.moving for f in term)]
        if len(own) != 1 or len(own) + len(peepholes) != len(steered):
            return None
        (gate,) = own[0].preactivations
        return gate

    def times(self, left: Any, right: Any) -> Any:
        """The product; a factor of gates alone on something that varies makes them gates."""
        if not isinstance(left, _Sum) and not isinstance(right, _Sum):
            return 0.0
        left, right = _sum(left), _sum(right)
        for one, other in ((left.whole, right.whole), (right.whole, left.whole)):
            if one.is_gate and (other.moving or other.squashed):
                self.gates |= one.squashed
        return _Sum(tuple((*a, *b) for a in left.terms for b in right.terms))

    def power(self, base: Any, exponent: Any) -> Any:
        """The product of equal factors; anything else is a function."""
        if isinstance(base, _Sum) and isinstance(exponent, int) and exponent > 0:
            return functools.reduce(self.times, [base] * exponent)
        return self._apply("power of", pow, (base, exponent), {})

    def over(self, left: Any, right: Any) -> Any:
        """The product with the reciprocal, which is one factor."""
        return self.times(left, self._apply("reciprocal", pow, (right,), {}))


def _plus(left: Any, right: Any) -> Any:
    if not isinstance(left, _Sum) and not isinstance(right, _Sum):
        return 0.0
    return _Sum(_sum(left).terms + _sum(right).terms)


# Signs and numbers do not matter here: a - b has the terms of a + b.
_ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "add": lambda parts, a, b: _plus(a, b),
    "sub": lambda parts, a, b: _plus(a, b),
    "neg": lambda parts, a: a,
    "mul": lambda parts, a, b: parts.times(a, b),
    "div": lambda parts, a, b: parts.over(a, b),
    "square": lambda parts, a: parts.times(a, a),
    "pow": lambda parts, a, b: parts.power(a, b),
    "lerp": lambda parts, a, b, share: _plus(a, parts.times(share, _plus(a, b))),
}
