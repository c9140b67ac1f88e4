"""Compiled diagonal recurrences: numba's loops over time for the strongly typed cells and for a linear scan.

Imported where a sequence is first run, not with the package: importing numba takes a good part of a second.

Every loop takes the rows (the scan: the columns) it works on, so that threads may share one call. A loop over units
writes to one or two rows only: with more, LLVM gives up proving that they do not overlap, and does not vectorise.

Here *gates* are the drive after its activations, (T, B, K, N).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numba
import torch
from torch import Tensor

_Loop = Callable[..., None]

# Fewer numbers than this are done before another thread has started.
_WORTH_A_THREAD = 1 << 16


def _compiled(loop: _Loop) -> _Loop:
    """njit, for a type checker that numba leaves without types."""
    compiled: _Loop = numba.njit(cache=True, nogil=True)(loop)
    return compiled


def shared(loop: _Loop, *arguments: Tensor | bool | None, over: int) -> None:
    """``loop(*arguments, start, stop)`` over ``range(over)``, in parts on as many threads as torch may use.

    The threads are not numba's: its pool ends the process where two Python threads call it at once.
    """
    tensors = [value for value in arguments if isinstance(value, Tensor)]
    work = max(tensor.numel() for tensor in tensors)
    parts = max(1, min(torch.get_num_threads(), over, work // _WORTH_A_THREAD))
    here, *elsewhere = pairwise(over * part // parts for part in range(parts + 1))
    arrays = [value.numpy(force=True) if isinstance(value, Tensor) else value for value in arguments]
    threads = [threading.Thread(target=loop, args=(*arrays, *bounds)) for bounds in elsewhere]
    for thread in threads:
        thread.start()
    loop(*arrays, *here)
    for thread in threads:
        thread.join()


def linear_scan(a: Tensor, b: Tensor, initial: Tensor, reverse: bool) -> Tensor:
    """``h_t = a_t h_(t-1) + b_t``, all of shape (T, ...) and of one dtype; in reverse from ``h_(t+1)``."""
    h = b.new_empty(len(b), initial.numel())
    flat = [tensor.reshape(h.shape).contiguous() for tensor in (a, b)]
    shared(scan, *flat, initial.reshape(-1).contiguous(), h, reverse, over=h.shape[1])
    return h.view(b.shape)


@_compiled
def scan(a: Any, b: Any, initial: Any, h: Any, reverse: bool, start: int, stop: int) -> None:
    """``h_t = a_t h_(t-1) + b_t``, (T, M) each, for columns start to stop; in reverse from ``h_(t+1)``."""
    steps = len(h)
    for i in range(steps):
        t = steps - 1 - i if reverse else i
        previous = initial if i == 0 else h[t + 1] if reverse else h[t - 1]
        for m in range(start, stop):
            h[t, m] = a[t, m] * previous[m] + b[t, m]


@_compiled
def trnn(gates: Any, initial: Any, h: Any, start: int, stop: int) -> None:
    """``h = f h + (1-f) z`` for rows start to stop."""
    one = gates.dtype.type(1)
    for t in range(len(h)):
        for row in range(start, stop):
            f, z = gates[t, row, 0], gates[t, row, 1]
            previous, new = initial[row] if t == 0 else h[t - 1, row], h[t, row]
            for n in range(len(new)):
                new[n] = f[n] * previous[n] + (one - f[n]) * z[n]


@_compiled
def tlstm(gates: Any, initial: Any, c: Any, out: Any, start: int, stop: int) -> None:
    """``c = f c + (1-f) z`` and ``out = c o`` for rows start to stop."""
    one = gates.dtype.type(1)
    for t in range(len(c)):
        for row in range(start, stop):
            f, z, o = gates[t, row, 0], gates[t, row, 1], gates[t, row, 2]
            previous, new = initial[row] if t == 0 else c[t - 1, row], c[t, row]
            for n in range(len(new)):
                new[n] = f[n] * previous[n] + (one - f[n]) * z[n]
            for n in range(len(new)):
                out[t, row, n] = new[n] * o[n]


@_compiled
def tgru(gates: Any, initial: Any, h: Any, start: int, stop: int) -> None:
    """``h = f h + z o`` for rows start to stop."""
    for t in range(len(h)):
        for row in range(start, stop):
            f, z, o = gates[t, row, 0], gates[t, row, 1], gates[t, row, 2]
            previous, new = initial[row] if t == 0 else h[t - 1, row], h[t, row]
            for n in range(len(new)):
                new[n] = f[n] * previous[n] + z[n] * o[n]


@_compiled
def trnn_backward(
    gates: Any, initial: Any, h: Any, grad_h: Any, grad_drive: Any, carry: Any, start: int, stop: int
) -> None:
    """Gradients of the drive; ``carry``, 0 at first, ends as that of the initial state."""
    for t in range(len(h) - 1, -1, -1):
        for row in range(start, stop):
            _add(carry[row], grad_h[t, row])
            previous = initial[row] if t == 0 else h[t - 1, row]
            _coupled_backward(gates[t, row], previous, grad_drive[t, row], carry[row])


@_compiled
def tlstm_backward(
    gates: Any,
    initial: Any,
    c: Any,
    grad_c: Any,
    grad_out: Any,
    grad_drive: Any,
    carry: Any,
    start: int,
    stop: int,
) -> None:
    """As ``trnn_backward``; either of the results' gradients may be ``None``."""
    for t in range(len(c) - 1, -1, -1):
        for row in range(start, stop):
            if grad_c is not None:
                _add(carry[row], grad_c[t, row])
            if grad_out is not None:
                _output_backward(gates[t, row, 2], c[t, row], grad_out[t, row], grad_drive[t, row, 2], carry[row])
            else:
                grad_drive[t, row, 2] = 0
            previous = initial[row] if t == 0 else c[t - 1, row]
            _coupled_backward(gates[t, row], previous, grad_drive[t, row], carry[row])


@_compiled
def tgru_backward(
    gates: Any, initial: Any, h: Any, grad_h: Any, grad_drive: Any, carry: Any, start: int, stop: int
) -> None:
    """As ``trnn_backward``."""
    one = gates.dtype.type(1)
    for t in range(len(h) - 1, -1, -1):
        for row in range(start, stop):
            grad = carry[row]
            _add(grad, grad_h[t, row])
            f, z, o = gates[t, row, 0], gates[t, row, 1], gates[t, row, 2]
            previous = initial[row] if t == 0 else h[t - 1, row]
            grad_f, grad_z, grad_o = grad_drive[t, row, 0], grad_drive[t, row, 1], grad_drive[t, row, 2]
            for n in range(len(grad)):
                grad_f[n] = grad[n] * previous[n] * f[n] * (one - f[n])
            for n in range(len(grad)):
                grad_o[n] = grad[n] * z[n] * (one - o[n] * o[n])
            for n in range(len(grad)):
                grad_z[n] = grad[n] * o[n]
                grad[n] *= f[n]


@_compiled
def _add(total: Any, term: Any) -> None:
    for n in range(len(total)):
        total[n] += term[n]


@_compiled
def _coupled_backward(gates: Any, previous: Any, grad_drive: Any, grad: Any) -> None:
    """Back through ``f previous + (1-f) z`` for one row; ``grad`` becomes that of ``previous``."""
    one = gates.dtype.type(1)
    f, z = gates[0], gates[1]
    grad_f, grad_z = grad_drive[0], grad_drive[1]
    for n in range(len(grad)):
        grad_f[n] = grad[n] * (previous[n] - z[n]) * f[n] * (one - f[n])
    for n in range(len(grad)):
        grad_z[n] = grad[n] * (one - f[n])
        grad[n] *= f[n]


@_compiled
def _output_backward(o: Any, c: Any, grad_out: Any, grad_o: Any, grad_c: Any) -> None:
    """Back through ``c o`` for one row; adds to ``grad_c``."""
    one = o.dtype.type(1)
    for n in range(len(o)):
        grad_o[n] = grad_out[n] * c[n] * (one - o[n] * o[n])
    for n in range(len(o)):
        grad_c[n] += grad_out[n] * o[n]
