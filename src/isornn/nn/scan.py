"""The linear recurrence ``h_t = a_t h_(t-1) + b_t``, on its own, for models whose recurrence is this alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from isornn.nn.kernels.device import runs_triton, scan_on_device


def linear_scan(a: Tensor, b: Tensor, initial: Tensor | None = None, *, dim: int = 0, reverse: bool = False) -> Tensor:
    """``h_t = a_t h_(t-1) + b_t`` for t = 1, ..., T, elementwise; ``h_0`` is ``initial``.

    Differentiable any number of times, backward and forward, and through ``torch.func``. One compiled pass over the
    sequence on a CPU and, where Triton is installed, on a CUDA device; elsewhere about log2 T torch operations
    (`scan_by_doubling`, whose note on range applies). float16 and bfloat16 are computed in float32 and rounded once.

    Args:
        a, b: real floating point, of shapes that broadcast to (T, ...), time at ``dim``. T may be 0.
        initial: h_0, of a shape that broadcasts to that of one step, which is (...), without time; 0 if not given.
        dim: where time is in the broadcast shape.
        reverse: ``h_t = a_t h_(t+1) + b_t`` for t = T, ..., 1 instead; ``initial`` is then h_(T+1).

    Returns:
        The h_t, of the broadcast shape and promoted dtype.

    Raises:
        TypeError: a dtype is not a real floating point one.
        ValueError: shapes do not broadcast, devices differ, or there is no dimension ``dim``.

    >>> linear_scan(torch.tensor([0.5, 0.5, 0.0]), torch.ones(3), torch.tensor(4.0))
    tensor([3.0000, 2.5000, 1.0000])
    >>> linear_scan(torch.tensor(1.0), torch.ones(2, 3), dim=1, reverse=True)
    tensor([[3., 2., 1.],
            [3., 2., 1.]])
    """
    given = {"a": a, "b": b} | ({} if initial is None else {"initial": initial})
    for name, tensor in given.items():
        if not tensor.is_floating_point():
            raise TypeError(f"{name}: dtype {tensor.dtype} is not allowed; it must be a real floating point one")
        if tensor.device != b.device:
            raise ValueError(f"{name}: device {tensor.device} is not allowed; b is on {b.device}")
    dtype = _promoted(*given.values())
    a, b = _broadcast(a, b)
    if not -b.dim() <= dim < b.dim():
        raise ValueError(f"dim: {dim} is not allowed; a and b broadcast to shape {tuple(b.shape)}")
    a, b = a.movedim(dim, 0), b.movedim(dim, 0)
    initial = _expanded(initial, b)
    at_least_single = torch.promote_types(dtype, torch.float32)
    h = _scan(a.to(at_least_single), b.to(at_least_single), initial.to(at_least_single), reverse)
    return h.to(dtype).movedim(0, dim)


def _promoted(first: Tensor, *others: Tensor) -> torch.dtype:
    dtype = first.dtype
    for other in others:
        dtype = torch.promote_types(dtype, other.dtype)
    return dtype


def _broadcast(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    try:
        shape = torch.broadcast_shapes(a.shape, b.shape)
    except RuntimeError:
        raise ValueError(
            f"b: shape {tuple(b.shape)} is not allowed; it must broadcast with a's, {tuple(a.shape)}"
        ) from None
    return a.expand(shape), b.expand(shape)


def _expanded(initial: Tensor | None, b: Tensor) -> Tensor:
    """``initial`` in the shape of one step of ``b``, (T, ...)."""
    if initial is None:
        return b.new_zeros(b.shape[1:])
    try:
        return initial.expand(b.shape[1:])
    except RuntimeError:
        allowed = f"it must broadcast to one step's, {tuple(b.shape[1:])}"
        raise ValueError(f"initial: shape {tuple(initial.shape)} is not allowed; {allowed}") from None


def _scan(a: Tensor, b: Tensor, initial: Tensor, reverse: bool) -> Tensor:
    """`linear_scan` with time first, and all shapes and dtypes equal."""
    if len(b) == 0:
        return a * initial + b
    function = _LinearScan if torch.compiler.is_compiling() else _LinearScanWithTangents
    h: Tensor = function.apply(a, b, initial, reverse)
    return h


class _LinearScan(torch.autograd.Function):
    """Its derivatives are scans again, so they are as differentiable as it is."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, initial: Tensor, reverse: bool) -> Tensor:
        if b.device.type == "cpu":
            return _looped(a, b, initial, reverse)
        return scan_on_device(a, b, initial, reverse=reverse)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, bool], output: Tensor) -> None:
        a, _, initial, ctx.reverse = inputs
        ctx.save_for_backward(a, initial, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """``d_t = grad_t + a_(t+1) d_(t+1)`` is the gradient of b_t; that of a_t is ``d_t h_(t-1)``."""
        a, initial, h = ctx.saved_tensors
        if runs_triton(h.device) and _only_numbers(h, grad):
            from isornn.nn.kernels import scan_triton

            return *scan_triton.scan_backward(a, initial, h, grad, ctx.reverse), None
        nothing = torch.zeros_like(initial)
        total = _scan(_shifted(a, nothing, not ctx.reverse), grad, nothing, not ctx.reverse)
        first = -1 if ctx.reverse else 0
        return total * _shifted(h, initial, ctx.reverse), total, a[first] * total[first], None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor, initial: Tensor, reverse: bool
    ) -> tuple[Tensor, int]:
        """The mapped axis is one more elementwise one."""
        size = info.batch_size
        a, b = (_mapped_to(1, value, axis, size) for value, axis in zip((a, b), in_dims[:2], strict=True))
        return _scan(a, b, _mapped_to(0, initial, in_dims[2], size), reverse), 1


class _LinearScanWithTangents(_LinearScan):
    """With forward derivatives also, which torch.compile refuses to trace."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, bool], output: Tensor) -> None:
        _LinearScan.setup_context(ctx, inputs, output)
        a, _, initial, _ = inputs
        ctx.save_for_forward(a, initial, output)

    @staticmethod
    def jvp(ctx: Any, a_tangent: Tensor, b_tangent: Tensor, initial_tangent: Tensor, _: None) -> Tensor:
        """``dh_t = a_t dh_(t-1) + (da_t h_(t-1) + db_t)``."""
        a, initial, h = ctx.saved_tensors
        added = a_tangent * _shifted(h, initial, ctx.reverse) + b_tangent
        return _scan(a, added, initial_tangent, ctx.reverse)


@torch.library.custom_op("isornn::linear_scan", mutates_args=())
def _looped(a: Tensor, b: Tensor, initial: Tensor, reverse: bool) -> Tensor:
    # An operation, so that torch.compile takes the loop as a whole.
    from isornn.nn.kernels.diagonal import linear_scan

    return linear_scan(a, b, initial, reverse)


@_looped.register_fake
def _(a: Tensor, b: Tensor, initial: Tensor, reverse: bool) -> Tensor:
    return b.new_empty(b.shape)


def _only_numbers(h: Tensor, grad: Tensor) -> bool:
    """Whether gradients are all that is asked for: no derivative of them, and no transform or compiler at work."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        return False
    return all(forward_ad.unpack_dual(tensor).tangent is None for tensor in (h, grad))


def _shifted(sequence: Tensor, first: Tensor, reverse: bool) -> Tensor:
    """At t the value of the step before, ``first`` at the first."""
    parts = [sequence[1:], first[None]] if reverse else [first[None], sequence[:-1]]
    return torch.cat(parts)


def _mapped_to(place: int, value: Tensor, axis: int | None, size: int) -> Tensor:
    if axis is not None:
        return value.movedim(axis, place)
    return value.unsqueeze(place).expand(*value.shape[:place], size, *value.shape[place:])
