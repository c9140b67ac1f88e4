"""One step of a cell and its derivatives as pointwise expressions: what kernels are printed from.

torch itself differentiates: the cell's graph is evaluated on tensors that hold no numbers, and every operation on them,
those of autograd's backward pass included, is recorded in one graph of ``aten`` operations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, fx
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode

from isornn.cells import Cell
from isornn.cells.graph import CellGraph, Leaf, Node, evaluate, values_in
from isornn.cells.trace import graph_of

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
            if isinstance(gradient, _Symbol) and gradient.node.target is not ZERO
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
        kwargs = kwargs or {}
        if not any(isinstance(value, _Symbol) for value in values_in(args, kwargs)):
            return function(*args, **kwargs)
        name, _, overload = function.name().removeprefix("aten::").partition(".")
        if name.endswith("_") and function._schema.is_mutable:
            # In place: the symbol stands for another value from now on.
            written = getattr(getattr(aten, name[:-1], None), overload or "default", None)
            if written is None:
                raise NotPrintable(f"{function} is not among the operations that kernels are printed of")
            with self:
                found = written(*args, **kwargs)
            if not isinstance(args[0], _Symbol) or not isinstance(found, _Symbol) or found.dtype != args[0].dtype:
                raise NotPrintable(f"{function} on a tensor of another type, or of fixed numbers")
            args[0].node = found.node
            return args[0]
        return _fresh(self._recorded(function, args, kwargs))

    def _recorded(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The value of an operation, which is written down in parts if it is not printed itself.

        Raises:
            NotPrintable: there are no such parts.
        """
        if function in _COPIES:
            return args[0]
        if function in _CONVERSIONS:
            return self._converted(function, args[0], function(*args, **kwargs).dtype)
        if function in _FILLED:
            return self._written(function, _FILLED[function], (), function(*args, **kwargs).dtype)
        if function is aten.copy.default:
            return self._converted(function, args[1], args[0].dtype)
        named = _named(function, args, kwargs)
        if function is aten.fill.Scalar:
            number = named["value"]
            one = self.tape.node(ONE)
            return _Symbol(self.tape.node(aten.mul.Tensor, one, float(number)) if number else self.tape.node(ZERO))
        if "other" in named and (alpha := named.pop("alpha", 1)) != 1:
            scaled = "self" if function in _REVERSED else "other"
            with self:
                return function(**named | {scaled: named[scaled] * alpha})
        printed, given = _AS_OTHERS.get(function, function), list(named.values())
        if printed in _PRINTABLE:
            in_order = given[::-1] if function in _REVERSED else given
            return self._written(function, printed, in_order, function(*args, **kwargs).dtype)
        try:
            with self:
                return _composed(function, args, kwargs)
        except Exception:  # a decomposition may do what symbols have not: what the cell's author wrote is named
            raise NotPrintable(f"{function} is not among the operations that kernels are printed of") from None

    def _converted(self, function: Any, value: Any, dtype: torch.dtype) -> Any:
        if not isinstance(value, _Symbol) or dtype == value.dtype:
            return value
        if dtype == torch.bool:
            return _Symbol(self._truth(function, value), dtype=torch.bool)
        if dtype == torch.float64 or (dtype.is_floating_point and value.dtype == torch.bool):  # 0 and 1 are exact
            return _Symbol(self._number(value), dtype=dtype)
        raise _of_other_type(function, dtype)

    def _written(self, function: Any, printed: Any, given: Sequence[Any], dtype: torch.dtype) -> _Symbol:
        wanted = torch.bool if printed in PREDICATES else torch.float64
        exact = printed is aten.where.self and dtype != torch.bool and all(map(_is_whole, given[1:]))
        if dtype != wanted and not exact:
            raise _of_other_type(function, dtype)
        if printed is aten.where.self and not isinstance(given[0], _Symbol):
            return self._converted(function, given[1 if _argument(given[0]) else 2], dtype)
        arguments = [
            self._truth(function, value) if _is_condition(printed, place) else self._number(value)
            for place, value in enumerate(given)
        ]
        return _Symbol(self.tape.node(printed, *arguments), dtype=dtype)

    def _number(self, value: Any) -> Any:
        """An argument as a number: of a truth value 1 or 0, as torch promotes it."""
        if isinstance(value, _Symbol) and value.dtype == torch.bool:
            return self.tape.node(aten.where.self, value.node, 1.0, 0.0)
        return _argument(value)

    def _truth(self, function: Any, value: Any) -> Node:
        """An argument as a truth value, which of a number is whether it differs from 0."""
        if not isinstance(value, _Symbol):
            raise NotPrintable(f"{function} of the same condition at every step")
        return value.node if value.dtype == torch.bool else self.tape.node(aten.ne.Scalar, value.node, 0.0)


def _fresh(value: Any) -> Any:
    """The same values as tensors of their own, which autograd wants of an operation."""
    if isinstance(value, (tuple, list)):
        return tuple(map(_fresh, value))
    return _Symbol(value.node, dtype=value.dtype) if isinstance(value, _Symbol) else value


def _is_whole(value: Any) -> bool:
    """Whether it is a fixed whole number, which is exact in any precision."""
    return not isinstance(value, _Symbol) and _argument(value).is_integer()


def _of_other_type(function: Any, dtype: torch.dtype) -> NotPrintable:
    return NotPrintable(f"{function} gives {dtype}; kernels compute in the layer's precision")


def _argument(value: Any) -> Any:
    if isinstance(value, _Symbol):
        return value.node
    if isinstance(value, Tensor) and value.dim():
        raise NotPrintable(f"a tensor of fixed numbers, of shape {tuple(value.shape)}")
    if not isinstance(value, (int, float, Tensor)) or not math.isfinite(value):
        raise NotPrintable(f"{value} as an argument")
    return float(value)


# -- operations -------------------------------------------------------------------------------------------------------

_COPIES = {aten.detach.default, aten.alias.default, aten.clone.default, aten.view.default, aten.expand.default}
_CONVERSIONS = {aten._to_copy.default, aten.to.dtype}
_FILLED = {aten.ones_like.default: ONE, aten.zeros_like.default: ZERO, aten.empty_like.default: ZERO}
_REVERSED = {aten.rsub.Scalar, aten.rsub.Tensor}
_AS_OTHERS = {
    aten.add.Scalar: aten.add.Tensor,
    aten.sub.Scalar: aten.sub.Tensor,
    **dict.fromkeys(_REVERSED, aten.sub.Tensor),
    aten.mul.Scalar: aten.mul.Tensor,
    aten.div.Scalar: aten.div.Tensor,
    aten.where.Scalar: aten.where.self,
    aten.where.ScalarOther: aten.where.self,
    aten.where.ScalarSelf: aten.where.self,
    aten.sign.default: aten.sgn.default,
    aten.masked_fill.Tensor: aten.masked_fill.Scalar,
    aten.bitwise_and.Tensor: aten.logical_and.default,
    aten.bitwise_or.Tensor: aten.logical_or.default,
    aten.bitwise_xor.Tensor: aten.ne.Tensor,
    aten.__and__.Tensor: aten.logical_and.default,
    aten.__or__.Tensor: aten.logical_or.default,
    aten.__xor__.Tensor: aten.ne.Tensor,
    aten.bitwise_not.default: aten.logical_not.default,
}
CHEAP = {
    *(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.neg.default, aten.abs.default),
    *(aten.relu.default, aten.maximum.default, aten.minimum.default, aten.clamp_min.default, aten.clamp_max.default),
    *(aten.where.self, aten.masked_fill.Scalar, aten.sgn.default, aten.sigmoid_backward.default),
    *(aten.tanh_backward.default, aten.threshold_backward.default, ONE, ZERO),
}
_LOGICAL = {aten.logical_and.default, aten.logical_or.default, aten.logical_not.default}
PREDICATES = {
    *_LOGICAL,
    *(aten.gt.Scalar, aten.ge.Scalar, aten.lt.Scalar, aten.le.Scalar, aten.eq.Scalar, aten.ne.Scalar),
    *(aten.gt.Tensor, aten.ge.Tensor, aten.lt.Tensor, aten.le.Tensor, aten.eq.Tensor, aten.ne.Tensor),
}
COSTLY = {
    *(aten.sigmoid.default, aten.tanh.default, aten.exp.default, aten.expm1.default, aten.log.default),
    *(aten.log1p.default, aten.sqrt.default, aten.rsqrt.default, aten.reciprocal.default, aten.div.Tensor),
    *(aten.sin.default, aten.cos.default, aten.erf.default),
}
VECTORISED = COSTLY - {aten.log.default, aten.sin.default, aten.cos.default, aten.erf.default}  # in compiled loops
_PRINTABLE = CHEAP | PREDICATES | COSTLY


def _is_condition(function: Any, place: int) -> bool:
    return function in _LOGICAL or (function, place) in ((aten.where.self, 0), (aten.masked_fill.Scalar, 1))


def _named(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """An operation's arguments by name and in the order of its signature, with their defaults."""
    signature = function._schema.arguments
    given = dict(zip([argument.name for argument in signature], args, strict=False)) | dict(kwargs)
    return {argument.name: given.get(argument.name, argument.default_value) for argument in signature}


def _composed(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """An operation by others."""
    first = args[0]
    if function is aten.clamp.default:
        _, low, high = _named(function, args, kwargs).values()
        bounded = first if low is None else aten.clamp_min(first, low)
        return bounded if high is None else aten.clamp_max(bounded, high)
    if function is aten.pow.Tensor_Scalar and args[1] in _POWERS:
        return _POWERS[args[1]](first)
    return decomposition_table[function](*args, **kwargs)


_POWERS: Mapping[float, Callable[[Tensor], Tensor]] = {
    0.5: torch.sqrt,
    1: lambda x: x,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    4: lambda x: (x * x) * (x * x),
    -1: torch.reciprocal,
    -2: lambda x: torch.reciprocal(x * x),
}
