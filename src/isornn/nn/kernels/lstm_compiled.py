"""Compiled steps of `MemoryKernel`.

An inner loop writes to one row, and reads no other row of that array. LLVM vectorises loops with a check that what is
written does not overlap what is read, but makes it once, before the loop over the batch, for all rows that are met:
rows of one array by turns would fail it, and the loop run one number at a time.
"""

from __future__ import annotations

from isornn.nn.kernels.arithmetic import Array, before, compiled, jit, sigmoid_over, tanh, tanh_over
from isornn.nn.kernels.lstm_steps import MemorySteps


def _forward(gates: Array, c0: Array, c: Array, y: Array, t: int) -> None:
    old = before(c0, c, t)
    for b in range(len(old)):
        i, f, g, o = gates[t, b, 0], gates[t, b, 1], gates[t, b, 2], gates[t, b, 3]
        _remember(i, f, g, old[b], c[t, b])
        _show(o, c[t, b], y[t, b])


def _gers_forward(
    gates: Array, c0: Array, c: Array, y: Array, peep_i: Array, peep_f: Array, peep_o: Array, t: int
) -> None:
    old = before(c0, c, t)
    for b in range(len(old)):
        i, f, g, o = gates[t, b, 0], gates[t, b, 1], gates[t, b, 2], gates[t, b, 3]
        _add_product(i, peep_i, old[b])
        _add_product(f, peep_f, old[b])
        _remember(i, f, g, old[b], c[t, b])
        _add_product(o, peep_o, c[t, b])
        _show(o, c[t, b], y[t, b])


def _backward(
    gates: Array, c0: Array, c: Array, dc: Array, dy: Array, carried_c: Array, carried_y: Array, du: Array, t: int
) -> None:
    old = before(c0, c, t)
    for b in range(len(old)):
        i, f, g, o = gates[t, b, 0], gates[t, b, 1], gates[t, b, 2], gates[t, b, 3]
        du_i, du_f, du_g, du_o = du[t, b, 0], du[t, b, 1], du[t, b, 2], du[t, b, 3]
        of_c = carried_c[b]
        _show_backward(o, c[t, b], dc[t % len(dc), b], dy[t % len(dy), b], of_c, carried_y[b], du_o)
        _remember_backward(i, f, g, old[b], of_c, du_i, du_f, du_g)


def _gers_backward(
    gates: Array,
    c0: Array,
    c: Array,
    dc: Array,
    dy: Array,
    carried_c: Array,
    carried_y: Array,
    du: Array,
    peep_i: Array,
    peep_f: Array,
    peep_o: Array,
    of_peep_i: Array,
    of_peep_f: Array,
    of_peep_o: Array,
    t: int,
) -> None:
    old = before(c0, c, t)
    for b in range(len(old)):
        i, f, g, o = gates[t, b, 0], gates[t, b, 1], gates[t, b, 2], gates[t, b, 3]
        du_i, du_f, du_g, du_o = du[t, b, 0], du[t, b, 1], du[t, b, 2], du[t, b, 3]
        of_c = carried_c[b]
        _show_backward(o, c[t, b], dc[t % len(dc), b], dy[t % len(dy), b], of_c, carried_y[b], du_o)
        _add_product(of_c, peep_o, du_o)
        _add_product(of_peep_o[b], c[t, b], du_o)
        _remember_backward(i, f, g, old[b], of_c, du_i, du_f, du_g)
        _add_product(of_c, peep_i, du_i)
        _add_product(of_peep_i[b], old[b], du_i)
        _add_product(of_c, peep_f, du_f)
        _add_product(of_peep_f[b], old[b], du_f)


@jit
def _remember(i: Array, f: Array, g: Array, old: Array, c: Array) -> None:
    sigmoid_over(i)
    sigmoid_over(f)
    tanh_over(g)
    for n in range(len(c)):
        c[n] = f[n] * old[n] + i[n] * g[n]


@jit
def _show(o: Array, c: Array, y: Array) -> None:
    sigmoid_over(o)
    for n in range(len(y)):
        y[n] = o[n] * tanh(c[n])


@jit
def _show_backward(o: Array, c: Array, direct_c: Array, direct_y: Array, of_c: Array, of_y: Array, du_o: Array) -> None:
    """With the direct gradients added, that of y goes into those of c and u_o, and is 0 after."""
    one = c.dtype.type(1)
    tanh_c = du_o  # until du_o itself is known
    for n in range(len(c)):
        tanh_c[n] = tanh(c[n])
    for n in range(len(c)):
        of_y[n] += direct_y[n]
    for n in range(len(c)):
        of_c[n] += direct_c[n] + of_y[n] * o[n] * (one - tanh_c[n] * tanh_c[n])
    for n in range(len(c)):
        du_o[n] = of_y[n] * tanh_c[n] * o[n] * (one - o[n])
    of_y[:] = 0


@jit
def _remember_backward(
    i: Array, f: Array, g: Array, old: Array, of_c: Array, du_i: Array, du_f: Array, du_g: Array
) -> None:
    """Gradients of three pre-activations; that of c becomes that of ``old``."""
    one = of_c.dtype.type(1)
    for n in range(len(i)):
        du_i[n] = of_c[n] * g[n] * i[n] * (one - i[n])
    for n in range(len(i)):
        du_f[n] = of_c[n] * old[n] * f[n] * (one - f[n])
    for n in range(len(i)):
        du_g[n] = of_c[n] * i[n] * (one - g[n] * g[n])
    for n in range(len(i)):
        of_c[n] *= f[n]


@jit
def _add_product(total: Array, first: Array, second: Array) -> None:
    for n in range(len(total)):
        total[n] += first[n] * second[n]


MEMORY_COMPILED = MemorySteps(compiled(_forward), compiled(_backward))
GERS_COMPILED = MemorySteps(compiled(_gers_forward), compiled(_gers_backward))
