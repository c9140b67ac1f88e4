"""The sum over units of the Dyson equation, in machine code.

This module imports numba, which takes a second: only `isornn.theory.spectra.dyson` imports it, when it first runs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

import numba
import numpy as np

Array = np.ndarray[Any, Any]
F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """The function in machine code, kept beside the source where there is room for it."""
    machine = numba.njit(fastmath={"contract"}, error_model="numpy", nogil=True)(function)
    with suppress(RuntimeError):
        machine.enable_caching()
    return cast(F, machine)


@jit
def _column(
    f: int, z: complex, outputs: int, coefficients: Array, p: Array, low: Array, inverse: Array, x: Array
) -> complex:
    """``-c + c^2 p^T G p`` of one unit for its factor f, from L, D^-1 and ``x = L^-1 p``, without cancellation.

    The first pivot j at which p is not 0 is ``c p_j^2 + rest``; so ``-c rest / (c p_j^2 + rest)`` is left of the first
    term and the pivot's part of the second.
    """
    count, size = p.shape
    c = coefficients[f]
    for j in range(size):
        if p[f, j] != 0:
            rest = -z if j >= size - outputs else 0j
            for g in range(count):
                if g != f:
                    rest += coefficients[g] * (p[g, j] * p[g, j])
            for q in range(j):
                rest -= low[j, q] * low[j, q] / inverse[q]
            later = 0j
            for q in range(j + 1, size):
                later += x[q] * x[q] * inverse[q]
            return c * (c * later - rest * inverse[j])
    return -c


@jit
def sums_over_units(
    z: Array,
    outputs: int,
    coefficients: Array,
    factors: Array,
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
    are weak, the two terms cancel. See `_column`.

    R = L D L^T without pivoting: its imaginary part is definite off the real axis, and R is positive on the negative
    one. Zeros are skipped, which makes the chains of several steps, whose R is banded, cheap.

    Where a pivot vanishes, which is so at no solution, all is NaN.

    Args:
        z: (Z,) complex.
        outputs: Pi is 1 on as many last rows.
        coefficients: c (Z, F) complex.
        factors: p (n, F, K).
        columns: for which f e is wanted (Q,).
        weight: w (n,).
        y, e, h, trace: (Z, F), (Z, Q), (Z, F, F), (Z,), complex, zero before.
    """
    units, count, size = factors.shape
    r = np.zeros((size, size), np.complex128)
    inverse = np.zeros(size, np.complex128)
    x = np.zeros((count + outputs, size), np.complex128)
    for n in range(units):
        for i in range(len(z)):
            r[:] = 0
            for f in range(count):
                for s in range(size):
                    left = factors[n, f, s]
                    if left != 0:
                        for q in range(s + 1):
                            right = factors[n, f, q]
                            if right != 0:
                                r[s, q] += coefficients[i, f] * (left * right)
            for s in range(size - outputs, size):
                r[s, s] -= z[i]
            for j in range(size):
                inverse[j] = 1 / r[j, j] if r[j, j] != 0 else complex(np.nan, np.nan)
                for s in range(j + 1, size):
                    if r[s, j] != 0:
                        down = r[s, j] * inverse[j]
                        for q in range(j + 1, s + 1):
                            r[s, q] -= down * r[q, j]
                for s in range(j + 1, size):
                    r[s, j] *= inverse[j]
            for f in range(count + outputs):
                for s in range(size):
                    if f < count:
                        x[f, s] = factors[n, f, s]
                    else:
                        x[f, s] = 1.0 if s == size - outputs + f - count else 0.0
                for j in range(size):
                    if x[f, j] != 0:
                        for s in range(j + 1, size):
                            if r[s, j] != 0:
                                x[f, s] -= r[s, j] * x[f, j]
            for f in range(count):
                for g in range(f + 1):
                    product = 0j
                    for j in range(size):
                        if x[f, j] != 0:
                            product += x[f, j] * inverse[j] * x[g, j]
                    h[i, f, g] += weight[n] * (product * product)
                    if f == g:
                        y[i, f] += weight[n] * product
            for q in range(len(columns)):
                f = columns[q]
                e[i, q] += weight[n] * _column(f, z[i], outputs, coefficients[i], factors[n], r, inverse, x[f])
            for f in range(count, count + outputs):
                for j in range(size):
                    if x[f, j] != 0:
                        trace[i] += weight[n] * (x[f, j] * x[f, j] * inverse[j])
    for i in range(len(z)):
        for f in range(count):
            for g in range(f):
                h[i, g, f] = h[i, f, g]
