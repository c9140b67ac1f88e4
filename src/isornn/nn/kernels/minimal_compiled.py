"""Compiled steps of minimalRNN: the strongly typed cells' coupled update, one step a call."""

from __future__ import annotations

from isornn.nn.kernels.arithmetic import Array, before, compiled
from isornn.nn.kernels.diagonal import add, couple, couple_backward
from isornn.nn.kernels.minimal_steps import MinimalSteps


def _forward(f: Array, x: Array, h0: Array, h: Array, t: int) -> None:
    old = before(h0, h, t)
    for b in range(len(old)):
        couple(f[t, b], x[t, b], old[b], h[t, b])


def _backward(f: Array, x: Array, h0: Array, h: Array, dh: Array, carried: Array, du: Array, dx: Array, t: int) -> None:
    old = before(h0, h, t)
    for b in range(len(old)):
        add(carried[b], dh[t % len(dh), b])
        couple_backward(f[t, b], x[t, b], old[b], du[t, b], dx[t, b], carried[b])


MINIMAL_COMPILED = MinimalSteps(compiled(_forward), compiled(_backward))
