"""Sigmoid and tanh for compiled loops, in plain arithmetic: that becomes vector instructions, calls to libm do not.

This module imports numba, which takes a second: only modules of compiled steps import it, and kernels import those when
they first run. Numba keeps machine code beside the source that it compiled and does not see when another file changes:
whoever edits this one touches the files that use it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload

from isornn.machine_code import in_machine_code

Array = np.ndarray[Any, Any]
F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """The function in machine code; ``x*y + z`` may be rounded once, no other arithmetic changes."""
    return in_machine_code(function, ["contract"])


@dataclass(frozen=True)
class Format:
    """Numbers of one type, for ``e^x = 2^n (1 + p)``: n nearest to x/log(2), ``r = x - n log(2)``, ``p = e^r - 1``.

    Args:
        type: numpy's scalar type.
        mantissa, bias: of its bits those of the mantissa, and what is added to exponents.
        high, low: two numbers that add up to log(2); n high is exact for every n that occurs.
        degree: of the Taylor polynomial for p, where r is at most log(2)/2 in size.
        overflow: an x whose 2^n is infinite but has no higher bits yet.
    """

    type: Any
    mantissa: int
    bias: int
    high: float
    low: float
    degree: int
    overflow: float

    @property
    def shift(self) -> Any:
        """What leaves n in the last bits of ``n + shift``."""
        return self.type(1.5 * 2.0**self.mantissa)

    @property
    def taylor(self) -> tuple[Any, ...]:
        """``1/degree!, ..., 1/3!, 1/2!``."""
        return tuple(self.type(1 / math.factorial(k)) for k in range(self.degree, 1, -1))


FORMATS: dict[Any, Format] = {
    types.float32: Format(np.float32, 23, 127, 0.693145751953125, 1.42860682030941723e-06, 7, 88.9),
    types.float64: Format(np.float64, 52, 1023, 0.6931471803691238, 1.90821492927058770e-10, 13, 709.9),
}


@intrinsic
def _power_of_two(context: Any, shifted: Any) -> Any:
    """``2^n`` from ``n + shift``: n moves to where the exponent's bits are."""
    numbers = FORMATS[shifted]

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        integer = ir.IntType(shifted.bitwidth)
        n = builder.bitcast(arguments[0], integer)
        exponent = builder.add(n, ir.Constant(integer, numbers.bias))
        return builder.bitcast(builder.shl(exponent, ir.Constant(integer, numbers.mantissa)), arguments[0].type)

    return shifted(shifted), build


power_of_two: Callable[[Any], Any] = cast(Any, _power_of_two)  # the context is numba's to give


def exponential(x: Any) -> Any:
    """``p, scale`` with ``e^x = scale (1 + p)``, in compiled code only."""
    raise NotImplementedError


@overload(exponential)
def _exponential(x: Any) -> Any:
    numbers = FORMATS[x]
    shift, taylor = numbers.shift, numbers.taylor
    per_log2, high, low = numbers.type(1 / math.log(2)), numbers.type(numbers.high), numbers.type(numbers.low)

    def implementation(x: Any) -> Any:
        shifted = x * per_log2 + shift
        n = shifted - shift
        r = (x - n * high) - n * low
        series = taylor[0]
        for k in range(1, len(taylor)):
            series = series * r + taylor[k]
        return r + r * r * series, power_of_two(shifted)

    return implementation


def sigmoid(u: Any) -> Any:
    """``1 / (1 + e^-u)``, in compiled code only: relatively accurate down to the smallest normal numbers, then 0."""
    raise NotImplementedError


@overload(sigmoid)
def _sigmoid(u: Any) -> Any:
    number = FORMATS[u].type
    one, lowest = number(1), number(-FORMATS[u].overflow)
    highest = number(50)  # 1 + e^-50 is 1

    def implementation(u: Any) -> Any:
        u = lowest if u < lowest else u  # compared in this order NaN stays
        u = highest if u > highest else u
        p, scale = exponential(-u)
        return one / (one + scale * (one + p))

    return implementation


def tanh(u: Any) -> Any:
    """``e / (e + 2)`` with ``e = e^2u - 1``, in compiled code only: relatively accurate however small u is."""
    raise NotImplementedError


@overload(tanh)
def _tanh(u: Any) -> Any:
    number = FORMATS[u].type
    one, two = number(1), number(2)
    bound = number(20)  # its tanh is 1

    def implementation(u: Any) -> Any:
        u = -bound if u < -bound else u
        u = bound if u > bound else u
        p, scale = exponential(two * u)
        e = scale * p + (scale - one)
        return e / (e + two)

    return implementation


@jit
def where(condition: Any, a: Any, b: Any) -> Any:
    """``a`` if the condition holds, else ``b``."""
    return a if condition else b


def exp(x: Any) -> Any:
    """``e^x``, in compiled code only: 0 below the smallest normal number."""
    raise NotImplementedError


@overload(exp)
def _exp(x: Any) -> Any:
    number = FORMATS[x].type
    one, zero = number(1), number(0)
    lowest, highest = number(-FORMATS[x].overflow + 1.5), number(FORMATS[x].overflow)

    def implementation(x: Any) -> Any:
        y = lowest if x < lowest else x
        y = highest if y > highest else y
        p, scale = exponential(y)
        return zero if x < lowest else scale * (one + p)

    return implementation


def expm1(x: Any) -> Any:
    """``e^x - 1``, in compiled code only: relatively accurate however small x is."""
    raise NotImplementedError


@overload(expm1)
def _expm1(x: Any) -> Any:
    """``e (e + 2)`` with ``e = e^(x/2) - 1``, whose power of two is finite wherever the result is."""
    number = FORMATS[x].type
    half, one, two = number(0.5), number(1), number(2)
    lowest, highest = number(-50), number(FORMATS[x].overflow)  # e^-50 - 1 is -1

    def implementation(x: Any) -> Any:
        y = lowest if x < lowest else x
        y = highest if y > highest else y
        p, scale = exponential(half * y)
        e = scale * p + (scale - one)
        return e * (e + two)

    return implementation


@intrinsic
def _binary_exponent(context: Any, x: Any) -> Any:
    """``floor(log2 x)`` of a normal number: where the exponent's bits are."""
    numbers = FORMATS[x]

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        integer = ir.IntType(x.bitwidth)
        bits = builder.lshr(builder.bitcast(arguments[0], integer), ir.Constant(integer, numbers.mantissa))
        return builder.sitofp(builder.sub(bits, ir.Constant(integer, numbers.bias)), arguments[0].type)

    return x(x), build


@intrinsic
def _significand(context: Any, x: Any) -> Any:
    """``x / 2^floor(log2 x)`` of a normal number, in [1, 2): the other bits."""
    numbers = FORMATS[x]

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        integer = ir.IntType(x.bitwidth)
        bits = builder.and_(builder.bitcast(arguments[0], integer), ir.Constant(integer, 2**numbers.mantissa - 1))
        one = ir.Constant(integer, numbers.bias << numbers.mantissa)
        return builder.bitcast(builder.or_(bits, one), arguments[0].type)

    return x(x), build


binary_exponent: Callable[[Any], Any] = cast(Any, _binary_exponent)
significand: Callable[[Any], Any] = cast(Any, _significand)


def log1p(x: Any) -> Any:
    """``log(1 + x)``, in compiled code only: relatively accurate however small x is."""
    raise NotImplementedError


@overload(log1p)
def _log1p(x: Any) -> Any:
    """``log u = e log 2 + 2 artanh s`` with ``s = (m - 1)/(m + 1)`` for ``u = 1 + x = 2^e m``, m about 1."""
    numbers = FORMATS[x]
    number, terms = numbers.type, numbers.degree - 2
    series = tuple(number(2 / (2 * k + 1)) for k in range(terms, 0, -1))
    zero, half, one, two = number(0), number(0.5), number(1), number(2)
    root, log2 = number(math.sqrt(2)), number(math.log(2))
    huge, nothing, unknown = number(np.inf), number(-np.inf), number(np.nan)

    def implementation(x: Any) -> Any:
        u = one + x
        lost = x - (u - one) if x < one else one - (u - x)  # what 1 + x was rounded by
        m, e = significand(u), binary_exponent(u)
        wide = m > root
        m, e = (m * half if wide else m), (e + one if wide else e)
        s = (m - one) / (m + one)
        squared = s * s
        total = series[0]
        for k in range(1, len(series)):
            total = total * squared + series[k]
        found = e * log2 + (two * s + s * squared * total) + lost / u
        found = huge if u == huge else found
        found = nothing if u == zero else found
        return found if u >= zero else unknown

    return implementation


sqrt, log, sin, cos = np.sqrt, np.log, np.sin, np.cos  # as numba compiles them


@jit
def erf(x: Any) -> Any:
    """The error function."""
    return math.erf(x)
