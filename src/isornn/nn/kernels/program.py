"""One step of a cell and its derivatives as pointwise expressions: what kernels are printed from.

torch itself differentiates: the cell's graph is evaluated on tensors that hold no numbers, and every operation on them,
those of autograd's backward pass included, is recorded in one graph of ``aten`` operations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, fx
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode

from isornn.cells import Cell
from isornn.cells.trace import CellGraph, Leaf, Node, evaluate, graph_of, values_in

OUTPUT = "output"
T = TypeVar("T")


class NotPrintable(ValueError):
    """A cell of which no kernel can be printed; the message says why."""


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
        with _Recorder(recording.tape):
            return recording.program()

    return in_fresh_modes(recorded)


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
    """Evaluates a cell's graph on `_Symbol`s, where a `_Recorder` writes down what is computed with them."""

    def __init__(self, graph: CellGraph) -> None:
        self.graph = graph
        self.tape = Tape()
        self.units = _of_parameters_alone(graph)
        self.symbols: dict[Leaf, _Symbol] = {}

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

    def _symbol(self, leaf: Leaf) -> _Symbol:
        if leaf not in self.symbols:
            self.symbols[leaf] = _Symbol(self.tape.leaf(leaf), requires_grad=True)
        return self.symbols[leaf]

    def _node(self, found: Any, what: str) -> Node:
        if not isinstance(found, _Symbol):
            raise NotPrintable(f"{self.graph.cell.name}: {what} is {found!r} at every step")
        return found.node

    def _gradients(self, results: Mapping[Leaf, Any]) -> dict[Leaf, Node]:
        terms = [found * self._symbol(leaf) for leaf, found in results.items() if found.requires_grad]
        sources = [leaf for leaf in self.symbols if leaf.kind in ("state", "gate", "unit", "input")]
        total = functools.reduce(torch.add, terms)
        found = torch.autograd.grad(total, [self.symbols[leaf] for leaf in sources], allow_unused=True)
        return {
            leaf: gradient.node
            for leaf, gradient in zip(sources, found, strict=True)
            if isinstance(gradient, _Symbol) and gradient.node.target is not ZERO
        }


def _of_parameters_alone(graph: CellGraph) -> tuple[Node, ...]:
    """The largest expressions that depend on nothing but the cell's parameters, parameters included."""
    alone = {node for node, leaf in graph.leaves.items() if leaf.kind == "parameter"}
    for node in graph.nodes:
        if node not in graph.leaves and node.all_input_nodes and all(n in alone for n in node.all_input_nodes):
            alone.add(node)
    results = {*graph.reads.values(), *graph.update.values(), graph.output}
    return tuple(
        node for node in graph.nodes if node in alone and (node in results or any(u not in alone for u in node.users))
    )


# -- recording --------------------------------------------------------------------------------------------------------

aten = torch.ops.aten


def ONE() -> float:
    """A node of the number 1, as derivatives begin with."""
    return 1.0


def ZERO() -> float:
    """A node of the number 0."""
    return 0.0


class Tape:
    """A graph of ``aten`` operations in which equal expressions are one node."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.leaves: dict[Node, Leaf] = {}
        self._nodes: dict[Any, Node] = {}

    def leaf(self, leaf: Leaf) -> Node:
        node = self.graph.placeholder(f"{leaf.kind}_{leaf.name}".replace(" ", "_"))
        self.leaves[node] = leaf
        return node

    def node(self, function: Any, *args: Any) -> Node:
        """The node of an operation; of ``1 x`` and of a copy, ``x`` itself."""
        if function is aten.mul.Tensor:
            for one, other in (args, args[::-1]):
                if (one == 1.0 or (isinstance(one, Node) and one.target is ONE)) and isinstance(other, Node):
                    return other
        if function is aten.add.Tensor and isinstance(args[0], Node) and args[0].target is aten.neg.default:
            return self.node(aten.sub.Tensor, args[1], args[0].args[0])
        if function is aten.sub.Tensor and _factors(args[0]) and _factors(args[1]):
            (a, b), (c, d) = _factors(args[0]), _factors(args[1])
            if a is c:  # the gradient of a gate f that is coupled as f and 1 - f
                return self.node(aten.mul.Tensor, a, self.node(aten.sub.Tensor, b, d))
        key = (function, args)
        if key not in self._nodes:
            self._nodes[key] = self.graph.call_function(function, args)
        return self._nodes[key]


def _factors(value: Any) -> tuple[Any, ...]:
    return value.args if isinstance(value, Node) and value.target is aten.mul.Tensor else ()


class _Symbol(Tensor):
    """A node of the tape as a tensor that autograd takes; its own number means nothing."""

    node: Node

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, node: Node, *, requires_grad: bool = False, dtype: Any = torch.float64) -> _Symbol:
        made = Tensor._make_subclass(cls, torch.empty((), dtype=dtype, device="cpu"), requires_grad)
        made.node = node
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass


class _Recorder(TorchDispatchMode):
    """Writes operations on symbols, autograd's too, on the tape.

    A mode and not the symbols' own ``__torch_dispatch__``: at the first of those torch imports its distributed tensors,
    and sympy with them, which takes half a second.
    """

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports dynamo to keep it out of these calls, which takes over a second

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not any(isinstance(value, _Symbol) for value in values_in(args, kwargs or {})):
            return function(*args, **(kwargs or {}))
        kept = {name: value for name, value in (kwargs or {}).items() if name not in _PLACES}
        name, _, overload = function.name().removeprefix("aten::").partition(".")
        if name.endswith("_"):  # in place: the symbol stands for another value from now on
            with self:
                args[0].node = getattr(getattr(aten, name[:-1]), overload or "default")(*args, **kept).node
            return args[0]
        with self:
            function, args = _simplified(function, args, kept)
        if function is None:
            found = args[0]
            return _Symbol(found.node, dtype=found.dtype)
        node = self.tape.node(function, *map(_argument, args))
        return _Symbol(node, dtype=torch.bool if function in PREDICATES else torch.float64)


def _argument(value: Any) -> Any:
    if isinstance(value, _Symbol):
        return value.node
    if isinstance(value, Tensor) and value.dim():
        raise NotPrintable(f"a tensor of fixed numbers, of shape {tuple(value.shape)}")
    if not isinstance(value, (int, float, Tensor)) or not math.isfinite(value):
        raise NotPrintable(f"{value} as an argument")
    return float(value)


# -- operations -------------------------------------------------------------------------------------------------------

_PLACES = ("dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking")  # change no value
_COPIES = {aten.detach.default, aten.alias.default, aten.clone.default, aten.view.default, aten.expand.default}
_CONVERSIONS = {aten._to_copy.default, aten.to.dtype}
_AS_OTHERS = {
    aten.add.Scalar: aten.add.Tensor,
    aten.sub.Scalar: aten.sub.Tensor,
    aten.rsub.Tensor: aten.rsub.Scalar,
    aten.mul.Scalar: aten.mul.Tensor,
    aten.div.Scalar: aten.div.Tensor,
    aten.where.ScalarOther: aten.where.self,
    aten.where.ScalarSelf: aten.where.self,
    aten.sign.default: aten.sgn.default,
    aten.masked_fill.Tensor: aten.masked_fill.Scalar,
    aten.bitwise_and.Tensor: aten.logical_and.default,
    aten.bitwise_or.Tensor: aten.logical_or.default,
    aten.bitwise_not.default: aten.logical_not.default,
}
CHEAP = {
    *(aten.add.Tensor, aten.sub.Tensor, aten.rsub.Scalar, aten.mul.Tensor, aten.neg.default, aten.abs.default),
    *(aten.relu.default, aten.maximum.default, aten.minimum.default, aten.clamp_min.default, aten.clamp_max.default),
    *(aten.where.self, aten.masked_fill.Scalar, aten.sgn.default, aten.sigmoid_backward.default),
    *(aten.tanh_backward.default, aten.threshold_backward.default, aten.leaky_relu.default),
    *(aten.leaky_relu_backward.default, ONE, ZERO),
}
PREDICATES = {
    *(aten.gt.Scalar, aten.ge.Scalar, aten.lt.Scalar, aten.le.Scalar, aten.eq.Scalar, aten.ne.Scalar),
    *(aten.gt.Tensor, aten.ge.Tensor, aten.lt.Tensor, aten.le.Tensor, aten.eq.Tensor, aten.ne.Tensor),
    *(aten.logical_and.default, aten.logical_or.default, aten.logical_not.default),
}
COSTLY = {
    *(aten.sigmoid.default, aten.tanh.default, aten.exp.default, aten.expm1.default, aten.log.default),
    *(aten.log1p.default, aten.sqrt.default, aten.rsqrt.default, aten.reciprocal.default, aten.div.Tensor),
    *(aten.sin.default, aten.cos.default, aten.erf.default),
}
_PRINTABLE = CHEAP | PREDICATES | COSTLY


def _simplified(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    """The operation as one that is printed; with ``None`` for a function, the value itself.

    Raises:
        NotPrintable: there is none.
    """
    function = _AS_OTHERS.get(function, function)
    first = args[0]
    if function in _CONVERSIONS:
        return (aten.where.self, (first, 1.0, 0.0)) if first.dtype == torch.bool else (None, (first,))
    if function in _COPIES:
        return None, (first,)
    if function in (aten.ones_like.default, aten.zeros_like.default):
        return (ONE if function is aten.ones_like.default else ZERO), ()
    if function in _PRINTABLE and not kwargs:
        return function, args
    if function is aten.clamp.default and not kwargs:
        low, high = (*args[1:], None)[:2]
        bounded = first if low is None else aten.clamp_min(first, low)
        return None, (bounded if high is None else aten.clamp_max(bounded, high),)
    if function is aten.pow.Tensor_Scalar and args[1] in _POWERS:
        return None, (_POWERS[args[1]](first),)
    try:
        return None, (decomposition_table[function](*args, **kwargs),)
    except (KeyError, NotPrintable):  # its parts may have none: what the cell's author wrote is named
        raise NotPrintable(f"{function} is not among the operations that kernels are printed of") from None


_POWERS: Mapping[float, Callable[[Tensor], Tensor]] = {
    0.5: torch.sqrt,
    1: lambda x: x,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
}
