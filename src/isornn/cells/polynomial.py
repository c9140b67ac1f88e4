"""A cell's update and reads as polynomials in its states and input.

The coefficients are products of functions of one pre-activation each. What mixes several of them, or is curved in a
state, is opaque and says why.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx

from isornn.cells.cell import Cell, initial_parameters, spread_parameters
from isornn.cells.graph import CellGraph, Leaf, values_in
from isornn.cells.trace import graph_of


class NotPolynomial(ValueError):
    """A cell's structure does not allow the deterministic engine; the message says why.

    >>> from isornn.cells import LSTM, Gate, Spec
    >>> from isornn.theory import analyze
    >>> analyze(Spec(LSTM(), {name: Gate(1.0, 1.0) for name in "ifgo"}), engine="quadrature")
    Traceback (most recent call last):
    ...
    isornn.cells.polynomial.NotPolynomial: ...
    """


_serial = itertools.count()


@dataclass(eq=False)
class GateFunction:
    """A function of one pre-activation.

    Args:
        gate: whose pre-activation.
        call: the function, plain torch operations.
        kinks: where it is not smooth.
        line: (a, b) if the function is a u + b, else None.
        serial: distinguishes functions.
    """

    gate: str
    call: Callable[[Tensor], Tensor]
    kinks: tuple[float, ...] = ()
    line: tuple[float, float] | None = None
    serial: int = field(default_factory=lambda: next(_serial))

    @cached_property
    def derivative(self) -> GateFunction:
        """The derivative, differentiable again.

        By reverse mode: torch has one level of forward mode for all threads of a process.
        """
        call = self.call

        def slope(u: Tensor) -> Tensor:
            wanted = torch.is_grad_enabled() and u.requires_grad
            with torch.enable_grad():
                u = u if wanted else u.detach().requires_grad_()
                value = call(u)
                if not value.requires_grad:
                    return torch.zeros_like(u)
                return torch.autograd.grad(value.sum(), u, create_graph=wanted)[0]

        return GateFunction(self.gate, slope, self.kinks)


Factors = tuple[GateFunction, ...]
Numbers = Mapping[str, Tensor]


@dataclass(frozen=True)
class Opaque:
    """A factor that mixes several pre-activations, or is curved in a state.

    ``reason`` names the operation, ``variables`` the states and input that it depends on, ``gates`` the
    pre-activations; ``call`` is its value by those of the pre-activations, and of states and input.
    """

    reason: str
    variables: frozenset[str]
    gates: frozenset[str]
    call: Callable[[Numbers, Numbers], Any]
    serial: int = field(default_factory=lambda: next(_serial))


@dataclass(frozen=True)
class Term:
    """``coefficient * prod_k F_k(u_k) * prod_v v^power`` times opaque factors, if any."""

    coefficient: float | Tensor
    factors: Mapping[str, Factors]
    powers: Mapping[str, int]
    opaque: tuple[Opaque, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for terms that differ in the coefficient only."""
        factors = tuple(sorted((g, tuple(f.serial for f in fs)) for g, fs in self.factors.items()))
        return factors, tuple(sorted(self.powers.items())), tuple(o.serial for o in self.opaque)

    @property
    def gates(self) -> frozenset[str]:
        """Pre-activations it depends on."""
        return frozenset(self.factors).union(*(o.gates for o in self.opaque))

    @property
    def variables(self) -> frozenset[str]:
        """States and input that it depends on."""
        return frozenset(self.powers).union(*(o.variables for o in self.opaque))

    def at(self, gates: Numbers, variables: Numbers) -> Any:
        """The value, by those of the pre-activations and of states and input; a number where it depends on none."""
        value: Any = self.coefficient
        for gate, functions in self.factors.items():
            for function in functions:
                value = value * function.call(gates[gate])
        for name, power in self.powers.items():
            value = value * variables[name] ** power
        for opaque in self.opaque:
            value = value * opaque.call(gates, variables)
        return value

    def times(self, other: Term) -> Term:
        factors = dict(self.factors)
        for gate, more in other.factors.items():
            factors[gate] = tuple(sorted(factors.get(gate, ()) + more, key=lambda f: f.serial))
        powers = dict(self.powers)
        for name, power in other.powers.items():
            powers[name] = powers.get(name, 0) + power
        return Term(self.coefficient * other.coefficient, factors, powers, self.opaque + other.opaque)


class Polynomial:
    """A sum of terms."""

    def __init__(self, terms: Iterable[Term]) -> None:
        merged: dict[tuple[Any, ...], Term] = {}
        for term in terms:
            if term.key in merged:
                total = merged[term.key].coefficient + term.coefficient
                merged[term.key] = replace(term, coefficient=total)
            else:
                merged[term.key] = term
        self.terms = tuple(t for t in merged.values() if isinstance(t.coefficient, Tensor) or t.coefficient != 0)

    @staticmethod
    def constant(value: float | Tensor) -> Polynomial:
        return Polynomial([Term(value, {}, {})])

    @staticmethod
    def of_gate(function: GateFunction) -> Polynomial:
        return Polynomial([Term(1.0, {function.gate: (function,)}, {})])

    @staticmethod
    def variable(name: str) -> Polynomial:
        return Polynomial([Term(1.0, {}, {name: 1})])

    def __add__(self, other: Any) -> Polynomial:
        both = Polynomial((*self.terms, *_polynomial(other).terms))
        return both._as_one_function() or both

    def __mul__(self, other: Any) -> Polynomial:
        return Polynomial([a.times(b) for a in self.terms for b in _polynomial(other).terms])

    def __pow__(self, power: int) -> Polynomial:
        return math.prod([self] * power, start=Polynomial.constant(1.0))

    def at(self, gates: Numbers, variables: Numbers) -> Any:
        """The value, by those of the pre-activations and of states and input.

        >>> from isornn.cells import GRU
        >>> u = {gate: torch.tensor(float(gate == "nx")) for gate in GRU().gates}
        >>> structure_of(GRU()).update["h"].at(u, {"h": torch.tensor(0.5)})
        tensor(0.6308)
        """
        alone = self._alone
        return sum(term.at(gates, variables) for term in self.terms) if alone is None else alone.call(gates, variables)

    @property
    def _alone(self) -> Opaque | None:
        """The single factor that it is, which need not be a number: ``u.f.dtype`` is none."""
        if len(self.terms) != 1:
            return None
        (term,) = self.terms
        plain = term.coefficient == 1 and not term.factors and not term.powers and len(term.opaque) == 1
        return term.opaque[0] if plain else None

    @property
    def gates(self) -> frozenset[str]:
        """Pre-activations it depends on."""
        return frozenset().union(*(term.gates for term in self.terms))

    @property
    def variables(self) -> frozenset[str]:
        """States and input that it depends on."""
        return frozenset().union(*(term.variables for term in self.terms))

    def degree(self, name: str) -> int:
        """Highest power of a state or the input."""
        return max((term.powers.get(name, 0) for term in self.terms), default=0)

    def obstacle(self, name: str | None = None) -> str | None:
        """Why it is not a polynomial (in the variable ``name``), if it is not."""
        opaque = [o for t in self.terms for o in t.opaque]
        return next((o.reason for o in opaque if name is None or name in o.variables), None)

    def part(self, name: str, power: int) -> Polynomial:
        """The coefficient of ``name^power``: ``part(state, 1)`` is what an affine update keeps of ``state``."""
        return Polynomial(
            replace(t, powers={v: p for v, p in t.powers.items() if v != name})
            for t in self.terms
            if t.powers.get(name, 0) == power
        )

    def derivative(self, gate: str) -> Polynomial:
        """Partial derivative with respect to the pre-activation of ``gate``."""
        terms = []
        for term in self.terms:
            factors = term.factors.get(gate, ())
            for j, factor in enumerate(factors):
                changed = (*factors[:j], factor.derivative, *factors[j + 1 :])
                ordered = tuple(sorted(changed, key=lambda f: f.serial))
                terms.append(replace(term, factors={**term.factors, gate: ordered}))
        return Polynomial(terms)

    def function(self) -> GateFunction | None:
        """This polynomial as a function of the one pre-activation that it depends on alone, if so."""
        if len(self.gates) != 1 or self.variables or self.obstacle():
            return None
        (gate,), terms = self.gates, self.terms
        if len(terms) == 1 and len(terms[0].factors[gate]) == 1 and terms[0].coefficient == 1.0:
            return terms[0].factors[gate][0]

        def call(u: Tensor) -> Tensor:
            total = torch.zeros_like(u)
            for term in terms:
                value: Any = term.coefficient
                for factor in term.factors.get(gate, ()):
                    value = value * factor.call(u)
                total = total + value
            return total

        kinks = {k for t in terms for f in t.factors.get(gate, ()) for k in f.kinks}
        return GateFunction(gate, call, tuple(sorted(kinks)), _line(terms, gate))

    def _as_one_function(self) -> Polynomial | None:
        """Sums of functions of the same pre-activation become one function: 1 - f is integrated as such, so that
        E[(1-f)^2] keeps its digits where f is almost 1."""
        if len(self.terms) < 2 or any(isinstance(t.coefficient, Tensor) for t in self.terms):
            return None
        function = self.function()
        return None if function is None else Polynomial.of_gate(function)


def _line(terms: tuple[Term, ...], gate: str) -> tuple[float, float] | None:
    slope = offset = 0.0
    for term in terms:
        factors = term.factors.get(gate, ())
        a, b = (0.0, 1.0) if not factors else factors[0].line or (math.nan, math.nan)
        if len(factors) > 1 or isinstance(term.coefficient, Tensor) or math.isnan(a):
            return None
        slope, offset = slope + term.coefficient * a, offset + term.coefficient * b
    return slope, offset


def _polynomial(value: Any) -> Polynomial:
    return value if isinstance(value, Polynomial) else Polynomial.constant(value)


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
    trained = {name: _identity(name) for name in graph.cell.parameters}
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
        return _identity(what.name) if what.kind == "gate" else Polynomial.variable(what.name)

    value = graph.interpret(leaf, _applied, [*graph.update.values(), *graph.reads.values()])
    return Structure(
        {name: _polynomial(value(node)) for name, node in graph.update.items()},
        {gate: _polynomial(value(node)) for gate, node in graph.reads.items()},
    )


def _identity(gate: str) -> Polynomial:
    return Polynomial.of_gate(GateFunction(gate, lambda u: u, line=(1.0, 0.0)))


# -- operations -------------------------------------------------------------------------------------------------------

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
        return _polynomial(a) * (1.0 / float(by))
    if isinstance(by, GateFunction) and (_is_above_zero(by.call) or _is_above_zero(lambda u: -by.call(u))):
        return _polynomial(a) * Polynomial.of_gate(GateFunction(by.gate, lambda u: 1 / by.call(u), by.kinks))
    what = "an expression" if isinstance(by, Polynomial) else "what is 0 somewhere"
    return _polynomial(a) * _opaque(f"division by {what}", torch.reciprocal, (b,))


def _power(a: Any, power: Any) -> Polynomial:
    by = _simplest(power)
    what = "an expression" if isinstance(by, (Polynomial, GateFunction)) else float(by)
    if isinstance(what, str) or what < 0 or what != int(what):
        return _opaque(f"power {what} of an expression", operator.pow, (a, power))
    return _polynomial(a) ** int(what)


_ARITHMETIC: dict[str, Callable[..., Polynomial]] = {
    "add": lambda a, b: _polynomial(a) + b,
    "sub": lambda a, b: _polynomial(a) + _polynomial(b) * -1.0,
    "rsub": lambda a, b: _polynomial(b) + _polynomial(a) * -1.0,
    "neg": lambda a: a * -1.0,
    "mul": lambda a, b: _polynomial(a) * b,
    "div": _quotient,
    "reciprocal": lambda a: _quotient(1.0, a),
    "square": lambda a: a**2,
    "pow": _power,
    "lerp": lambda a, b, w: (_polynomial(w) * -1.0 + 1.0) * a + _polynomial(w) * b,
    "zeros_like": lambda a: Polynomial([]),
    "ones_like": lambda a: Polynomial.constant(1.0),
}
