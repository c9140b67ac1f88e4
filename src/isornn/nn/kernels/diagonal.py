"""Compiled diagonal recurrences: loops over time for the strongly typed cells and for a linear scan.

Each loop takes the rows (the scan: the columns) that it works on, so that threads may share one call, and passes over
memory once. Every innermost loop writes to one row only: with more, LLVM does not vectorise it.
"""

from __future__ import annotations

from torch import Tensor

from isornn.nn.kernels.arithmetic import Array, before, jit, sigmoid_over, tanh_over
from isornn.nn.kernels.threads import shared


def linear_scan(a: Tensor, b: Tensor, initial: Tensor, reverse: bool) -> Tensor:
    """``h_t = a_t h_(t-1) + b_t``, all of shape (T, ...) and of one dtype; in reverse from ``h_(t+1)``."""
    h = b.new_empty(len(b), initial.numel())
    flat = [tensor.reshape(h.shape).contiguous() for tensor in (a, b)]
    shared(scan, *flat, initial.reshape(-1).contiguous(), h, reverse, over=h.shape[1])
    return h.view(b.shape)


@jit
def scan(a: Array, b: Array, initial: Array, h: Array, reverse: bool, start: int, stop: int) -> None:
    """``h_t = a_t h_(t-1) + b_t``, (T, M) each, for columns start to stop; in reverse from ``h_(t+1)``."""
    steps = len(h)
    for i in range(steps):
        t = steps - 1 - i if reverse else i
        old = initial if i == 0 else h[t + 1] if reverse else h[t - 1]
        # Cut first: an index from an unknown start may be negative, and asking so would cost the vector instructions.
        _combine(a[t, start:stop], old[start:stop], b[t, start:stop], h[t, start:stop])


@jit
def trnn(gates: Array, h0: Array, h: Array, start: int, stop: int) -> None:
    """``h = f h + (1-f) z``, and over the pre-activations in ``gates``, (T, B, 2, N), the activations."""
    for t in range(len(h)):
        for b in range(start, stop):
            couple(gates[t, b, 0], gates[t, b, 1], before(h0, h, t)[b], h[t, b])


@jit
def tlstm(gates: Array, c0: Array, c: Array, y: Array, start: int, stop: int) -> None:
    """``c = f c + (1-f) z`` and ``y = c o``; gates as for `trnn`."""
    for t in range(len(c)):
        for b in range(start, stop):
            couple(gates[t, b, 0], gates[t, b, 1], before(c0, c, t)[b], c[t, b])
            o = gates[t, b, 2]
            tanh_over(o)
            for n in range(len(o)):
                y[t, b, n] = c[t, b, n] * o[n]


@jit
def tgru(gates: Array, h0: Array, h: Array, start: int, stop: int) -> None:
    """``h = f h + z o``; gates as for `trnn`."""
    for t in range(len(h)):
        for b in range(start, stop):
            f, z, o = gates[t, b, 0], gates[t, b, 1], gates[t, b, 2]
            sigmoid_over(f)
            tanh_over(o)
            old = before(h0, h, t)[b]
            for n in range(len(f)):
                h[t, b, n] = f[n] * old[n] + z[n] * o[n]


@jit
def trnn_backward(
    gates: Array, h0: Array, h: Array, dh: Array, du: Array, carried: Array, start: int, stop: int
) -> None:
    """Gradients ``du`` of the pre-activations; ``carried`` is 0 at first and at last the gradient of h0.

    The gradients ``dh`` of the result are of all steps, or of one that stands for all.
    """
    for t in range(len(h) - 1, -1, -1):
        for b in range(start, stop):
            add(carried[b], dh[t % len(dh), b])
            f, z, du_f, dz = gates[t, b, 0], gates[t, b, 1], du[t, b, 0], du[t, b, 1]
            couple_backward(f, z, before(h0, h, t)[b], du_f, dz, carried[b])


@jit
def tlstm_backward(
    gates: Array, c0: Array, c: Array, dc: Array, dy: Array, du: Array, carried: Array, start: int, stop: int
) -> None:
    """As `trnn_backward`."""
    one = gates.dtype.type(1)
    for t in range(len(c) - 1, -1, -1):
        for b in range(start, stop):
            o, of_c, of_y = gates[t, b, 2], carried[b], dy[t % len(dy), b]
            add(of_c, dc[t % len(dc), b])
            for n in range(len(o)):
                of_c[n] += of_y[n] * o[n]
            for n in range(len(o)):
                du[t, b, 2, n] = of_y[n] * c[t, b, n] * (one - o[n] * o[n])
            f, z, du_f, dz = gates[t, b, 0], gates[t, b, 1], du[t, b, 0], du[t, b, 1]
            couple_backward(f, z, before(c0, c, t)[b], du_f, dz, of_c)


@jit
def tgru_backward(
    gates: Array, h0: Array, h: Array, dh: Array, du: Array, carried: Array, start: int, stop: int
) -> None:
    """As `trnn_backward`."""
    one = gates.dtype.type(1)
    for t in range(len(h) - 1, -1, -1):
        for b in range(start, stop):
            f, z, o, of_h = gates[t, b, 0], gates[t, b, 1], gates[t, b, 2], carried[b]
            add(of_h, dh[t % len(dh), b])
            old = before(h0, h, t)[b]
            for n in range(len(f)):
                du[t, b, 0, n] = of_h[n] * old[n] * f[n] * (one - f[n])
            for n in range(len(f)):
                du[t, b, 1, n] = of_h[n] * o[n]
            for n in range(len(f)):
                du[t, b, 2, n] = of_h[n] * z[n] * (one - o[n] * o[n])
            for n in range(len(f)):
                of_h[n] *= f[n]


@jit
def _combine(a: Array, old: Array, b: Array, new: Array) -> None:
    for n in range(len(new)):
        new[n] = a[n] * old[n] + b[n]


@jit
def couple(f: Array, z: Array, old: Array, new: Array) -> None:
    """``new = f old + (1-f) z`` for one row, where at first ``f`` is the pre-activation."""
    one = f.dtype.type(1)
    sigmoid_over(f)
    for n in range(len(f)):
        new[n] = f[n] * old[n] + (one - f[n]) * z[n]


@jit
def couple_backward(f: Array, z: Array, old: Array, du_f: Array, dz: Array, of_new: Array) -> None:
    """Back through `couple`; the gradient of the new state becomes that of the old."""
    one = f.dtype.type(1)
    for n in range(len(f)):
        du_f[n] = of_new[n] * (old[n] - z[n]) * f[n] * (one - f[n])
    for n in range(len(f)):
        dz[n] = of_new[n] * (one - f[n])
    for n in range(len(f)):
        of_new[n] *= f[n]


@jit
def add(total: Array, term: Array) -> None:
    for n in range(len(total)):
        total[n] += term[n]
