"""Operations on tensors that hold no numbers, autograd's too, written down as one graph of ``aten`` operations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode

from isornn.cells.graph import Leaf, Node, values_in
from isornn.nn.kernels.operations import (
    AS_OTHERS,
    CONVERSIONS,
    COPIES,
    FILLED,
    ONE,
    PREDICATES,
    PRINTABLE,
    REVERSED,
    ZERO,
    aten,
    composed,
    is_condition,
    named_arguments,
)


class NotPrintable(ValueError):
    """A cell of which no kernel can be printed; the message says why."""


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


class Symbol(Tensor):
    """A node of the tape as a tensor that autograd takes; its own number means nothing."""

    node: Node

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, node: Node, *, requires_grad: bool = False, dtype: Any = torch.float64) -> Symbol:
        made = Tensor._make_subclass(cls, torch.empty((), dtype=dtype, device="cpu"), requires_grad)
        made.node = node
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass


class Recorder(TorchDispatchMode):
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
        if not any(isinstance(value, Symbol) for value in values_in(args, kwargs)):
            return function(*args, **kwargs)
        name, _, overload = function.name().removeprefix("aten::").partition(".")
        if name.endswith("_") and function._schema.is_mutable:
            # In place: the symbol stands for another value from now on.
            written = getattr(getattr(aten, name[:-1], None), overload or "default", None)
            if written is None:
                raise NotPrintable(f"{function} is not among the operations that kernels are printed of")
            with self:
                found = written(*args, **kwargs)
            if not isinstance(args[0], Symbol) or not isinstance(found, Symbol) or found.dtype != args[0].dtype:
                raise NotPrintable(f"{function} on a tensor of another type, or of fixed numbers")
            args[0].node = found.node
            return args[0]
        return _fresh(self._recorded(function, args, kwargs))

    def _recorded(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The value of an operation, which is written down in parts if it is not printed itself.

        Raises:
            NotPrintable: there are no such parts.
        """
        if function in COPIES:
            return args[0]
        if function in CONVERSIONS:
            return self._converted(function, args[0], function(*args, **kwargs).dtype)
        if function in FILLED:
            return self._written(function, FILLED[function], (), function(*args, **kwargs).dtype)
        if function is aten.copy.default:
            return self._converted(function, args[1], args[0].dtype)
        named = named_arguments(function, args, kwargs)
        if function is aten.fill.Scalar:
            number = named["value"]
            one = self.tape.node(ONE)
            return Symbol(self.tape.node(aten.mul.Tensor, one, float(number)) if number else self.tape.node(ZERO))
        if "other" in named and (alpha := named.pop("alpha", 1)) != 1:
            scaled = "self" if function in REVERSED else "other"
            with self:
                return function(**named | {scaled: named[scaled] * alpha})
        printed, given = AS_OTHERS.get(function, function), list(named.values())
        if printed in PRINTABLE:
            in_order = given[::-1] if function in REVERSED else given
            return self._written(function, printed, in_order, function(*args, **kwargs).dtype)
        try:
            with self:
                return composed(function, args, kwargs)
        except Exception:  # a decomposition may do what symbols have not: what the cell's author wrote is named
            raise NotPrintable(f"{function} is not among the operations that kernels are printed of") from None

    def _converted(self, function: Any, value: Any, dtype: torch.dtype) -> Any:
        if not isinstance(value, Symbol) or dtype == value.dtype:
            return value
        if dtype == torch.bool:
            return Symbol(self._truth(function, value), dtype=torch.bool)
        if dtype == torch.float64 or (dtype.is_floating_point and value.dtype == torch.bool):  # 0 and 1 are exact
            return Symbol(self._number(value), dtype=dtype)
        raise _of_other_type(function, dtype)

    def _written(self, function: Any, printed: Any, given: Sequence[Any], dtype: torch.dtype) -> Symbol:
        wanted = torch.bool if printed in PREDICATES else torch.float64
        exact = printed is aten.where.self and dtype != torch.bool and all(map(_is_whole, given[1:]))
        if dtype != wanted and not exact:
            raise _of_other_type(function, dtype)
        if printed is aten.where.self and not isinstance(given[0], Symbol):
            return self._converted(function, given[1 if _argument(given[0]) else 2], dtype)
        arguments = [
            self._truth(function, value) if is_condition(printed, place) else self._number(value)
            for place, value in enumerate(given)
        ]
        return Symbol(self.tape.node(printed, *arguments), dtype=dtype)

    def _number(self, value: Any) -> Any:
        """An argument as a number: of a truth value 1 or 0, as torch promotes it."""
        if isinstance(value, Symbol) and value.dtype == torch.bool:
            return self.tape.node(aten.where.self, value.node, 1.0, 0.0)
        return _argument(value)

    def _truth(self, function: Any, value: Any) -> Node:
        """An argument as a truth value, which of a number is whether it differs from 0."""
        if not isinstance(value, Symbol):
            raise NotPrintable(f"{function} of the same condition at every step")
        return value.node if value.dtype == torch.bool else self.tape.node(aten.ne.Scalar, value.node, 0.0)


def _fresh(value: Any) -> Any:
    """The same values as tensors of their own, which autograd wants of an operation."""
    if isinstance(value, (tuple, list)):
        return tuple(map(_fresh, value))
    return Symbol(value.node, dtype=value.dtype) if isinstance(value, Symbol) else value


def _is_whole(value: Any) -> bool:
    """Whether it is a fixed whole number, which is exact in any precision."""
    return not isinstance(value, Symbol) and _argument(value).is_integer()


def _of_other_type(function: Any, dtype: torch.dtype) -> NotPrintable:
    return NotPrintable(f"{function} gives {dtype}; kernels compute in the layer's precision")


def _argument(value: Any) -> Any:
    if isinstance(value, Symbol):
        return value.node
    if isinstance(value, Tensor) and value.dim():
        raise NotPrintable(f"a tensor of fixed numbers, of shape {tuple(value.shape)}")
    if not isinstance(value, (int, float, Tensor)) or not math.isfinite(value):
        raise NotPrintable(f"{value} as an argument")
    return float(value)
