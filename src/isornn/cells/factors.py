"""A cell's graph as sums of products: what each factor depends on, and which pre-activations are gates."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from isornn.cells.graph import CellGraph, Leaf, Node, name_of, values_in

# Functions onto (0, 1) with the values of their argument between which they are not constant, if they are hard.
SQUASHES: Mapping[str, tuple[float, float] | None] = {
    "sigmoid": None,
    "clamp": (0.0, 1.0),
    "hardtanh": (0.0, 1.0),
    "hardsigmoid": (-3.0, 3.0),
}
# Functions with bounds of the caller's, by the names these go by.
_BOUNDED = {"clamp": ("min", "max"), "hardtanh": ("min_val", "max_val")}


@dataclass(frozen=True)
class Factor:
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
class Sum:
    """Terms, each a product of factors; a number is a term without factors."""

    terms: tuple[tuple[Factor, ...], ...]

    @property
    def whole(self) -> Factor:
        """What all of it depends on, as one factor."""
        factors = [factor for term in self.terms for factor in term]
        leaves, squashed = (f.leaves for f in factors), (f.squashed for f in factors)
        return Factor(frozenset[Leaf]().union(*leaves), frozenset[str]().union(*squashed))

    @property
    def preactivations(self) -> frozenset[str]:
        return self.whole.preactivations


def _sum(value: Any) -> Sum:
    return value if isinstance(value, Sum) else Sum(((),))


def _is_unit_range(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    given = dict(zip(_BOUNDED[name], args[1:], strict=False)) | dict(kwargs)
    low, high = (given.get(bound) for bound in _BOUNDED[name])
    return isinstance(low, (int, float)) and isinstance(high, (int, float)) and (low, high) == (0, 1)


class SumsOfProducts:
    """A cell's graph, interpreted as sums of products."""

    def __init__(self, graph: CellGraph) -> None:
        self.graph = graph
        self.gates: set[str] = set()
        results = (*graph.reads.values(), *graph.update.values(), graph.output)
        values = graph.interpret(self._leaf, self._apply, results)
        self.sum_of: Callable[[Any], Sum] = lambda node: _sum(values(node))
        self.nodes = self._live(results)

    def ordered(self, names: Iterable[str]) -> tuple[str, ...]:
        """Pre-activations in the order of the cell."""
        chosen = set(names)
        return tuple(gate for gate in self.graph.cell.gates if gate in chosen)

    def inside(self, state: str) -> frozenset[str]:
        """The pre-activations that a state's new value depends on."""
        return self.sum_of(self.graph.update[state]).preactivations

    def ungated(self) -> set[str]:
        """The pre-activations that new states depend on and that are no gates."""
        return {gate for name in self.graph.update for gate in self.inside(name)} - self.gates

    def split(self, state: str) -> tuple[list[tuple[Factor, ...]], list[tuple[Factor, ...]]]:
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

    def squashes(self, node: Node, gate: str) -> bool:
        """Whether a node is a squash of this pre-activation."""
        found = self.sum_of(node).terms if name_of(node) in SQUASHES and node not in self.graph.leaves else ()
        return found == ((Factor(squashed=frozenset({gate})),),)

    def _live(self, results: Iterable[Any]) -> list[Node]:
        """The nodes that results depend on, in the order of computation."""
        live = {node for node in results if isinstance(node, Node)}
        for node in reversed(self.graph.nodes):
            live |= set(node.all_input_nodes) if node in live else set()
        return [node for node in self.graph.nodes if node in live]

    @staticmethod
    def _leaf(leaf: Leaf) -> Sum:
        return Sum(((Factor(frozenset({leaf}), is_leaf=True),),))

    def _apply(self, name: str, _: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if name in _ARITHMETIC and not kwargs:
            return _ARITHMETIC[name](self, *args)
        if (gate := self._squashed_alone(name, args, kwargs)) is not None:
            return Sum(((Factor(squashed=frozenset({gate})),),))
        given = [value for value in values_in(args, kwargs) if isinstance(value, Sum)]
        return Sum(((Sum(tuple(term for value in given for term in value.terms)).whole,),)) if given else 0.0

    def _squashed_alone(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """The pre-activation of a gate: ``sigmoid(a u + peephole)``, or a clamp; a peephole has a weight per unit."""
        if name not in SQUASHES or not isinstance(args[0], Sum):
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
        if not isinstance(left, Sum) and not isinstance(right, Sum):
            return 0.0
        left, right = _sum(left), _sum(right)
        for one, other in ((left.whole, right.whole), (right.whole, left.whole)):
            if one.is_gate and (other.moving or other.squashed):
                self.gates |= one.squashed
        return Sum(tuple((*a, *b) for a in left.terms for b in right.terms))

    def power(self, base: Any, exponent: Any) -> Any:
        """The product of equal factors; anything else is a function."""
        if isinstance(base, Sum) and isinstance(exponent, int) and exponent > 0:
            return functools.reduce(self.times, [base] * exponent)
        return self._apply("power of", pow, (base, exponent), {})

    def over(self, left: Any, right: Any) -> Any:
        """The product with the reciprocal, which is one factor."""
        return self.times(left, self._apply("reciprocal", pow, (right,), {}))


def _plus(left: Any, right: Any) -> Any:
    if not isinstance(left, Sum) and not isinstance(right, Sum):
        return 0.0
    return Sum(_sum(left).terms + _sum(right).terms)


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
