"""Compiled steps of `MemoryKernel`.

An inner loop writes to one row, and reads no other row of that array. LLVM vectorises loops with a check that what is
written does not overlap what is read, but makes it once, before the loop over the batch, for all rows that are met:
rows of one array by turns would fail it, and the loop run one number at a time.
"""

from __future__ import annotations

from isornn.nn.kernels.arithmetic import Array, before, compiled, sigmoid_over, tanh, tanh_over
from isornn.nn.kernels.lstm import MemorySteps


def _forward(gates: Array, c0: Array, c: Array, y: Array, t: int) -> None:
    old = before(c0, c, t)
    for b in range(len(old)):
        i, f, g, o = gates[t, b, 0], gates[t, b, 1], gates[t, b, 2], gates[t, b, 3]
        sigmoid_over(i)
        sigmoid_over(f)
        tanh_over(g)
        sigmoid_over(o)
        for n in range(len(i)):
            c[t, b, n] = f[n] * old[b, n] + i[n] * g[n]
        for n in range(len(i)):
            y[t, b, n] = o[n] * tanh(c[t, b, n])


def _backward(
    gates: Array, c0: Array, c: Array, dc: Array, dy: Array, carried_c: Array, carried_y: Array, du: Array, t: int
) -> None:
    one = gates.dtype.type(1)
    old = before(c0, c, t)
    for b in range(len(old)):
        i, f, g, o = gates[t, b, 0], gates[t, b, 1], gates[t, b, 2], gates[t, b, 3]
        du_i, du_f, du_g, du_o = du[t, b, 0], du[t, b, 1], du[t, b, 2], du[t, b, 3]
        of_c, of_y, direct_c, direct_y = carried_c[b], carried_y[b], dc[t % len(dc), b], dy[t % len(dy), b]
        tanh_c = du_o  # until du_o itself is known
        for n in range(len(i)):
            tanh_c[n] = tanh(c[t, b, n])
        for n in range(len(i)):
            of_y[n] += direct_y[n]
        for n in range(len(i)):
            of_c[n] += direct_c[n] + of_y[n] * o[n] * (one - tanh_c[n] * tanh_c[n])
        for n in range(len(i)):
            du_i[n] = of_c[n] * g[n] * i[n] * (one - i[n])
        for n in range(len(i)):
            du_f[n] = of_c[n] * old[b, n] * f[n] * (one - f[n])
        for n in range(len(i)):
            du_g[n] = of_c[n] * i[n] * (one - g[n] * g[n])
        for n in range(len(i)):
            du_o[n] = of_y[n] * tanh_c[n] * o[n] * (one - o[n])
        for n in range(len(i)):
            of_c[n] *= f[n]
        of_y[:] = 0


COMPILED = MemorySteps(compiled(_forward), compiled(_backward))
