"""Read off a cell's update whether the deterministic engine can integrate it.

The update is called with symbols instead of tensors. What comes back is a polynomial in states and input whose
coefficients are products of functions of one pre-activation each; where an operation mixes several of them, the
result is opaque and says why.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from isornn.cells import Cell, Values
from isornn.theory.reasons import NOT_POINTWISE

INPUT = "x"


class NotPolynomial(ValueError):
    """A cell's structure does not allow the deterministic engine; the message says why."""


_serial = itertools.count()


class GateFunction:
    """A function of one pre-activation.

    Args:
        gate: whose pre-activation.
        call: the function, plain torch operations.
        kinks: where it is not smooth.
        line: (a, b) if the function is a u + b, else None.
    """

    def __init__(
        self,
        gate: str,
        call: Callable[[Tensor], Tensor],
        kinks: tuple[float, ...] = (),
        line: tuple[float, float] | None = None,
    ) -> None:
        self.gate, self.call, self.kinks, self.line = gate, call, kinks, line
        self.serial = next(_serial)

    @cached_property
    def derivative(self) -> GateFunction:
        """The derivative, by forward mode."""
        call = self.call
        return GateFunction(self.gate, lambda u: torch.func.jvp(call, (u,), (torch.ones_like(u),))[1], self.kinks)


Factors = tuple[GateFunction, ...]


@dataclass(frozen=True)
class Opaque:
    """A factor that mixes several pre-activations, or is curved in a state.

    ``reason`` names the operation, ``variables`` the states and input hidden inside.
    """

    reason: str
    variables: frozenset[str]
    serial: int


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

    def times(self, other: Term) -> Term:
        factors = dict(self.factors)
        for gate, more in other.factors.items():
            factors[gate] = tuple(sorted(factors.get(gate, ()) + more, key=lambda f: f.serial))
        powers = dict(self.powers)
        for name, power in other.powers.items():
            powers[name] = powers.get(name, 0) + power
        return Term(self.coefficient * other.coefficient, factors, powers, self.opaque + other.opaque)


class Polynomial:
    """A sum of terms; torch functions of it are allowed while it depends on one pre-activation only."""

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
    def preactivation(gate: str) -> Polynomial:
        return Polynomial([Term(1.0, {gate: (GateFunction(gate, lambda u: u, line=(1.0, 0.0)),)}, {})])

    @staticmethod
    def variable(name: str) -> Polynomial:
        return Polynomial([Term(1.0, {}, {name: 1})])

    # -- arithmetic -----------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Polynomial:
        both = Polynomial((*self.terms, *_polynomial(other).terms))
        return both._as_one_function() or both

    def __mul__(self, other: Any) -> Polynomial:
        return Polynomial([a.times(b) for a in self.terms for b in _polynomial(other).terms])

    def __pow__(self, power: int) -> Polynomial:
        if not isinstance(power, int) or power < 0:
            return _opaque(f"power {power!r} of an expression", [self])
        result = Polynomial.constant(1.0)
        for _ in range(power):
            result = result * self
        return result

    def __neg__(self) -> Polynomial:
        return self * -1.0

    def __sub__(self, other: Any) -> Polynomial:
        return self + _polynomial(other) * -1.0

    def __rsub__(self, other: Any) -> Polynomial:
        return _polynomial(other) + self * -1.0

    def __truediv__(self, other: Any) -> Polynomial:
        if isinstance(other, Polynomial):
            return _opaque("division by an expression", [self, other])
        return self * (1.0 / other)

    __radd__ = __add__
    __rmul__ = __mul__

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, kwargs = func.__name__.strip("_"), kwargs or {}
        if name in _ARITHMETIC and not kwargs:
            return _ARITHMETIC[name](*args)
        return _apply(name, func, args, kwargs)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Torch functions as methods: ``u.f.sigmoid()``."""
        if name not in _METHODS:
            raise AttributeError(f"{name!r} of an expression")
        return lambda *args, **kwargs: getattr(torch, name)(self, *args, **kwargs)

    # -- reading --------------------------------------------------------------------------------------------------

    @property
    def gates(self) -> set[str]:
        """Pre-activations it depends on."""
        return {gate for term in self.terms for gate in term.factors}

    def degree(self, name: str) -> int:
        """Highest power of a state or the input."""
        return max((term.powers.get(name, 0) for term in self.terms), default=0)

    def obstacle(self, name: str | None = None) -> str | None:
        """Why it is not a polynomial (in the variable ``name``), if it is not."""
        opaque = [o for t in self.terms for o in t.opaque]
        return next((o.reason for o in opaque if name is None or name in o.variables), None)

    def part(self, name: str, power: int) -> Polynomial:
        """The coefficient of ``name^power``."""
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

    def _as_one_function(self) -> Polynomial | None:
        """Sums of functions of the same pre-activation become one function: 1 - f is integrated as such, so that
        E[(1-f)^2] keeps its digits where f is almost 1."""
        gates = self.gates
        plain = all(not t.powers and not t.opaque and not isinstance(t.coefficient, Tensor) for t in self.terms)
        if len(gates) != 1 or len(self.terms) < 2 or not plain:
            return None
        return Polynomial([Term(1.0, {next(iter(gates)): (self._function(),)}, {})])

    def _function(self) -> GateFunction:
        """This polynomial as a function of its only pre-activation."""
        (gate,) = self.gates
        terms = self.terms
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

        factors = [f for t in terms for fs in t.factors.values() for f in fs]
        kinks = tuple(sorted({k for f in factors for k in f.kinks}))
        return GateFunction(gate, call, kinks, _line(terms, gate))


def _line(terms: tuple[Term, ...], gate: str) -> tuple[float, float] | None:
    slope = offset = 0.0
    for term in terms:
        factors = term.factors.get(gate, ())
        if len(factors) > 1 or isinstance(term.coefficient, Tensor) or (factors and factors[0].line is None):
            return None
        a, b = factors[0].line or (0.0, 1.0) if factors else (0.0, 1.0)
        slope, offset = slope + term.coefficient * a, offset + term.coefficient * b
    return slope, offset


def _polynomial(value: Any) -> Polynomial:
    return value if isinstance(value, Polynomial) else Polynomial.constant(value)


_ARITHMETIC: dict[str, Callable[..., Polynomial]] = {
    "add": lambda a, b: _polynomial(a) + b,
    "radd": lambda a, b: _polynomial(b) + a,
    "mul": lambda a, b: _polynomial(a) * b,
    "rmul": lambda a, b: _polynomial(b) * a,
    "sub": lambda a, b: _polynomial(a) - b,
    "rsub": lambda a, b: _polynomial(b) - a,
    "neg": lambda a: -_polynomial(a),
    "div": lambda a, b: _polynomial(a) / b,
    "truediv": lambda a, b: _polynomial(a) / b,
    "true_divide": lambda a, b: _polynomial(a) / b,
    "square": lambda a: _polynomial(a) ** 2,
    "pow": lambda a, b: _polynomial(a) ** b,
}
_SMOOTH = {
    *("sigmoid", "tanh", "exp", "erf", "erfc", "sin", "cos", "atan", "arctan", "softplus", "log_sigmoid", "silu"),
    *("gelu", "mish", "sinh", "cosh", "special_expit", "asinh", "arcsinh"),
}
# functions with kinks (of any derivative) at fixed arguments, whatever their other parameters
_KINKED: dict[str, tuple[float, ...]] = {
    "relu": (0.0,),
    "relu6": (0.0, 6.0),
    "abs": (0.0,),
    "hardsigmoid": (-3.0, 3.0),
    "leaky_relu": (0.0,),
    "elu": (0.0,),
    "selu": (0.0,),
    "softsign": (0.0,),
}
# functions with kinks at their bounds, by the names these go by
_BOUNDED = {"clamp": ("min", "max"), "clip": ("min", "max"), "hardtanh": ("min_val", "max_val")}
_METHODS = {"sigmoid", "tanh", "exp", "erf", "sin", "cos", "relu", "abs", "clamp", "clip", "square", "pow"}


def _opaque(reason: str, arguments: Iterable[Polynomial]) -> Polynomial:
    terms = [t for a in arguments for t in a.terms]
    hidden = {v for t in terms for v in t.powers} | {v for t in terms for o in t.opaque for v in o.variables}
    return Polynomial([Term(1.0, {}, {}, (Opaque(reason, frozenset(hidden), next(_serial)),))])


def _apply(name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Polynomial:
    """A torch function of an expression: a gate function of one pre-activation alone, a number of constants."""
    given = [a for a in (*args, *kwargs.values()) if isinstance(a, Polynomial)]
    argument, rest = (args or given)[0], list(args[1:])
    if len(given) > 1 or argument is not given[0]:
        return _opaque(f"{name} of several expressions", given)
    variables = {v for t in argument.terms for v in t.powers}
    if not (variables or argument.gates or argument.obstacle()):
        value = sum(float(term.coefficient) for term in argument.terms)
        return Polynomial.constant(float(func(torch.tensor(value, dtype=torch.float64), *rest, **kwargs)))
    if variables or len(argument.gates) != 1 or argument.obstacle():
        mixed = ", ".join(sorted(variables) + [f"u_{gate}" for gate in sorted(argument.gates)])
        return _opaque(argument.obstacle() or f"{name} of an expression in {mixed or 'constants'}", given)
    inner = argument._function()
    kinks = _kinks_of(name, inner, rest, kwargs)
    if isinstance(kinks, str):
        return _opaque(kinks, given)
    outer = GateFunction(inner.gate, lambda u: func(inner.call(u), *rest, **kwargs), inner.kinks + kinks)
    return Polynomial([Term(1.0, {inner.gate: (outer,)}, {})])


def _kinks_of(name: str, inner: GateFunction, rest: list[Any], kwargs: dict[str, Any]) -> tuple[float, ...] | str:
    """Where the function of ``inner`` is not smooth, or why that is not known."""
    if name in _SMOOTH:
        return ()
    if name in _BOUNDED:
        bounds = [*rest, *(kwargs.get(bound) for bound in _BOUNDED[name])]
        at = tuple(float(b) for b in bounds if b is not None)
    elif name in _KINKED:
        at = _KINKED[name]
    else:
        return f"{name} is not among the functions whose smoothness is known"
    if inner.line is None or inner.line[0] == 0:
        return f"{name} of a curved function: its kinks are not known"
    slope, offset = inner.line
    return tuple((value - offset) / slope for value in at)


@dataclass(frozen=True)
class Structure:
    """A cell's update and reads as polynomials."""

    update: Mapping[str, Polynomial]
    reads: Mapping[str, Polynomial]


def structure_of(cell: Cell) -> Structure:
    """Trace a cell's update and reads.

    Raises:
        NotPolynomial: the update is not pointwise, or uses an operation that symbols do not have.

    >>> from isornn.cells import GRU, Minimal
    >>> structure_of(Minimal()).update["h"].degree("h")
    1
    >>> structure_of(GRU()).update["h"].obstacle()
    'tanh of an expression in u_nh, u_nx, u_r'
    """
    if not cell.pointwise:
        raise NotPolynomial(f"{cell}: {NOT_POINTWISE}")
    s = Values(**{name: Polynomial.variable(name) for name in cell.states})
    u = Values(**{gate: Polynomial.preactivation(gate) for gate in cell.gates})
    for name, value in cell.parameters.items():
        setattr(u, name, Polynomial.constant(float(value)))
    try:
        update = cell.update(s, u, Polynomial.variable(INPUT))
        reads = {gate: cell.read(gate, s, u) for gate, what in cell.gates.items() if what.state}
    except (TypeError, AttributeError) as error:
        raise NotPolynomial(f"the update uses an operation that symbols do not have ({error})") from error
    return Structure(
        {name: _polynomial(value) for name, value in update.items()},
        {gate: _polynomial(value) for gate, value in reads.items()},
    )
