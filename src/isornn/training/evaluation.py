"""Losses and metrics of a model: cross entropy and accuracy for classes, mean squared error for values."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from isornn.tasks import NO_TARGET

Batch = tuple[Tensor, ...]

_LOG_LARGEST = math.log(sys.float_info.max)


def task_loss(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Cross entropy in nats where the target holds classes, squared error where it holds values.

    Args:
        output: (..., classes) or (..., values).
        target: (...) of classes, of which `NO_TARGET` is left out, or as ``output``.
        reduction: ``"mean"`` over all targets, or their ``"sum"``.

    >>> round(task_loss(torch.zeros(5, 2, 10), torch.full((5, 2), 3)).item(), 5) == round(math.log(10), 5)
    True
    """
    if target.is_floating_point():
        return functional.mse_loss(output, target.to(output.dtype), reduction=reduction)
    return functional.cross_entropy(
        output.flatten(0, -2), target.flatten(), ignore_index=NO_TARGET, reduction=reduction
    )


@torch.no_grad()
def evaluate(
    model: nn.Module, batches: Iterable[Batch], forward: Callable[..., Tensor] | None = None
) -> dict[str, float]:
    """``loss``, the mean over all targets of all ``batches``, and for classes ``accuracy``; with an answer for every
    step also ``bits``, loss / ln 2, which is per symbol, and ``perplexity``, exp(loss), where it is a number.

    Args:
        model: all of its modules are left in the modes that they were in.
        batches: of (x, y) or (x, y, lengths).
        forward: what is called in the model's place, if something wraps it.

    Raises:
        ValueError: no batch, or none with a target.

    >>> evaluate(nn.Identity(), [(torch.eye(2), torch.tensor([0, 0]))])["accuracy"]
    0.5
    """
    forward = model if forward is None else forward
    loss, right, count, classes, steps = 0.0, 0, 0, False, False
    with _in_eval_mode(model):
        for x, target, *lengths in batches:
            output = forward(x, *lengths)
            loss += float(task_loss(output, target, "sum"))
            if target.is_floating_point():
                count += target.numel()
            else:
                classes, steps = True, target.dim() > 1
                count += int((target != NO_TARGET).sum())
                right += int((output.argmax(-1) == target).sum())
    if count == 0:
        raise ValueError("batches: there is no target in them, and a mean needs one")
    mean = loss / count
    metrics = {"loss": mean}
    if classes:
        metrics["accuracy"] = right / count
    if steps:
        metrics["bits"] = mean / math.log(2)
        if mean < _LOG_LARGEST:
            metrics["perplexity"] = math.exp(mean)
    return metrics


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training
