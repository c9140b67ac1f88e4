"""A cell's ``read``, ``update`` and ``output`` as one expression graph, and what can be asked of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from isornn.cells.cell import Cell

INPUT = "x"

Node = fx.Node


@dataclass(frozen=True)
class Leaf:
    """A free variable of the graph.

    Args:
        kind: ``"state"``, ``"gate"`` (a pre-activation), ``"parameter"``, ``"input"``, or ``"new state"`` (what
            ``output`` is given).
        name: as the cell has it.
    """

    kind: str
    name: str


@dataclass(frozen=True)
class CellGraph:
    """What a cell's methods return, as expressions in states, pre-activations, parameters and input.

    Args:
        cell: the cell.
        leaves: by node, the free variable that it is.
        nodes: all nodes in the order of computation, leaves included.
        reads: by gate that reads a state, what its recurrent matrix multiplies.
        update: by state, its new value.
        output: the output, in terms of *new* states.
        untraced: by method (``"read"``, ``"update"``, ``"output"``), why it could not be traced; what it would return
            is absent above.
    """

    cell: Cell
    leaves: Mapping[Node, Leaf]
    nodes: tuple[Node, ...]
    reads: Mapping[str, Any]
    update: Mapping[str, Any]
    output: Any
    untraced: Mapping[str, str]

    @functools.cached_property
    def plain_reads(self) -> tuple[str, ...]:
        """The gates whose matrix multiplies the first state itself: one product serves them all.

        >>> from isornn.cells import ChoGRU
        >>> from isornn.cells.trace import graph_of
        >>> graph_of(ChoGRU()).plain_reads
        ('r', 'z')
        """
        first = Leaf("state", self.cell.states[0])
        return tuple(gate for gate, value in self.reads.items() if self.leaves.get(value) == first)

    @property
    def gated_reads(self) -> tuple[str, ...]:
        """The gates whose matrix multiplies anything else."""
        plain = self.plain_reads
        return tuple(gate for gate, what in self.cell.gates.items() if what.state and gate not in plain)

    @property
    def output_is_first_state(self) -> bool:
        """Whether the layer's output is the first state itself."""
        return self.leaves.get(self.output) == Leaf("new state", self.cell.states[0])

    def interpret(
        self,
        leaf: Callable[[Leaf], Any],
        apply: Callable[[str, Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any],
        wanted: Iterable[Any] | None = None,
        given: Mapping[Node, Any] | None = None,
    ) -> Callable[[Any], Any]:
        """Evaluate the graph in any domain: tensors, polynomials, types.

        Args:
            leaf: the value of a free variable.
            apply: ``apply(name, function, args, kwargs)``, the value of an operation; ``name`` is torch's own ("mul",
                "sigmoid"), whether it was spelled as an operator, a function or a method.
            wanted: evaluate only what these need; all if not given.
            given: values of nodes that are not to be evaluated.

        Returns:
            The value of a node, or of a number, which is its own.

        >>> from isornn.cells import LSTM
        >>> from isornn.cells.trace import graph_of
        >>> graph = graph_of(LSTM())
        >>> spelled = graph.interpret(lambda leaf: leaf.name, lambda name, f, args, _: f"{name}({', '.join(args)})")
        >>> spelled(graph.update["c"])
        'add(mul(sigmoid(f), c), mul(sigmoid(i), tanh(g)))'
        """
        values: dict[Node, Any] = dict(given or {})

        def value_of(node: Any) -> Any:
            return values[node] if isinstance(node, Node) else node

        chosen = None if wanted is None else needed(wanted)
        for node in self.nodes:
            if node in values or (chosen is not None and node not in chosen):
                continue
            if node in self.leaves:
                values[node] = leaf(self.leaves[node])
            else:
                args = fx.node.map_arg(node.args, lambda n: values[n])
                kwargs = fx.node.map_arg(node.kwargs, lambda n: values[n])
                values[node] = apply(name_of(node), function_of(node), args, kwargs)
        return value_of

    def depends_on(self, value: Any) -> frozenset[Leaf]:
        """The free variables in the expression of ``value``.

        >>> from isornn.cells import ChoGRU
        >>> from isornn.cells.trace import graph_of
        >>> graph = graph_of(ChoGRU())
        >>> sorted(leaf.name for leaf in graph.depends_on(graph.reads["n"]))
        ['h', 'r']
        """
        return frozenset(self.leaves[node] for node in needed([value]) if node in self.leaves)

    def method_of(self, node: Node) -> str:
        """The method that computes ``node``: ``"read"``, ``"update"`` or ``"output"``."""
        results = {"read": self.reads.values(), "update": self.update.values(), "output": (self.output,)}
        return next((method for method, values in results.items() if node in needed(values)), "update")


def needed(wanted: Iterable[Any]) -> set[Node]:
    """The nodes that it takes to compute those that are wanted, these included."""
    found: set[Node] = set()
    fresh = [node for node in wanted if isinstance(node, Node)]
    while fresh:
        node = fresh.pop()
        if node not in found:
            found.add(node)
            fresh += node.all_input_nodes
    return found


def evaluate(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The operation itself: `CellGraph.interpret` with tensors."""
    return function(*args, **kwargs)


def name_of(node: Node) -> str:
    """The operation's name in torch: operators, functions and methods of one operation share it.

    >>> import operator
    >>> import torch
    >>> [name_of(fx.Graph().call_function(spelled, (2.0, 3.0))) for spelled in (operator.mul, torch.mul)]
    ['mul', 'mul']
    """
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return _SYNONYMS.get(name.strip("_"), name.strip("_"))


_SYNONYMS = {
    **{
        "truediv": "div",
        "divide": "div",
        "true_divide": "div",
        "multiply": "mul",
        "subtract": "sub",
        "negative": "neg",
    },
    **{"clip": "clamp", "special_expit": "sigmoid", "expit": "sigmoid", "arctan": "atan", "arcsinh": "asinh"},
    **{"logsigmoid": "log_sigmoid"},
}


def function_of(node: Node) -> Callable[..., Any]:
    """The operation as a function of tensors."""
    if node.op == "call_method":
        return getattr(Tensor, str(node.target))
    assert callable(node.target)
    return node.target


def values_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments of an operation, those in lists too.

    >>> values_in(([1.0, 2.0], -1), {"dim": 0})
    [1.0, 2.0, -1, 0]
    """
    found: list[Any] = []
    fx.node.map_aggregate((args, dict(kwargs)), found.append)
    return found
