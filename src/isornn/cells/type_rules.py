"""Whether a cell respects types: the rules of Balduzzi & Ghifary 2016 applied to its definition.

A type is a space with an orthonormal basis, and vectors may be added in one basis only. The cell's graph is evaluated
in types: every operation says which of them must be one. What a matrix makes of a state is in a basis of its own, and
the question is whether that can be the state's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from isornn.cells.cell import Cell
from isornn.cells.definition import check_definition
from isornn.cells.errors import CellError
from isornn.cells.graph import CellGraph, Leaf, Node, name_of, values_in
from isornn.cells.structure import affine_in_states
from isornn.cells.trace import graph_of

Verdict = Literal["strongly", "weakly", "not", "undetermined"]

_MOST_PRODUCTS = 12  # each has two readings, and all combinations are tried


@dataclass(frozen=True)
class Typing:
    """How a cell is typed, and why.

    Args:
        cell: its name.
        verdict: ``"strongly"``, ``"weakly"``, ``"not"`` (typed) or ``"undetermined"``.
        offences: the operations that break a rule, in words; none where the cell is strongly typed.
        carried: states whose new value reads the old one coordinatewise, not through a matrix.
        affine: whether the new states are affine in the old ones at given pre-activations.
        reason: why the verdict is undetermined.

    >>> from isornn.cells import LSTM
    >>> found = typing_of(LSTM())
    >>> found.verdict, found.carried
    ('weakly', ('c',))
    """

    cell: str
    verdict: Verdict
    offences: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()
    affine: bool = False
    reason: str | None = None

    def __str__(self) -> str:
        if self.reason is not None:
            return f"{self.cell}: undetermined, {self.reason}"
        carried = f"; carried coordinatewise: {', '.join(self.carried)}" if self.carried else ""
        return "\n- ".join((f"{self.cell} is {self.verdict} typed{carried}", *self.offences))


def typing_of(cell: Cell, *, symmetric: bool = False) -> Typing:
    """Apply the type rules to a cell.

    The operations admitted (Definition 2):

    - T1: a function of one value, coordinatewise, keeps its type; so do a scalar's product and sum with it.
    - T2: ``+``, ``-``, ``max`` and ``min`` of two values of one type.
    - T3: a matrix takes a type to another. W x and V x_(t-1) may therefore be in whichever type the cell needs; W h is
      in another than h's, since V = P D Q^T ends in the basis P and begins in Q (eqs. 10, 11).
    - T4: in ``v * w`` one factor acts on the other, and the product is of the latter's type. Which acts is not written;
      the cell is given the reading with the fewest offences.

    At the next step the new state is the old one, so the two are of one type. Two demands follow (section 1):
    (i) types are preserved: no matrix's result, through any chain of matrices, is of the type that the matrix reads;
    (ii) learned parameters are kept apart from the state: no matrix reads anything that depends on a state.

    *Strongly* typed is a cell that meets both. *Weakly* typed (section 3.1: "constraints or restrictions on
    off-diagonal operations on recurrent states") is another that at least meets (i), or carries a state over
    coordinatewise (the LSTM's c), or lets a matrix read a gated state (the GRU's). The rest is *not* typed.

    Two points on which the paper's text leaves room: trained numbers per unit (`Cell.parameters`) may act on the state,
    for the paper calls T-MR (eq. 65) strongly typed; and ``v / w`` counts as ``v * (1/w)``, T1 and T4.

    Args:
        cell: the library's or a user's own.
        symmetric: whether recurrent matrices are held symmetric, V = P D P^T, which keeps types (eqs. 12, 13).

    Returns:
        The verdict; ``"undetermined"`` with the reason where the cell uses an operation the rules do not speak of.

    Source: Balduzzi & Ghifary 2016, sections 2 and 3.1.

    >>> from isornn.cells import LSTM, TRNN, Vanilla
    >>> typing_of(TRNN()).verdict, typing_of(LSTM()).verdict, typing_of(Vanilla()).verdict
    ('strongly', 'weakly', 'not')
    >>> print(typing_of(Vanilla()))
    vanilla is not typed
    - W_h takes h to another basis, yet its result is added up in h's own: V z + V^2 z + ... (T2)
    - W_h reads h: the feature u_h is not stateless
    >>> typing_of(Vanilla(), symmetric=True).offences
    ('W_h reads h: the feature u_h is not stateless',)
    """
    check_definition(cell)
    try:
        return _judged(graph_of(cell), symmetric)
    except (_Unspoken, CellError) as error:
        return Typing(cell.name, "undetermined", reason=str(error))


def _judged(graph: CellGraph, symmetric: bool) -> Typing:
    cell, demands = graph.cell, _Demands()
    if graph.untraced or not cell.pointwise:
        why = [f"{method} could not be traced: {reason}" for method, reason in graph.untraced.items()]
        raise _Unspoken("; ".join(why) or "the update acts on several units together")
    types = {leaf: demands.new() for leaf in graph.leaves.values()}
    results = [*graph.reads.values(), *graph.update.values(), graph.output]
    kind = graph.interpret(types.__getitem__, demands.applied, results)
    for name in cell.states:
        state = types[Leaf("state", name)]
        demands.same(kind(graph.update[name]), state)
        demands.same(types[Leaf("new state", name)], state)
    read = {gate: _states(graph, value) for gate, value in graph.reads.items()}
    reached = _reached(graph)
    for gate in reached:
        if symmetric:
            demands.same(types[Leaf("gate", gate)], kind(graph.reads[gate]))
        else:
            demands.images.append((gate, kind(graph.reads[gate]), types[Leaf("gate", gate)]))
    mixing = demands.mixing()
    names = {gate: ", ".join(sorted(read[gate] or states)) for gate, states in reached.items()}
    carried = tuple(name for name in cell.states if name in _states(graph, graph.update[name]))
    gated = any(read[gate] and _is_product(graph.reads[gate]) for gate in reached)
    return Typing(
        cell.name,
        verdict="strongly" if not reached else "weakly" if not mixing or carried or gated else "not",
        offences=(
            *(_MIXES.format(gate=gate, names=names[gate]) for gate in mixing),
            *(f"W_{gate} reads {names[gate]}: the feature u_{gate} is not stateless" for gate in reached),
        ),
        carried=carried,
        affine=affine_in_states(graph),
    )


_MIXES = "W_{gate} takes {names} to another basis, yet its result is added up in {names}'s own: V z + V^2 z + ... (T2)"


def _states(graph: CellGraph, value: Any) -> set[str]:
    """The states that a value depends on coordinatewise."""
    return {leaf.name for leaf in graph.depends_on(value) if leaf.kind == "state"}


def _reached(graph: CellGraph) -> dict[str, set[str]]:
    """By gate whose matrix reads something that depends on states, which, those by way of other matrices included."""
    found: dict[str, set[str]] = {}
    for gate, value in graph.reads.items():  # a read may use gates that come before its own
        inner = (found.get(leaf.name, set()) for leaf in graph.depends_on(value) if leaf.kind == "gate")
        if states := _states(graph, value).union(*inner):
            found[gate] = states
    return found


def _is_product(value: Any) -> bool:
    return (
        isinstance(value, Node)
        and name_of(value) in _MULTIPLIED
        and sum(isinstance(a, Node) for a in values_in(value.args, value.kwargs)) == 2
    )


class _Type(int):
    """A type's number, which distinguishes a value from the plain numbers in an expression."""


@dataclass
class _Demands:
    """What the operations of a cell ask of the types."""

    types: int = 0
    equal: list[tuple[int, int]] = field(default_factory=list)
    products: list[tuple[int, int, int]] = field(default_factory=list)
    images: list[tuple[str, int, int]] = field(default_factory=list)

    def new(self) -> _Type:
        """A type that nothing is known of yet."""
        self.types += 1
        return _Type(self.types - 1)

    def same(self, a: Any, b: Any) -> None:
        """T2: the two are of one type; a number is of any."""
        if isinstance(a, _Type) and isinstance(b, _Type):
            self.equal.append((a, b))

    def applied(self, name: str, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Type:
        """The type of an operation's result, by the rule that the operation falls under.

        Raises:
            _Unspoken: it falls under none.
        """
        given = values_in(args, kwargs)
        values = [a for a in given if isinstance(a, _Type)]
        if any(isinstance(a, Tensor) and a.dim() for a in given):
            raise _Unspoken(f"{name} with a tensor of fixed numbers, which has no type")
        if len(values) == 1:  # T1: the graph has found it to act coordinatewise
            return values[0]
        if len(values) == 2 and name in _ADDED:
            self.same(values[0], values[1])
            return values[0]
        if len(values) == 2 and name in _MULTIPLIED:
            product = self.new()
            self.products.append((product, values[0], values[1]))
            return product
        raise _Unspoken(f"{name} of {len(values)} values is none of the operations T1 to T4")

    def mixing(self) -> list[str]:
        """Gates whose matrix ends, maybe by way of others, in the type it began with, in the kindest reading of T4."""
        if not self.images:
            return []
        if len(self.products) > _MOST_PRODUCTS:
            raise _Unspoken(f"{len(self.products)} products have too many readings; {_MOST_PRODUCTS} can be tried")
        return min((self._mixing(reading) for reading in itertools.product((2, 1), repeat=len(self.products))), key=len)

    def _mixing(self, reading: Iterable[int]) -> list[str]:
        chosen = [(of[0], of[acted]) for of, acted in zip(self.products, reading, strict=True)]
        kind = _classes(self.types, [*self.equal, *chosen])
        steps = [(kind[source], kind[target]) for _, source, target in self.images]
        return [gate for (gate, *_), (a, b) in zip(self.images, steps, strict=True) if a in _reachable(b, steps)]


def _classes(count: int, equal: Iterable[tuple[int, int]]) -> list[int]:
    """By type, a representative of all the types that must be one with it."""
    kind = list(range(count))
    for a, b in equal:
        old, new = kind[a], kind[b]
        kind = [new if k == old else k for k in kind]
    return kind


def _reachable(start: int, steps: Iterable[tuple[int, int]]) -> set[int]:
    found, fresh = {start}, {start}
    while fresh:
        fresh = {b for a, b in steps if a in fresh} - found
        found |= fresh
    return found


class _Unspoken(Exception):
    """An operation that the rules do not speak of."""


_ADDED = {"add", "sub", "rsub", "maximum", "minimum", "fmax", "fmin", "max", "min"}
_MULTIPLIED = {"mul", "div"}

__all__ = ["Typing", "Verdict", "typing_of"]
