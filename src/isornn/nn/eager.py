"""Custom operations called as plain functions where no compiler, tracer, mode or tensor subclass is active.

`torch.library`'s way takes 1.7 s at the first call, for it loads torch.compile's front end, and 0.2 ms at each.
It also lets the user change outputs in place, which torch refuses where the derivative needs them: what is saved has a
version of its own, and the derivative learns whether it is stale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isornn.nn.recording import recording


def eager(
    operation: Callable[..., list[Tensor]],
    compute: Callable[..., list[Tensor]],
    setup_context: Callable[[Any, tuple[Any, ...], list[Tensor]], None],
    backward: Callable[[Any, list[Tensor | None]], tuple[Any, ...]],
) -> Callable[..., Sequence[Tensor]]:
    """The operation, with ``compute`` and its derivative called directly where the result is the same.

    Args:
        operation: the custom operation; it takes positional arguments, some of them lists.
        compute: what it does.
        setup_context, backward: as `torch.library.register_autograd` takes them; ``backward`` finds ``ctx.stale``,
            whether an output was changed in place since.
    """

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, sizes: tuple[int | None, ...], *flat: Any) -> tuple[Tensor, ...]:
            arguments = _nested(flat, sizes)
            output = compute(*arguments)
            ctx.sizes = sizes
            ctx.versions = [(witness, witness._version) for witness in map(_witness, output)]
            setup_context(ctx, arguments, [value.data for value in output])
            return tuple(output)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
            found: list[Any] = [None]
            ctx.stale = any(witness._version != version for witness, version in ctx.versions)
            for gradient, size in zip(backward(ctx, list(grads)), ctx.sizes, strict=True):
                found += [gradient] if size is None else [None] * size if gradient is None else gradient
            return tuple(found)

    def call(*arguments: Any) -> Sequence[Tensor]:
        flat, sizes = _flat(arguments)
        if not _nobody_looks(flat):
            return operation(*arguments)
        if not torch.is_grad_enabled():
            return compute(*arguments)
        return Direct.apply(sizes, *flat)

    return call


def _witness(tensor: Tensor) -> Tensor:
    """A tensor without data whose version counts the changes of ``tensor`` in place, and which keeps no memory."""
    witness = tensor.detach()
    witness.data = tensor.new_empty(0)
    return witness


def _flat(arguments: tuple[Any, ...]) -> tuple[list[Any], tuple[int | None, ...]]:
    """The arguments with their lists opened, and by argument the length of its list; ``None`` where it is none."""
    flat: list[Any] = []
    for value in arguments:
        flat += value if isinstance(value, list) else [value]
    return flat, tuple(len(value) if isinstance(value, list) else None for value in arguments)


def _nested(flat: Sequence[Any], sizes: tuple[int | None, ...]) -> tuple[Any, ...]:
    ordered = iter(flat)
    return tuple(next(ordered) if size is None else [next(ordered) for _ in range(size)] for size in sizes)


def _nobody_looks(flat: Sequence[Any]) -> bool:
    if recording() or torch._C._len_torch_dispatch_stack() > 0:
        return False
    tensors = [value for value in flat if isinstance(value, Tensor)]
    return all(type(value) in (Tensor, nn.Parameter) and value.device.type != "meta" for value in tensors)
