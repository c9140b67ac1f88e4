"""One step of a cell and its derivatives as pointwise expressions: what kernels are printed from.

torch itself differentiates: the cell's graph is evaluated on tensors that hold no numbers, and every operation on them,
those of autograd's backward pass included, is recorded in one graph of ``aten`` operations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from isornn.cells import Cell
from isornn.cells.graph import CellGraph, Leaf, Node, evaluate
from isornn.cells.trace import graph_of
from isornn.nn.kernels.operations import ZERO
from isornn.nn.kernels.tape import NotPrintable, Recorder, Symbol, Tape

OUTPUT = "output"
T = TypeVar("T")


@dataclass(frozen=True)
class Program:
    """One step of a cell in ``aten`` operations.

    Leaves are those of the cell's graph and, in the backward expressions, ``Leaf("gradient", s)`` of a state s after
    the step, of ``"output"``, and ``Leaf("read gradient", k)`` of what gate k's matrix multiplies.

    Args:
        cell: the cell.
        leaves: by node, the free variable that it is.
        units: expressions in the cell's parameters alone, which are computed once and not at every step.
        reads: by gate whose matrix reads a gated state, what it multiplies.
        new: by result (the states, then ``"output"`` where that is not the first state), its value.
        update_gradients: by leaf, the derivative of ``sum_r <gradient r, new r>``; absent where it is 0.
        read_gradients: by gate of ``reads``, likewise of ``<read gradient k, reads k>``.
    """

    cell: Cell
    leaves: Mapping[Node, Leaf]
    units: tuple[Node, ...]
    reads: Mapping[str, Node]
    new: Mapping[str, Node]
    update_gradients: Mapping[Leaf, Node]
    read_gradients: Mapping[str, Mapping[Leaf, Node]]


@functools.cache
def program_of(cell: Cell) -> Program:
    """Record one step of the cell, forwards and backwards.

    Raises:
        NotPrintable: a method of the cell cannot be traced, or one of its operations is not pointwise arithmetic.

    >>> from isornn.cells import LSTM
    >>> [node.name for node in program_of(LSTM()).new.values()]
    ['mul_tensor_2', 'add_tensor']
    """
    graph = graph_of(cell)
    if not cell.pointwise:
        raise NotPrintable(f"{cell.name} is not pointwise")
    for method, reason in graph.untraced.items():
        raise NotPrintable(f"{cell.name}.{method} cannot be traced ({reason})")

    def recorded() -> Program:
        recording = _Recording(graph)
        with Recorder(recording.tape):
            return recording.program()

    try:
        return in_fresh_modes(recorded)
    except NotPrintable:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:  # of an operation on a unit's numbers by itself
        reason = str(error).partition("\n")[0]
        raise NotPrintable(f"{cell.name}: a step of one unit alone cannot be recorded ({reason})") from error


def with_autograd(call: Callable[[], T]) -> T:
    """What ``call`` returns with autograd on, also where torch has switched it off as a whole, in an operation."""
    if torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradCPU):
        return in_fresh_modes(call)
    with torch.inference_mode(False), torch.enable_grad():
        return call()


def in_fresh_modes(call: Callable[[], T]) -> T:
    """What ``call`` returns where no mode is on: autograd, inference mode and the like are set per thread.

    >>> with torch.inference_mode():
    ...     in_fresh_modes(torch.is_grad_enabled)
    True
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()


class _Recording:
    """Evaluates a cell's graph on `Symbol`s, where a `Recorder` writes down what is computed with them."""

    def __init__(self, graph: CellGraph) -> None:
        self.graph = graph
        self.tape = Tape()
        self.units = _of_parameters_alone(graph)
        self.symbols: dict[Leaf, Symbol] = {}

    def program(self) -> Program:
        cell, graph = self.graph.cell, self.graph
        value = self._evaluated()
        reads = {gate: value(graph.reads[gate]) for gate in graph.gated_reads}
        new = {name: value(node) for name, node in graph.update.items()}
        if not graph.output_is_first_state:
            new[OUTPUT] = self._evaluated(new)(graph.output)
        return Program(
            cell,
            self.tape.leaves,
            self.units,
            {gate: self._node(found, gate) for gate, found in reads.items()},
            {name: self._node(found, name) for name, found in new.items()},
            self._gradients({Leaf("gradient", name): found for name, found in new.items()}),
            {gate: self._gradients({Leaf("read gradient", gate): found}) for gate, found in reads.items()},
        )

    def _evaluated(self, new: Mapping[str, Any] | None = None) -> Callable[[Any], Any]:
        """The values of the graph's nodes; ``new`` are the states that ``output`` is given."""
        constants = {node: self._symbol(Leaf("unit", str(place))) for place, node in enumerate(self.units)}

        def leaf(of: Leaf) -> Any:
            if of.kind == "new state":
                return None if new is None else new[of.name]
            return self._symbol(of)

        graph = self.graph
        wanted = [*graph.update.values(), *graph.reads.values()] if new is None else [graph.output]
        return graph.interpret(leaf, evaluate, wanted, constants)

    def _symbol(self, leaf: Leaf) -> Symbol:
        if leaf not in self.symbols:
            self.symbols[leaf] = Symbol(self.tape.leaf(leaf), requires_grad=True)
        return self.symbols[leaf]

    def _node(self, found: Any, what: str) -> Node:
        if not isinstance(found, Symbol):
            raise NotPrintable(f"{self.graph.cell.name}: {what} is {found!r} at every step")
        if found.dtype != torch.float64:
            raise NotPrintable(f"{self.graph.cell.name}: {what} is {found.dtype}, not in the layer's precision")
        return found.node

    def _gradients(self, results: Mapping[Leaf, Any]) -> dict[Leaf, Node]:
        terms = [found * self._symbol(leaf) for leaf, found in results.items() if found.requires_grad]
        if not terms:
            return {}
        sources = [leaf for leaf in self.symbols if leaf.kind in ("state", "gate", "unit", "input")]
        total = functools.reduce(torch.add, terms)
        found = torch.autograd.grad(total, [self.symbols[leaf] for leaf in sources], allow_unused=True)
        return {
            leaf: gradient.node
            for leaf, gradient in zip(sources, found, strict=True)
            if isinstance(gradient, Symbol) and gradient.node.target is not ZERO
        }


def _of_parameters_alone(graph: CellGraph) -> tuple[Node, ...]:
    """The largest expressions that depend on nothing but the cell's parameters, parameters included."""
    alone = {node for node, leaf in graph.leaves.items() if leaf.kind == "parameter"}
    for node in graph.nodes:
        if node not in graph.leaves and node.all_input_nodes and all(n in alone for n in node.all_input_nodes):
            alone.add(node)
    value = graph.interpret(lambda _: torch.ones((), dtype=torch.float64), evaluate, alone)
    results = {*graph.reads.values(), *graph.update.values(), graph.output}

    def ends(node: Node) -> bool:
        return node in alone and (node in results or any(user not in alone for user in node.users))

    for node in reversed(graph.nodes):
        if ends(node) and getattr(value(node), "dtype", None) != torch.float64:  # a condition, or a type
            alone.remove(node)
    return tuple(filter(ends, graph.nodes))
