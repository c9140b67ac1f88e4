"""The sum over units of the Dyson equation, in machine code.

This module imports numba, which takes a second: only `isornn.theory.spectra.dyson` imports it, when it first runs.

A complex number of each of L units is a row (2, L) of real and imaginary parts, so that loops over the units become
vector instructions. Whether an entry is 0 for all units is known before: ``filled``, ``reached``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from isornn.machine_code import in_machine_code

Array = np.ndarray[Any, Any]
F = TypeVar("F", bound=Callable[..., Any])

_LANES = 64  # units at once: what they need then stays in the processor's cache


def jit(function: F, *freedoms: str) -> F:
    """The function in machine code.

    Without fused multiplications: which are fused would depend on whether the code was compiled or read back.
    """
    return in_machine_code(function, freedoms)


def jit_sum(function: F) -> F:
    """Likewise, where terms may be added up in any order."""
    return jit(function, "reassoc")


# Loops in place of assignments to parts of arrays, whose checks of shape take numba five seconds to compile.


@jit
def _set(a: Array, value: float) -> None:
    """``a = value``."""
    for i in range(a.shape[1]):
        a[0, i] = value
        a[1, i] = 0.0


@jit
def _copy(a: Array, real: Array) -> None:
    """``a = real``."""
    for i in range(a.shape[1]):
        a[0, i] = real[i]
        a[1, i] = 0.0


@jit
def _add_same(total: Array, sign: float, c: complex) -> None:
    """``total += sign c``."""
    for i in range(total.shape[1]):
        total[0, i] += sign * c.real
        total[1, i] += sign * c.imag


@jit
def _add(total: Array, c: complex, a: Array, b: Array) -> None:
    """``total += c a b`` for real a and b (L,)."""
    for i in range(total.shape[1]):
        product = a[i] * b[i]
        total[0, i] += c.real * product
        total[1, i] += c.imag * product


@jit
def _add_product(total: Array, sign: float, a: Array, b: Array) -> None:
    """``total += sign a b``."""
    for i in range(total.shape[1]):
        total[0, i] += sign * (a[0, i] * b[0, i] - a[1, i] * b[1, i])
        total[1, i] += sign * (a[0, i] * b[1, i] + a[1, i] * b[0, i])


@jit
def _add_times(total: Array, c: complex, a: Array) -> None:
    """``total += c a``."""
    for i in range(total.shape[1]):
        total[0, i] += c.real * a[0, i] - c.imag * a[1, i]
        total[1, i] += c.real * a[1, i] + c.imag * a[0, i]


@jit
def _invert(inverse: Array, a: Array) -> None:
    """``inverse = 1 / a``, by way of the larger part, so that squares stay within the range of floating point."""
    for i in range(inverse.shape[1]):
        scale = 1 / max(abs(a[0, i]), abs(a[1, i]))
        real, imaginary = a[0, i] * scale, a[1, i] * scale
        size = scale / (real * real + imaginary * imaginary)
        inverse[0, i] = real * size
        inverse[1, i] = -imaginary * size


@jit_sum
def _mean(weight: Array, a: Array) -> complex:
    """``sum w a``."""
    real = imaginary = 0.0
    for i in range(len(weight)):
        real += weight[i] * a[0, i]
        imaginary += weight[i] * a[1, i]
    return complex(real, imaginary)


@jit_sum
def _mean_square(weight: Array, a: Array) -> complex:
    """``sum w a^2``."""
    real = imaginary = 0.0
    for i in range(len(weight)):
        real += weight[i] * (a[0, i] * a[0, i] - a[1, i] * a[1, i])
        imaginary += weight[i] * (2 * a[0, i] * a[1, i])
    return complex(real, imaginary)


@jit
def _factorised(
    z: complex, outputs: int, c: Array, p: Array, filled: Array, r: Array, low: Array, inverse: Array
) -> None:
    """L and D^-1 of R = L D L^T, and R as it is before each elimination.

    Without pivoting: the imaginary part of R is definite off the real axis, and R is positive on the negative one.
    """
    count, size, _ = p.shape
    for s in range(size):
        for q in range(s + 1):
            if filled[s, q] or s == q:
                _set(r[s, q], 0.0)
                for f in range(count):
                    _add(r[s, q], c[f], p[f, s], p[f, q])
        if s >= size - outputs:
            _add_same(r[s, s], -1.0, z)
    for j in range(size):
        _invert(inverse[j], r[j, j])
        for s in range(j + 1, size):
            if filled[s, j]:
                _set(low[s, j], 0.0)
                _add_product(low[s, j], 1.0, r[s, j], inverse[j])
                for q in range(j + 1, s + 1):
                    if filled[q, j]:
                        _add_product(r[s, q], -1.0, low[s, j], r[q, j])


@jit
def _solve(low: Array, inverse: Array, filled: Array, reached: Array, x: Array, scaled: Array) -> None:
    """``x = L^-1 x`` and ``scaled = D^-1 x``."""
    size = len(x)
    for j in range(size):
        if reached[j]:
            _set(scaled[j], 0.0)
            _add_product(scaled[j], 1.0, x[j], inverse[j])
            for s in range(j + 1, size):
                if filled[s, j]:
                    _add_product(x[s], -1.0, low[s, j], x[j])


@jit
def _own(
    f: int,
    z: complex,
    outputs: int,
    c: Array,
    p: Array,
    filled: Array,
    reached: Array,
    r: Array,
    low: Array,
    inverse: Array,
    x: Array,
    scaled: Array,
    rest: Array,
    own: Array,
) -> None:
    """``own = -1 + c p^T G p`` for the factor f, without cancellation.

    The first pivot j at which p is not 0 is ``c p_j^2 + rest``; so ``-rest / (c p_j^2 + rest)`` is left of the first
    term and the pivot's part of the second.
    """
    count, size, _ = p.shape
    _set(own, 0.0)
    for j in range(size):
        if reached[j]:
            _set(rest, 0.0)
            for g in range(count):
                if g != f:
                    _add(rest, c[g], p[g, j], p[g, j])
            if j >= size - outputs:
                _add_same(rest, -1.0, z)
            for q in range(j):
                if filled[j, q]:
                    _add_product(rest, -1.0, low[j, q], r[j, q])
            _add_product(own, -1.0, rest, inverse[j])
            _set(rest, 0.0)
            for q in range(j + 1, size):
                if reached[q]:
                    _add_product(rest, 1.0, scaled[q], x[q])
            _add_times(own, c[f], rest)
            return
    _set(own, -1.0)


@jit
def sums_over_units(
    z: Array,
    outputs: int,
    coefficients: Array,
    factors: Array,
    filled: Array,
    reached: Array,
    columns: Array,
    weight: Array,
    y: Array,
    e: Array,
    h: Array,
    trace: Array,
) -> None:
    """Adds up over units n, for each z, with ``R = -z Pi + sum_f c_f p_f p_f^T`` and ``G = R^-1`` of size K:

        y_f = sum w_n p_f^T G p_f,          e_f = sum w_n (-c_f + c_f^2 p_f^T G p_f) for some factors,
        h_fg = sum w_n (p_f^T G p_g)^2,     trace = sum w_n tr Pi G.

    Units' parts of e are ``-c / (1 + c s)`` with ``s = p^T (R - c p p^T)^-1 p``: where c s is large, as where weights
    are weak, the two terms cancel. See `_own`. What is 0 for all units is skipped, which makes the chains of several
    steps, whose R is banded, cheap. Where a pivot vanishes, which is so at no solution, all is NaN.

    Args:
        z: (Z,) complex.
        outputs: Pi is 1 on as many last rows.
        coefficients: c (Z, F) complex.
        factors: p (F, K, n).
        filled, reached: where, for some unit, L (K, K) and ``x = L^-1 p``, of each factor and of each column of Pi,
            (F + outputs, K) may differ from 0.
        columns: for which f e is wanted (Q,).
        weight: w (n,).
        y, e, h, trace: (Z, F), (Z, Q), (Z, F, F), (Z,), complex, zero before.
    """
    count, size, units = factors.shape
    for first in range(0, units, _LANES):
        p, w = factors[:, :, first : first + _LANES], weight[first : first + _LANES]
        lanes = len(w)
        r, low = np.empty((size, size, 2, lanes)), np.empty((size, size, 2, lanes))
        x, scaled = np.empty((count + outputs, size, 2, lanes)), np.empty((count + outputs, size, 2, lanes))
        inverse, rest, product = np.empty((size, 2, lanes)), np.empty((2, lanes)), np.empty((2, lanes))
        for i in range(len(z)):
            c = coefficients[i]
            _factorised(z[i], outputs, c, p, filled, r, low, inverse)
            for f in range(count + outputs):
                for s in range(size):
                    if f < count:
                        _copy(x[f, s], p[f, s])
                    else:
                        _set(x[f, s], 1.0 if s == size - outputs + f - count else 0.0)
                _solve(low, inverse, filled, reached[f], x[f], scaled[f])
            for f in range(count):
                for g in range(f + 1):
                    _set(product, 0.0)
                    for j in range(size):
                        if reached[f, j] and reached[g, j]:
                            _add_product(product, 1.0, scaled[f, j], x[g, j])
                    h[i, f, g] += _mean_square(w, product)
                    if f == g:
                        y[i, f] += _mean(w, product)
            for q in range(len(columns)):
                f = columns[q]
                _own(f, z[i], outputs, c, p, filled, reached[f], r, low, inverse, x[f], scaled[f], rest, product)
                e[i, q] += c[f] * _mean(w, product)
            for f in range(count, count + outputs):
                _set(product, 0.0)
                for j in range(size):
                    if reached[f, j]:
                        _add_product(product, 1.0, scaled[f, j], x[f, j])
                trace[i] += _mean(w, product)
    for i in range(len(z)):
        for f in range(count):
            for g in range(f):
                h[i, g, f] = h[i, f, g]
