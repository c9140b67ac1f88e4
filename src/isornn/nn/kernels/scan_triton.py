"""The linear recurrence and its gradients in Triton: one pass over memory each.

A program is one warp and owns a few neighbouring channels (a channel is one place of what is not time). It walks over
time with their states in registers, so the numbers are the sequential loop's and no partial product of factors is
formed, which could overflow. What makes the walk fast is the memory in flight: `_ROWS` steps are unrolled, and while
they are computed those of the next `_STAGES` - 1 rounds are being copied into shared memory.

Against scanning tiles of time with ``tl.associative_scan``, compiled for an H100: half the instructions per number,
and three fifths of the registers in the backward pass, so that all programs are resident at once.

Checked by Triton's interpreter and compiled for an H100; not yet timed on any device.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 16
_STAGES = 4
_LINE = 128  # bytes that a device fetches at once: what a row of a program's channels takes, for coalesced access
_WARP = 32


@torch.library.custom_op("isornn::scan_triton", mutates_args=())
def scan(a: Tensor, b: Tensor, initial: Tensor, reverse: bool) -> Tensor:
    """``h_t = a_t h_(t-1) + b_t`` for T >= 1 steps, all (T, ...) and of one dtype; in reverse from ``h_(t+1)``.

    States are float64 where the dtype is, else float32.
    """
    h = torch.empty(b.shape, dtype=b.dtype, device=b.device)
    _launch(_scan, a, b, initial, h, reverse=reverse)
    return h


@scan.register_fake
def _(a: Tensor, b: Tensor, initial: Tensor, reverse: bool) -> Tensor:
    return torch.empty(b.shape, dtype=b.dtype, device=b.device)


def scan_backward(a: Tensor, initial: Tensor, h: Tensor, grad: Tensor, reverse: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a, b and initial from those of the h that `scan` found."""
    of_a, of_b = (torch.empty(h.shape, dtype=h.dtype, device=h.device) for _ in range(2))
    of_initial = torch.empty(initial.shape, dtype=h.dtype, device=h.device)
    _launch(_scan_backward, h, a, grad, initial, of_a, of_b, of_initial, reverse=reverse)
    return of_a, of_b, of_initial


def _launch(kernel: triton.JITFunction, first: Tensor, *others: Tensor, reverse: bool) -> None:
    """Run ``kernel`` over all channels of ``first``, (T, ...)."""
    steps, channels = len(first), first[0].numel()
    # Fewer than a warp's threads would stand idle; so would they where half precision took less than a line.
    block = max(_WARP, _LINE // first.element_size())
    with torch.cuda.device_of(first):
        kernel[(triton.cdiv(channels, block),)](
            first.contiguous(),
            *(tensor.contiguous() for tensor in others),
            steps,
            channels,
            REVERSE=reverse,
            BLOCK=block,
            ROWS=_ROWS,
            STAGES=_STAGES,
            num_warps=1,
        )


@triton.jit(do_not_specialize=["steps"])
def _scan(
    a,
    b,
    initial,
    h,
    steps,
    channels,
    REVERSE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """``h_t = a_t h_(t-1) + b_t``, (T, channels) each."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mine = channel < channels
    state = _read(initial + channel, mine)
    for i in tl.range(0, steps, num_stages=STAGES, loop_unroll_factor=ROWS):
        at = _row(steps - 1 - i if REVERSE else i, channels) + channel
        state = _read(a + at, mine) * state + _read(b + at, mine)
        tl.store(h + at, state, mask=mine)


@triton.jit(do_not_specialize=["steps"])
def _scan_backward(
    h,
    a,
    grad,
    initial,
    of_a,
    of_b,
    of_initial,
    steps,
    channels,
    REVERSE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """``of_b_t = grad_t + a_(t+1) of_b_(t+1)`` and ``of_a_t = of_b_t h_(t-1)``, three arrays read and two written."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mine = channel < channels
    start = _read(initial + channel, mine)
    carried = tl.zeros_like(start)
    for i in tl.range(0, steps - 1, num_stages=STAGES, loop_unroll_factor=ROWS):
        t = i if REVERSE else steps - 1 - i
        before = _read(h + _row(t + 1 if REVERSE else t - 1, channels) + channel, mine)
        carried = _step_back(a, grad, of_a, of_b, _row(t, channels) + channel, before, carried, mine)
    at = _row(steps - 1 if REVERSE else 0, channels) + channel
    tl.store(of_initial + channel, _step_back(a, grad, of_a, of_b, at, start, carried, mine), mask=mine)


@triton.jit
def _step_back(a, grad, of_a, of_b, at, before, carried, mine):
    """The gradient of the state ``before`` a step, from that ``carried`` to the one after it by later steps."""
    total = _read(grad + at, mine) + carried
    tl.store(of_b + at, total, mask=mine)
    tl.store(of_a + at, total * before, mask=mine)
    return _read(a + at, mine) * total


@triton.jit
def _read(at, mine):
    """In the precision to compute in."""
    value = tl.load(at, mask=mine, other=0)
    return value if value.dtype == tl.float64 else value.to(tl.float32)


@triton.jit
def _row(t, channels):
    """Where a step begins in memory, beyond the reach of 32 bits."""
    return tl.cast(t, tl.int64) * channels
