"""Whether a cell respects types: the rules of Balduzzi & Ghifary 2016 applied to its definition.

A type is a space with an orthonormal basis, and vectors may be added in one basis only. The cell's ``read``, ``update``
and ``output`` are called with symbols that carry their type. Every operation then says which types must be one; what a
matrix makes of a state is in a basis of its own, and the question is whether that can be the state's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from isornn.cells.cell import Cell, Values

Verdict = Literal["strongly", "weakly", "not", "undetermined"]

_MOST_PRODUCTS = 12  # each has two readings, and all combinations are tried


@dataclass(frozen=True)
class Typing:
    """How a cell is typed, and why.

    Args:
        cell: its name.
        verdict: ``"strongly"``, ``"weakly"``, ``"not"`` (typed) or ``"undetermined"``.
        offences: the operations that break a rule, in words; none where the cell is strongly typed.
        carried: states whose new value reads the old one coordinatewise, not through a matrix.
        affine: whether the new states are affine in the old ones at given pre-activations.
        reason: why the verdict is undetermined.
    """

    cell: str
    verdict: Verdict
    offences: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()
    affine: bool = False
    reason: str | None = None

    def __str__(self) -> str:
        if self.reason is not None:
            return f"{self.cell}: undetermined, {self.reason}"
        carried = f"; carried coordinatewise: {', '.join(self.carried)}" if self.carried else ""
        return "\n- ".join((f"{self.cell} is {self.verdict} typed{carried}", *self.offences))


def typing_of(cell: Cell, *, symmetric: bool = False) -> Typing:
    """Apply the type rules to a cell.

    The operations admitted (Definition 2):

    - T1: a function of one value, coordinatewise, keeps its type; so do a scalar's product and sum with it.
    - T2: ``+``, ``-``, ``max`` and ``min`` of two values of one type.
    - T3: a matrix takes a type to another. W x and V x_(t-1) may therefore be in whichever type the cell needs; W h is
      in another than h's, since V = P D Q^T ends in the basis P and begins in Q (eqs. 10, 11).
    - T4: in ``v * w`` one factor acts on the other, and the product is of the latter's type. Which acts is not written;
      the cell is given the reading with the fewest offences.

    At the next step the new state is the old one, so the two are of one type. Two demands follow (section 1):
    (i) types are preserved: no matrix's result, through any chain of matrices, is of the type that the matrix reads;
    (ii) learned parameters are kept apart from the state: no matrix reads anything that depends on a state.

    *Strongly* typed is a cell that meets both. *Weakly* typed (section 3.1: "constraints or restrictions on
    off-diagonal operations on recurrent states") is another that at least meets (i), or carries a state over
    coordinatewise (the LSTM's c), or lets a matrix read a gated state (the GRU's). The rest is *not* typed.

    Two points on which the paper's text leaves room: trained numbers per unit (`Cell.parameters`) may act on the state,
    for the paper calls T-MR (eq. 65) strongly typed; and ``v / w`` counts as ``v * (1/w)``, T1 and T4.

    Args:
        cell: the library's or a user's own.
        symmetric: whether recurrent matrices are held symmetric, V = P D P^T, which keeps types (eqs. 12, 13).

    Returns:
        The verdict; ``"undetermined"`` with the reason where the cell uses an operation the rules do not speak of.

    Source: Balduzzi & Ghifary 2016, sections 2 and 3.1.

    >>> from isornn.cells import LSTM, TRNN, Vanilla
    >>> typing_of(TRNN()).verdict, typing_of(LSTM()).verdict, typing_of(Vanilla()).verdict
    ('strongly', 'weakly', 'not')
    >>> print(typing_of(Vanilla()))
    vanilla is not typed
    - W_h takes h to another basis, yet its result is added up in h's own: V z + V^2 z + ... (T2)
    - W_h reads h: the feature u_h is not stateless
    >>> typing_of(Vanilla(), symmetric=True).offences
    ('W_h reads h: the feature u_h is not stateless',)
    """
    try:
        return _judged(cell, symmetric)
    except _Unspoken as error:
        return Typing(cell.name, "undetermined", reason=str(error))
    except (TypeError, AttributeError, LookupError, ValueError) as error:
        why = f"it does not take symbols for values ({type(error).__name__}: {error})"
        return Typing(cell.name, "undetermined", reason=why)


def _judged(cell: Cell, symmetric: bool) -> Typing:
    demands = _Demands()
    s = Values(**{name: demands.value(states=frozenset({name}), degree=1) for name in cell.states})
    u = Values(**{name: demands.value() for name in cell.parameters})
    reads = {}
    for gate, what in cell.gates.items():
        if what.state:
            reads[gate] = cell.read(gate, s, u)
        setattr(u, gate, demands.feature(gate, reads.get(gate), symmetric))
    new = cell.update(s, u, demands.value())
    for name in cell.states:
        demands.same(new[name], getattr(s, name))
    cell.output(s, u)
    matrices = {gate: r for gate, r in reads.items() if isinstance(r, _Value) and r.reached}
    mixing = demands.mixing()
    carried = tuple(name for name in cell.states if name in getattr(new[name], "states", ()))
    gated = any(r.is_product and r.states for r in matrices.values())
    return Typing(
        cell.name,
        verdict="strongly" if not matrices else "weakly" if not mixing or carried or gated else "not",
        offences=(
            *(_mixes(gate, matrices[gate]) for gate in mixing),
            *(f"W_{gate} reads {_names(r)}: the feature u_{gate} is not stateless" for gate, r in matrices.items()),
        ),
        carried=carried,
        affine=all(getattr(new[name], "degree", 0) <= 1 for name in cell.states),
    )


def _names(r: _Value) -> str:
    return ", ".join(sorted(r.states or r.reached))


def _mixes(gate: str, r: _Value) -> str:
    names = _names(r)
    return (
        f"W_{gate} takes {names} to another basis, yet its result is added up in {names}'s own: V z + V^2 z + ... (T2)"
    )


@dataclass
class _Demands:
    """What the operations of a cell ask of the types, which are numbers here."""

    types: int = 0
    equal: list[tuple[int, int]] = field(default_factory=list)
    products: list[tuple[int, int, int]] = field(default_factory=list)
    images: list[tuple[str, int, int]] = field(default_factory=list)

    def value(self, **what: Any) -> _Value:
        """A value of a type that nothing is known of yet."""
        self.types += 1
        return _Value(self, self.types - 1, **what)

    def feature(self, gate: str, r: Any, symmetric: bool) -> _Value:
        """The pre-activation ``u_k = W_k r + U_k x + ...``; the learned U_k lead to any type, so only W_k r matters."""
        if not isinstance(r, _Value) or not r.reached:
            return self.value()
        u = self.value(reached=r.reached)
        if symmetric:
            self.same(u, r)
        else:
            self.images.append((gate, r.type, u.type))
        return u

    def same(self, a: Any, b: Any) -> None:
        """T2: the two are of one type; a number is of any."""
        if isinstance(a, _Value) and isinstance(b, _Value):
            self.equal.append((a.type, b.type))

    def mixing(self) -> list[str]:
        """Gates whose matrix ends, maybe by way of others, in the type it began with, in the kindest reading of T4."""
        if not self.images:
            return []
        if len(self.products) > _MOST_PRODUCTS:
            raise _Unspoken(f"{len(self.products)} products have too many readings; {_MOST_PRODUCTS} can be tried")
        return min((self._mixing(reading) for reading in itertools.product((2, 1), repeat=len(self.products))), key=len)

    def _mixing(self, reading: Iterable[int]) -> list[str]:
        chosen = [(of[0], of[acted]) for of, acted in zip(self.products, reading, strict=True)]
        kind = _classes(self.types, [*self.equal, *chosen])
        steps = [(kind[source], kind[target]) for _, source, target in self.images]
        return [gate for (gate, *_), (a, b) in zip(self.images, steps, strict=True) if a in _reachable(b, steps)]


def _classes(count: int, equal: Iterable[tuple[int, int]]) -> list[int]:
    """By type, a representative of all the types that must be one with it."""
    kind = list(range(count))
    for a, b in equal:
        old, new = kind[a], kind[b]
        kind = [new if k == old else k for k in kind]
    return kind


def _reachable(start: int, steps: Iterable[tuple[int, int]]) -> set[int]:
    found, fresh = {start}, {start}
    while fresh:
        fresh = {b for a, b in steps if a in fresh} - found
        found |= fresh
    return found


class _Unspoken(Exception):
    """An operation that the rules do not speak of."""


class _Value:
    """A symbol with its type.

    Args:
        demands: where its operations are noted.
        type: its number there.
        states: the states it depends on coordinatewise.
        reached: those, and the ones it depends on through matrices.
        degree: in the states, at given pre-activations; infinite where it is no polynomial.
        is_product: whether it is ``v * w``.
    """

    def __init__(
        self,
        demands: _Demands,
        type: int,
        states: frozenset[str] = frozenset(),
        reached: frozenset[str] = frozenset(),
        degree: float = 0,
        is_product: bool = False,
    ) -> None:
        self.demands, self.type, self.degree, self.is_product = demands, type, degree, is_product
        self.states, self.reached = states, reached | states

    def mapped(self, linear: bool) -> _Value:
        """T1."""
        degree = self.degree if linear or not self.degree else float("inf")
        return _Value(self.demands, self.type, self.states, self.reached, degree)

    def added(self, other: _Value, linear: bool) -> _Value:
        """T2."""
        self.demands.same(self, other)
        degree = max(self.degree, other.degree)
        return self._with(other, self.type, degree if linear or not degree else float("inf"))

    def times(self, other: _Value) -> _Value:
        """T4."""
        product = self._with(other, self.demands.value().type, self.degree + other.degree, is_product=True)
        self.demands.products.append((product.type, self.type, other.type))
        return product

    def _with(self, other: _Value, type: int, degree: float, is_product: bool = False) -> _Value:
        return _Value(self.demands, type, self.states | other.states, self.reached | other.reached, degree, is_product)

    def __add__(self, other: Any) -> _Value:
        return _applied("add", (self, other))

    def __sub__(self, other: Any) -> _Value:
        return _applied("sub", (self, other))

    def __rsub__(self, other: Any) -> _Value:
        return _applied("sub", (other, self))

    def __mul__(self, other: Any) -> _Value:
        return _applied("mul", (self, other))

    def __truediv__(self, other: Any) -> _Value:
        return _applied("div", (self, other))

    def __rtruediv__(self, other: Any) -> _Value:
        return _applied("div", (other, self))

    def __pow__(self, power: Any) -> _Value:
        return _applied("pow", (self, power))

    def __neg__(self) -> _Value:
        return _applied("neg", (self,))

    def __abs__(self) -> _Value:
        return _applied("abs", (self,))

    __radd__ = __add__
    __rmul__ = __mul__

    def __bool__(self) -> bool:
        raise _Unspoken("the step depends on whether a value is true")

    def __eq__(self, other: object) -> bool:
        raise _Unspoken("the step depends on whether values are equal")

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> _Value:
        return _applied(func.__name__.strip("_"), args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Callable[..., _Value]:
        """Torch functions as methods: ``u.f.sigmoid()``."""
        if name not in _KNOWN:
            raise AttributeError(f"{name!r} of a value is not among the rules' operations")
        return lambda *args, **kwargs: _applied(name, (self, *args), **kwargs)


_OF_ONE = {
    *("abs", "asinh", "atan", "arctan", "arcsinh", "cos", "cosh", "elu", "erf", "erfc", "exp", "expm1"),
    *("gelu", "hardshrink", "hardsigmoid", "hardswish", "leaky_relu", "log", "log1p", "log_sigmoid", "logsigmoid"),
    *("mish", "neg", "negative", "ones_like", "reciprocal", "relu", "relu6", "rsqrt", "selu", "sigmoid", "sign"),
    *("silu", "sin", "sinc", "sinh", "softplus", "softshrink", "softsign", "special_expit", "sqrt", "square", "tanh"),
    *("tanhshrink", "threshold", "zeros_like"),
}
_WITH_NUMBERS = {"clamp", "clip", "hardtanh", "pow"}
_SUMS = {"add", "radd", "sub", "rsub", "subtract"}
_EXTREMES = {"maximum", "minimum", "fmax", "fmin"}
_PRODUCTS = {"mul", "rmul", "multiply"}
_QUOTIENTS = {"div", "divide", "truediv", "true_divide"}
_LINEAR = _SUMS | _PRODUCTS | {"neg", "negative"}
_KNOWN = _OF_ONE | _WITH_NUMBERS | _SUMS | _EXTREMES | _PRODUCTS | _QUOTIENTS


def _applied(name: str, args: tuple[Any, ...], **kwargs: Any) -> _Value:
    """An operation's result by the rule it falls under.

    Raises:
        _Unspoken: it falls under none.
    """
    values = [a for a in (*args, *kwargs.values()) if isinstance(a, _Value)]
    numbers = [a for a in (*args, *kwargs.values()) if not isinstance(a, _Value)]
    if any(isinstance(a, Tensor) and a.dim() for a in numbers):
        raise _Unspoken(f"{name} with a tensor of fixed numbers, which has no type")
    plain = not kwargs  # a keyword may round, which is not linear
    if len(values) == 1 and name in _KNOWN:
        return values[0].mapped(plain and (name in _LINEAR or (name in _QUOTIENTS and args[0] is values[0])))
    if len(values) == 2 and name in _SUMS | _EXTREMES | {"max", "min"}:
        return values[0].added(values[1], linear=plain and name in _SUMS)
    if len(values) == 2 and name in _PRODUCTS:
        return values[0].times(values[1])
    if len(values) == 2 and name in _QUOTIENTS:
        return values[0].times(values[1].mapped(linear=False))
    of = "one value" if len(values) == 1 else f"{len(values)} values"
    raise _Unspoken(f"{name} of {of} is none of the operations T1 to T4")


__all__ = ["Typing", "Verdict", "typing_of"]
