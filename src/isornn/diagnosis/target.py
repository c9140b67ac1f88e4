"""A function from the model's output to one number, from labels, values or the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional

Target = Callable[[Any], Tensor] | Tensor
_IGNORED = -100  # torch's ignore_index


def loss_of(target: Target) -> Callable[[Any], Tensor]:
    """A function from the model's output to one number.

    A callable is that function. Integer labels are compared by cross entropy, their shape that of the output without
    its last axis, the classes (or without its second, as torch has them); floating point values by mean squared error,
    their shape the output's. The output is the first tensor of what the model gives; of a mapping, its ``logits`` or
    its only tensor.

    Raises:
        ValueError: a target that is neither, not finite, or of which nothing is left; when the function is called,
            shapes that do not fit, an output without classes, or a label that is no class. -100 is left out, as in
            torch.

    >>> import torch
    >>> loss_of(torch.ones(2))(torch.zeros(2))
    tensor(1.)
    >>> round(float(loss_of(torch.tensor([0, 1]))(torch.zeros(2, 4))), 4)
    1.3863
    """
    if not isinstance(target, Tensor):
        if not callable(target):
            raise ValueError(
                f"target: {type(target).__name__} is not allowed; it must be a tensor or a function of the output"
            )
        return target
    broken = int((~target.isfinite()).sum())
    if broken:
        raise ValueError(
            f"target: {broken:,} of its {target.numel():,} numbers are NaN or infinite; allowed are finite ones, or a "
            f"function of the output that leaves out what is missing"
        )
    if not target.is_floating_point() and bool((target == _IGNORED).all()):
        raise ValueError(f"target: no label is left; {_IGNORED} leaves one out, as in torch")

    def loss(output: Any) -> Tensor:
        values = _first_tensor(output)
        if target.is_floating_point():
            if values.shape != target.shape:
                raise ValueError(_misfit(target, values, "the output's"))
            return functional.mse_loss(values, target)
        if values.shape in (target.shape, (*target.shape, 1)):
            raise ValueError(
                f"target: {str(target.dtype).removeprefix('torch.')} labels are classes, and the output "
                f"{tuple(values.shape)} has one number for each. Of logits give a function of the output, as one that "
                "computes binary_cross_entropy_with_logits; of values, give the target as floating point"
            )
        if values.shape[:-1] == target.shape:
            _check_labels(target, values.shape[-1])
            return functional.cross_entropy(values.reshape(-1, values.shape[-1]), target.reshape(-1).long())
        if values.dim() > 2 and (values.shape[0], *values.shape[2:]) == tuple(target.shape):
            _check_labels(target, values.shape[1])
            return functional.cross_entropy(values, target.long())
        raise ValueError(_misfit(target, values, "the output's without its axis of classes"))

    return loss


def _check_labels(target: Tensor, classes: int) -> None:
    """Before torch does, which names no argument, and on a CUDA device ends in an assertion of the device."""
    wrong = target[((target < 0) | (target >= classes)) & (target != _IGNORED)]
    if len(wrong):
        raise ValueError(
            f"target: label {int(wrong[0])} is not allowed; the output has {classes} classes, so labels are 0 to "
            f"{classes - 1}, or {_IGNORED} for what is left out"
        )


def _first_tensor(output: Any) -> Tensor:
    while isinstance(output, (tuple, list, Mapping)) and len(output) > 0:
        output = _entry(output) if isinstance(output, Mapping) else output[0]
    if not isinstance(output, Tensor):
        raise ValueError(
            f"target: the model gives {type(output).__name__}, so labels or values do not fit; give a function of it"
        )
    return output


def _entry(output: Mapping[Any, Any]) -> Any:
    tensors = [value for value in output.values() if isinstance(value, Tensor)]
    if "logits" not in output and len(tensors) != 1:
        names = ", ".join(map(str, output))
        raise ValueError(f"target: the model gives a mapping of {names}, and not logits; give a function of it")
    return output["logits"] if "logits" in output else tensors[0]


def _misfit(target: Tensor, values: Tensor, allowed: str) -> str:
    return (
        f"target: shape {tuple(target.shape)} does not fit the output's, {tuple(values.shape)}; it is {allowed}, or "
        f"give a function of the output"
    )
