"""A cell's update and reads as polynomials, found from its graph operation by operation."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from isornn.cells.cell import Cell, initial_parameters, spread_parameters
from isornn.cells.graph import CellGraph, Leaf, values_in
from isornn.cells.polynomial import GateFunction, Numbers, Opaque, Polynomial, Term, polynomial_of
from isornn.cells.trace import graph_of


class NotPolynomial(ValueError):
    """A cell's structure does not allow the deterministic engine; the message says why.

    >>> from isornn.cells import LSTM, Gate, Spec
    >>> from isornn.theory import analyze
    >>> analyze(Spec(LSTM(), {name: Gate(1.0, 1.0) for name in "ifgo"}), engine="quadrature")
    Traceback (most recent call last):
    ...
    isornn.cells.structure.NotPolynomial: ...
    """


@dataclass(frozen=True)
class Structure:
    """A cell's update and reads as polynomials; trained numbers per unit are their initial values."""

    update: Mapping[str, Polynomial]
    reads: Mapping[str, Polynomial]


def form_refusal(cell: Cell) -> str | None:
    """Why ``cell`` has no polynomial form, or ``None``.

    Raises:
        CellError: the cell has a mistake.

    >>> from isornn.cells import GRU
    >>> form_refusal(GRU()) is None
    True
    """
    if not cell.pointwise:
        return f"{cell}: the update acts on several units together"
    if spread_parameters(cell):
        return f"{cell.name}: units start with different parameters"
    return _untraced(graph_of(cell))


def _untraced(graph: CellGraph) -> str | None:
    methods = [method for method in ("read", "update") if method in graph.untraced]
    return f"the {methods[0]} could not be traced: {graph.untraced[methods[0]]}" if methods else None


@functools.cache
def structure_of(cell: Cell) -> Structure:
    """The polynomial form of a cell's update and of what its recurrent matrices multiply.

    Raises:
        NotPolynomial: the update is not pointwise, units start with different parameters, or it could not be traced.
        CellError: the cell has a mistake.

    >>> from isornn.cells import GRU, Minimal
    >>> structure_of(Minimal()).update["h"].degree("h")
    1
    >>> structure_of(GRU()).update["h"].obstacle()
    'tanh of an expression in u_nh, u_nx, u_r'
    """
    reason = form_refusal(cell)
    if reason is not None:
        raise NotPolynomial(reason)
    initial = {name: Polynomial.constant(float(value)) for name, value in initial_parameters(cell).items()}
    return _structure(graph_of(cell), initial)


def affine_in_states(graph: CellGraph) -> bool:
    """Whether the new states are affine in the old ones at given pre-activations, whatever the trained numbers.

    Raises:
        NotPolynomial: the update could not be traced.
    """
    trained = {name: Polynomial.pre_activation(name) for name in graph.cell.parameters}
    terms = [term for new in _structure(graph, trained).update.values() for term in new.terms]
    curved = {name for term in terms for opaque in term.opaque for name in opaque.variables}
    degree = max((sum(term.powers.get(name, 0) for name in graph.cell.states) for term in terms), default=0)
    return degree <= 1 and not curved & set(graph.cell.states)


def _structure(graph: CellGraph, parameters: Mapping[str, Polynomial]) -> Structure:
    reason = _untraced(graph)
    if reason is not None:
        raise NotPolynomial(reason)

    def leaf(what: Leaf) -> Polynomial:
        if what.kind == "parameter":
            return parameters[what.name]
        return Polynomial.pre_activation(what.name) if what.kind == "gate" else Polynomial.variable(what.name)

    value = graph.interpret(leaf, _applied, [*graph.update.values(), *graph.reads.values()])
    return Structure(
        {name: polynomial_of(value(node)) for name, node in graph.update.items()},
        {gate: polynomial_of(value(node)) for gate, node in graph.reads.items()},
    )


# What is smooth wherever it is defined; what is not defined everywhere is in _ABOVE_ZERO.
_SMOOTH = {
    *(
        "sigmoid",
        "tanh",
        "exp",
        "exp2",
        "expm1",
        "erf",
        "erfc",
        "sin",
        "cos",
        "atan",
        "softplus",
        "log_sigmoid",
        "silu",
    ),
    *("gelu", "mish", "sinh", "cosh", "asinh", "tanhshrink", "sinc", "add", "sub", "mul"),
}
_ABOVE_ZERO = {"sqrt", "rsqrt", "log"}
# functions with kinks (of any derivative) at fixed arguments, whatever their other parameters
_KINKED: dict[str, tuple[float, ...]] = {
    **dict.fromkeys(("relu", "abs", "leaky_relu", "elu", "celu", "selu", "softsign"), (0.0,)),
    **{"relu6": (0.0, 6.0), "hardsigmoid": (-3.0, 3.0), "hardswish": (-3.0, 3.0)},
}
# functions with kinks where the first argument meets the others, by the names these go by
_BOUNDED = {
    **{"clamp": ("min", "max"), "hardtanh": ("min_val", "max_val")},
    **dict.fromkeys(("maximum", "minimum", "fmax", "fmin", "max", "min"), ("other",)),
}


def _applied(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """An operation's result: a number, by arithmetic, as a function of one pre-activation alone, or opaque."""
    simple, named = fx.node.map_aggregate((args, dict(kwargs)), _simplest)
    given = values_in(simple, named)
    mixed = [value for value in given if isinstance(value, Polynomial)]
    functions = [value for value in given if isinstance(value, GateFunction)]
    if not mixed and not functions:
        found = function(*simple, **named)
        return Polynomial.constant(float(found)) if isinstance(found, Tensor) and not found.dim() else found
    if name in _ARITHMETIC and not kwargs:
        return _ARITHMETIC[name](*args)
    if mixed or len({function.gate for function in functions}) > 1:
        expressions = [*mixed, *map(Polynomial.of_gate, functions)]
        return _opaque(_why_mixed(name, expressions), function, args, kwargs)
    kinks = _kinks_of(name, functions[0], simple, named)
    if isinstance(kinks, str):
        return _opaque(kinks, function, args, kwargs)

    def call(u: Tensor) -> Tensor:
        at, by = fx.node.map_aggregate((simple, named), lambda a: a.call(u) if isinstance(a, GateFunction) else a)
        return function(*at, **by)

    inner = itertools.chain.from_iterable(function.kinks for function in functions)
    return Polynomial.of_gate(GateFunction(functions[0].gate, call, (*inner, *kinks)))


def _simplest(value: Any) -> Any:
    """A constant as a tensor and a function of one pre-activation as such; anything else as it is."""
    if not isinstance(value, Polynomial):
        return value
    if not value.gates and not value.variables:
        return torch.tensor(sum(float(term.coefficient) for term in value.terms), dtype=torch.float64)
    return value.function() or value


def _why_mixed(name: str, expressions: list[Polynomial]) -> str:
    if len(expressions) > 1:
        return f"{name} of several expressions"
    (one,) = expressions
    mixed = ", ".join(sorted(one.variables) + [f"u_{gate}" for gate in sorted(one.gates)])
    return one.obstacle() or f"{name} of an expression in {mixed}"


def _opaque(
    reason: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> Polynomial:
    """``function(*args, **kwargs)`` as one factor."""
    simple, named = fx.node.map_aggregate((args, dict(kwargs or {})), _simplest)
    given = [value for value in values_in(simple, named) if isinstance(value, (Polynomial, GateFunction))]

    def call(gates: Numbers, variables: Numbers) -> Any:
        def value_of(argument: Any) -> Any:
            if isinstance(argument, GateFunction):
                return argument.call(gates[argument.gate])
            return argument.at(gates, variables) if isinstance(argument, Polynomial) else argument

        at, by = fx.node.map_aggregate((simple, named), value_of)
        return function(*at, **by)

    functions = [value for value in given if isinstance(value, GateFunction)]
    mixed = [value for value in given if isinstance(value, Polynomial)]
    gates = frozenset(f.gate for f in functions).union(*(value.gates for value in mixed))
    variables = frozenset[str]().union(*(value.variables for value in mixed))
    return Polynomial([Term(1.0, {}, {}, (Opaque(reason, variables, gates, call),))])


def _kinks_of(
    name: str, inner: GateFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[float, ...] | str:
    """Where the function of ``inner`` is not smooth, or why that is not known."""
    if name in _SMOOTH:
        return ()
    if name in _ABOVE_ZERO:
        return () if _is_above_zero(inner.call) else f"{name} of what is not above 0 everywhere"
    if name in _BOUNDED:
        others = (*args, *(kwargs.get(bound) for bound in _BOUNDED[name]))
        bounds = [other for other in others if other is not None and other is not inner]
    elif name in _KINKED:
        bounds = list(_KINKED[name])
    else:
        return f"{name} is not among the functions whose smoothness is known"
    lines = [bound.line if isinstance(bound, GateFunction) else (0.0, float(bound)) for bound in bounds]
    if inner.line is None or None in lines:
        return f"{name} of a curved function: its kinks are not known"
    slope, offset = inner.line
    return tuple((line[1] - offset) / (slope - line[0]) for line in lines if line is not None and line[0] != slope)


def _is_above_zero(function: Callable[[Tensor], Tensor]) -> bool:
    return bool((function(torch.linspace(-30.0, 30.0, 1201, dtype=torch.float64)) > 0).all())


def _quotient(a: Any, b: Any) -> Polynomial:
    """``a (1/b)``."""
    by = _simplest(b)
    if not isinstance(by, (Polynomial, GateFunction)) and by != 0:
        return polynomial_of(a) * (1.0 / float(by))
    if isinstance(by, GateFunction) and (_is_above_zero(by.call) or _is_above_zero(lambda u: -by.call(u))):
        return polynomial_of(a) * Polynomial.of_gate(GateFunction(by.gate, lambda u: 1 / by.call(u), by.kinks))
    what = "an expression" if isinstance(by, Polynomial) else "what is 0 somewhere"
    return polynomial_of(a) * _opaque(f"division by {what}", torch.reciprocal, (b,))


def _power(a: Any, power: Any) -> Polynomial:
    by = _simplest(power)
    what = "an expression" if isinstance(by, (Polynomial, GateFunction)) else float(by)
    if isinstance(what, str) or what < 0 or what != int(what):
        return _opaque(f"power {what} of an expression", operator.pow, (a, power))
    return polynomial_of(a) ** int(what)


_ARITHMETIC: dict[str, Callable[..., Polynomial]] = {
    "add": lambda a, b: polynomial_of(a) + b,
    "sub": lambda a, b: polynomial_of(a) + polynomial_of(b) * -1.0,
    "rsub": lambda a, b: polynomial_of(b) + polynomial_of(a) * -1.0,
    "neg": lambda a: a * -1.0,
    "mul": lambda a, b: polynomial_of(a) * b,
    "div": _quotient,
    "reciprocal": lambda a: _quotient(1.0, a),
    "square": lambda a: a**2,
    "pow": _power,
    "lerp": lambda a, b, w: (polynomial_of(w) * -1.0 + 1.0) * a + polynomial_of(w) * b,
    "zeros_like": lambda a: Polynomial([]),
    "ones_like": lambda a: Polynomial.constant(1.0),
}
