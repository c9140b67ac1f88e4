"""The LSTM, GRU and tanh or ReLU network with torch's equations, on a CUDA device: by cuDNN, as torch.nn calls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from isornn.cells import Cell
from isornn.nn.autocast import without_autocast
from isornn.nn.derivatives import fresh_views, gradients
from isornn.nn.layout import Layout
from isornn.nn.recording import recording
from isornn.nn.stepped import Weights, stepped

_MOST_STEPS = 65_535  # in one call; cuDNN fails beyond
_OF_WEIGHTS = ("matrix", "bias", "recurrent", "offset", "projection")


def runs_cudnn(mode: str | None, inputs: Tensor, weights: Weights, lengths: Tensor | None) -> bool:
    """Whether cuDNN computes this; for sequences of unequal length it does not return the last c."""
    if not _acceptable(inputs) or recording():
        return False
    if mode is None or not weights.tied or not inputs.shape[1] or torch._C._are_functorch_transforms_active():
        return False
    return lengths is None and (weights.projection is None or mode == "LSTM")


def _acceptable(inputs: Tensor) -> bool:
    return inputs.is_cuda and torch.backends.cudnn.is_acceptable(inputs)


def recurrence_by_cudnn(
    cell: Cell, inputs: Tensor, weights: Weights, initial: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Outputs (T, B, N) and last states (B, N), differentiable any number of times; N is P where it is projected."""
    given = [inputs, *(getattr(weights, name) for name in _OF_WEIGHTS), *initial]
    out, *last = _Recurrence.apply(cell, Layout.of(cell).mode, *given)
    return out, tuple(last)


class _Recurrence(torch.autograd.Function):
    """torch's recurrence with its own derivative; second ones go through the cell's steps, since cuDNN has none."""

    @staticmethod
    def forward(ctx: Any, cell: Cell, mode: str, *given: Tensor | None) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.cell = cell
        inputs, matrix, bias, recurrent, offset, projection, *initial = given
        assert inputs is not None
        wanted = any(ctx.needs_input_grad)
        ctx.leaves = leaves = [value.detach() for value in (inputs, *initial) if value is not None]
        ctx.flat = flat = _flat(matrix, bias, recurrent, offset, projection)
        for value in (*leaves, *flat):
            value.requires_grad_(wanted)
        with torch.set_grad_enabled(wanted), without_autocast(inputs.device.type):
            ctx.results = _run(mode.lower(), leaves[0], flat, leaves[1:], wanted)
        ctx.save_for_backward(*given)
        return tuple(value.detach() for value in ctx.results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(grad is None for grad in grads):
            return (None,) * len(ctx.needs_input_grad)
        further = torch.is_grad_enabled() or torch._C._are_functorch_transforms_active()
        if further or ctx.results is None:  # freed: torch says so where what was saved is asked for
            return None, None, *_differentiated_by_steps(ctx.cell, ctx.saved_tensors, grads)
        pairs = [(value, grad) for value, grad in zip(ctx.results, grads, strict=True) if grad is not None]
        results, arriving = zip(*pairs, strict=True)
        found = torch.autograd.grad(results, [*ctx.leaves, *ctx.flat], arriving, retain_graph=True, allow_unused=True)
        of_inputs, *of_initial = found[: len(ctx.leaves)]
        of_weights = _of_weights(ctx.cell, found[len(ctx.leaves) :], ctx.needs_input_grad[3:])
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.leaves = ctx.flat = ctx.results = None
        return None, None, of_inputs, *of_weights, *of_initial


def _flat(matrix: Any, bias: Any, recurrent: Any, offset: Any, projection: Any) -> list[Tensor]:
    """The weights as torch has them, a copy, in one piece of memory in cuDNN's order, which then needs no other.

    Biases that are missing are zeros: cuDNN's memory has a place for them.
    """
    rows = len(recurrent)
    bias = recurrent.new_zeros(rows) if bias is None else bias
    own = [] if offset is None else [offset]
    missing = recurrent.new_zeros(rows - sum(map(len, own)))
    matrices = [matrix, recurrent, *([] if projection is None else [projection])]
    whole = torch.cat([value.detach().flatten() for value in (*matrices, bias, missing, *own)])
    *parts, of_biases = whole.split([*(value.numel() for value in matrices), 2 * rows])
    inputs, states, *projected = [part.view(value.shape) for part, value in zip(parts, matrices, strict=True)]
    return [inputs, states, *of_biases.split(rows), *projected]


def _of_weights(cell: Cell, of_flat: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
    """Gradients of matrix, bias, recurrent, offset and projection from those of `_flat`."""
    of_matrix, of_recurrent, of_bias, of_second, *rest = of_flat
    (of_projection,) = rest or (None,)
    of_offset, undriven = None, len(Layout.of(cell).undriven)
    if undriven and of_second is not None:
        of_offset = of_second[-undriven * (len(of_second) // len(Layout.of(cell).stacks["bias_hh"])) :]
    found = [of_matrix, of_bias, of_recurrent, of_offset, of_projection]
    return [value if asked else None for value, asked in zip(found, wanted, strict=False)]


def _run(mode: str, inputs: Tensor, flat: list[Tensor], initial: Sequence[Tensor], train: bool) -> tuple[Tensor, ...]:
    function: Any = getattr(torch._VF, mode)
    state: Any = [value.unsqueeze(0).contiguous() for value in initial]
    outputs = []
    for part in inputs.split(_MOST_STEPS):
        hidden = state if mode == "lstm" else state[0]
        out, *state = function(part, hidden, flat, True, 1, 0.0, train, False, False)
        outputs.append(out)
    whole = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return whole, *(value.squeeze(0) for value in state)


def _differentiated_by_steps(
    cell: Cell, given: Sequence[Tensor | None], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    with torch.enable_grad():
        inputs, matrix, bias, recurrent, offset, projection, *initial = fresh = fresh_views(given)
        weights = Weights(matrix, bias, recurrent, offset, projection, {})
        found = stepped(cell, Layout.of(cell), inputs, None, weights, initial)
        return gradients([found[0], *(value[-1] for value in found)], fresh, grads, True)
