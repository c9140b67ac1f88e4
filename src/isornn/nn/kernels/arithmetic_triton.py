"""The functions of printed Triton kernels, in arithmetic that Triton's interpreter has as well as a GPU."""

from __future__ import annotations

import triton
import triton.language as tl

# Neither the step nor the length of a sequence is worth a kernel of its own.
jit = triton.jit(do_not_specialize=["t", "steps"])

# Functions of ours, as the interpreter does not find Triton's own under another name.


@triton.jit
def where(condition, a, b):
    return tl.where(condition, a, b)


@triton.jit
def abs(x):
    return tl.abs(x)


@triton.jit
def cos(x):
    return tl.cos(x)


@triton.jit
def erf(x):
    return tl.erf(x)


@triton.jit
def exp(x):
    return tl.exp(x)


@triton.jit
def log(x):
    return tl.log(x)


@triton.jit
def sin(x):
    return tl.sin(x)


@triton.jit
def sqrt(x):
    return tl.sqrt(x)


@triton.jit
def sigmoid(u):
    """``1 / (1 + e^-u)``, of no exponential above 1."""
    e = tl.exp(-tl.abs(u))
    return tl.where(u < 0, e, 1) / (1 + e)


@triton.jit
def tanh(u):
    """``-e / (e + 2)`` with ``e = e^-2|u| - 1``: relatively accurate however small u is."""
    e = expm1(-2 * tl.abs(u))
    return tl.where(u < 0, e, -e) / (e + 2)


@triton.jit
def expm1(x):
    """``e^x - 1``; near 0 the Taylor series, whose terms from x^18/18! on do not count in float64."""
    series = 1 + x / 17
    for k in tl.static_range(16, 1, -1):
        series = 1 + x / k * series
    return tl.where(tl.abs(x) < 0.5, x * series, tl.exp(x) - 1)


@triton.jit
def log1p(x):
    """``log(1 + x)``, corrected for the rounding of 1 + x (Kahan)."""
    w = 1 + x
    return tl.where(w == 1, x, tl.log(w) * tl.where(w == x, 1, x / (w - 1)))


@triton.jit
def before(initial, states, t, step, place, mine):
    """A state before step t; of what each element has not, nothing is read."""
    is_first = place * 0 + t == 0
    first = tl.load(initial + place, mask=mine & is_first, other=0)
    later = tl.load(states + (t - 1) * step + place, mask=mine & (is_first == 0), other=0)
    return tl.where(is_first, first, later)
