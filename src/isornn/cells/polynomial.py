"""Polynomials in a cell's states and input.

The coefficients are products of functions of one pre-activation each. What mixes several of them, or is curved in a
state, is opaque and says why.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

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
    def pre_activation(gate: str) -> Polynomial:
        return Polynomial.of_gate(GateFunction(gate, lambda u: u, line=(1.0, 0.0)))

    @staticmethod
    def variable(name: str) -> Polynomial:
        return Polynomial([Term(1.0, {}, {name: 1})])

    def __add__(self, other: Any) -> Polynomial:
        both = Polynomial((*self.terms, *polynomial_of(other).terms))
        return both._as_one_function() or both

    def __mul__(self, other: Any) -> Polynomial:
        return Polynomial([a.times(b) for a in self.terms for b in polynomial_of(other).terms])

    def __pow__(self, power: int) -> Polynomial:
        return math.prod([self] * power, start=Polynomial.constant(1.0))

    def at(self, gates: Numbers, variables: Numbers) -> Any:
        """The value, by those of the pre-activations and of states and input.

        >>> from isornn.cells import GRU
        >>> from isornn.cells.structure import structure_of
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

    def functions(self, gate: str) -> list[GateFunction]:
        """Its functions of a pre-activation, once for each term and factor."""
        return [function for term in self.terms for function in term.factors.get(gate, ())]

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

        kinks = {kink for function in self.functions(gate) for kink in function.kinks}
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


def polynomial_of(value: Any) -> Polynomial:
    """A number as a constant."""
    return value if isinstance(value, Polynomial) else Polynomial.constant(value)
