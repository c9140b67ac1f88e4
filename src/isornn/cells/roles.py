"""What the pre-activations of a cell are for, derived from its graph: to retain, write, make content, read out."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isornn.cells.cell import Cell
from isornn.cells.errors import CellError
from isornn.cells.factors import SQUASHES, Factor, SumsOfProducts
from isornn.cells.graph import CellGraph, Leaf, Node, name_of
from isornn.cells.graph_values import LeafValues, at_start, evaluate, start_of
from isornn.cells.trace import graph_of

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
        return evaluate(graph_of(self.cell), self.node, leaves)

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
            s, new = leaves(own).detach().requires_grad_(), graph.update[self.state]
            value = evaluate(graph, new, lambda leaf: s if leaf == own else leaves(leaf), held=SQUASHES)
            (slope,) = torch.autograd.grad(value.sum(), s)  # elementwise
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
    cell, parts = graph.cell, SumsOfProducts(graph)
    derived = [state for name in cell.states if (state := _retained(parts, name)) is not None]
    retained = _overridden(cell, derived, parts)
    content = {gate for state in derived for gate in state.candidates}
    gates = {gate: _squash(parts, gate) for gate in cell.gates if gate in parts.gates - content}
    made = {gate for state in retained for gate in state.candidates} if retained else parts.ungated()
    candidates = parts.ordered(made) if cell.candidates is None else cell.candidates
    inside = {gate for state in retained for gate in parts.inside(state.state)}
    shown = {gate for value in (graph.output, *graph.update.values()) for gate in parts.sum_of(value).preactivations}
    read_out = parts.ordered(shown - inside) if retained else ()
    return Roles(retained, gates, candidates, read_out, graph.untraced.get("update"))


def _retained(parts: SumsOfProducts, state: str) -> RetainedState | None:
    """The roles for a state, if it is carried affinely."""
    carried, rest = parts.split(state)
    if not carried:
        return None
    steering = parts.ordered(gate for term in carried for factor in term for gate in factor.preactivations)
    write, candidates = set[str](), set[str]()
    for term in rest:
        gating = [factor for factor in term if _is_gate_of(parts, factor, steering)]
        content = [factor for factor in term if factor not in gating]
        gates = {gate for factor in gating for gate in factor.preactivations}
        made = {gate for factor in content for gate in factor.preactivations} - parts.gates
        if not any(factor.moving or factor.squashed for factor in content):
            made, gates = gates - set(steering), gates & set(steering)  # sigmoid(u_i) sigmoid(u_g): all of it
        write, candidates = write | gates, candidates | made
    cell = parts.graph.cell
    found = RetainedState(cell, state, dict.fromkeys(steering, 0), parts.ordered(write), parts.ordered(candidates))
    return replace(found, retention={gate: sign for gate in steering if (sign := _sign(found, gate)) is not None})


def _is_gate_of(parts: SumsOfProducts, factor: Factor, steering: tuple[str, ...]) -> bool:
    """Whether a factor of B is a gate: squashed, or a function of what the state is retained by."""
    alone = all(leaf.kind == "gate" for leaf in factor.moving)
    coupled = alone and factor.preactivations and factor.preactivations <= set(steering)
    return bool(coupled) or (factor.is_gate and factor.squashed <= parts.gates)


def _squash(parts: SumsOfProducts, gate: str) -> Squash:
    """The node that squashes a pre-activation, the update's own before one that is only read or given out."""
    cell, nodes = parts.graph.cell, [node for node in parts.nodes if parts.squashes(node, gate)]
    node = min(nodes, key=lambda node: parts.graph.method_of(node) != "update")
    ends = torch.tensor([-5.0, 5.0], dtype=torch.float64)
    low, high = evaluate(parts.graph, node.args[0], at_start(cell, {gate: ends})).tolist()
    slope, offset, bounds = (high - low) / 10, (low + high) / 2, SQUASHES[name_of(node)]
    kinks = () if bounds is None else tuple(sorted((bound - offset) / slope for bound in bounds))
    middle = 0.0 if bounds is None else sum(bounds) / 2
    return Squash(cell, gate, node, slope > 0, (middle - offset) / slope, kinks)


def _overridden(cell: Cell, states: list[RetainedState], parts: SumsOfProducts) -> tuple[RetainedState, ...]:
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
    return any(not bool(evaluate(graph, value, drawn).any()) for value in values)
