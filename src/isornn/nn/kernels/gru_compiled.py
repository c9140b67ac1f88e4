"""Compiled steps of the gated recurrent units; of their inner loops what is said in ``lstm_compiled`` is true."""

from __future__ import annotations

from isornn.nn.kernels.arithmetic import Array, before, compiled, jit, sigmoid, sigmoid_over, tanh, tanh_over
from isornn.nn.kernels.gru_steps import ChoSteps, GRUSteps


@jit
def _mix(z: Array, old: Array, n: Array, h: Array) -> None:
    """``h = z old + (1-z) n``."""
    one = h.dtype.type(1)
    for k in range(len(h)):
        h[k] = z[k] * old[k] + (one - z[k]) * n[k]


@jit
def _mix_backward(z: Array, old: Array, n: Array, direct: Array, dh: Array, du_z: Array, du_n: Array) -> None:
    """Gradients of both pre-activations, where ``dh + direct`` is that of h; dh becomes that of ``old``."""
    one = dh.dtype.type(1)
    for k in range(len(dh)):
        dh[k] += direct[k]
    for k in range(len(dh)):
        du_z[k] = dh[k] * (old[k] - n[k]) * z[k] * (one - z[k])
    for k in range(len(dh)):
        du_n[k] = dh[k] * (one - z[k]) * (one - n[k] * n[k])
    for k in range(len(dh)):
        dh[k] *= z[k]


def _gru_forward(gates: Array, product: Array, offset: Array, h0: Array, h: Array, nh: Array, t: int) -> None:
    old = before(h0, h, t)
    for b in range(len(old)):
        r, z, n, u_nh = gates[t, b, 0], gates[t, b, 1], gates[t, b, 2], nh[t % len(nh), b]
        of_r, of_z, of_nh = product[b, 0], product[b, 1], product[b, 2]
        for k in range(len(r)):
            r[k] = sigmoid(r[k] + of_r[k])
        for k in range(len(r)):
            z[k] = sigmoid(z[k] + of_z[k])
        for k in range(len(r)):
            u_nh[k] = of_nh[k] + offset[k]
        for k in range(len(r)):
            of_nh[k] = r[k] * u_nh[k]
        for k in range(len(r)):
            n[k] = tanh(n[k] + of_nh[k])
        _mix(z, old[b], n, h[t, b])


def _gru_backward(
    gates: Array, nh: Array, h0: Array, h: Array, dh: Array, carried: Array, du: Array, du_nh: Array, t: int
) -> None:
    one = gates.dtype.type(1)
    old = before(h0, h, t)
    for b in range(len(old)):
        r, z, n = gates[t, b, 0], gates[t, b, 1], gates[t, b, 2]
        du_r, du_z, du_nx = du[t, b, 0], du[t, b, 1], du[t, b, 2]
        _mix_backward(z, old[b], n, dh[t % len(dh), b], carried[b], du_z, du_nx)
        for k in range(len(r)):
            du_nh[t, b, k] = du_nx[k] * r[k]
        for k in range(len(r)):
            du_r[k] = du_nh[t, b, k] * nh[t, b, k] * (one - r[k])


def _cho_gates(gates: Array, h0: Array, h: Array, reset: Array, t: int) -> None:
    old = before(h0, h, t)
    for b in range(len(old)):
        r = gates[t, b, 0]
        sigmoid_over(r)
        sigmoid_over(gates[t, b, 1])
        for k in range(len(r)):
            reset[b, k] = r[k] * old[b, k]


def _cho_update(gates: Array, h0: Array, h: Array, t: int) -> None:
    old = before(h0, h, t)
    for b in range(len(old)):
        n = gates[t, b, 2]
        tanh_over(n)
        _mix(gates[t, b, 1], old[b], n, h[t, b])


def _cho_update_backward(gates: Array, h0: Array, h: Array, dh: Array, carried: Array, du: Array, t: int) -> None:
    old = before(h0, h, t)
    for b in range(len(old)):
        z, n, du_z, du_n = gates[t, b, 1], gates[t, b, 2], du[t, b, 1], du[t, b, 2]
        _mix_backward(z, old[b], n, dh[t % len(dh), b], carried[b], du_z, du_n)


def _cho_gates_backward(gates: Array, h0: Array, h: Array, of_reset: Array, carried: Array, du: Array, t: int) -> None:
    one = gates.dtype.type(1)
    old = before(h0, h, t)
    for b in range(len(old)):
        r, du_r, row, of_old = gates[t, b, 0], du[t, b, 0], of_reset[b], carried[b]
        for k in range(len(r)):
            du_r[k] = row[k] * old[b, k] * r[k] * (one - r[k])
        for k in range(len(r)):
            of_old[k] += row[k] * r[k]


GRU_COMPILED = GRUSteps(compiled(_gru_forward), compiled(_gru_backward))
CHO_COMPILED = ChoSteps(
    compiled(_cho_gates), compiled(_cho_update), compiled(_cho_update_backward), compiled(_cho_gates_backward)
)
