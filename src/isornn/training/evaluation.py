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
        target: (...) of classes, of which `NO_TARGET` is left out, or as ``output``, of which NaN is.
        reduction: ``"mean"`` over all targets, or ``"none"``, of the target's shape, 0 where there is none.

    Raises:
        ValueError: values of another shape than the output's.

    >>> round(task_loss(torch.zeros(5, 2, 10), torch.full((5, 2), 3)).item(), 5) == round(math.log(10), 5)
    True
    """
    if target.is_floating_point():
        return _squared_error(output, target.to(output.dtype), reduction)
    loss = functional.cross_entropy(
        output.flatten(0, -2), target.flatten(), ignore_index=NO_TARGET, reduction=reduction
    )
    return loss.view_as(target) if reduction == "none" else loss


def _squared_error(output: Tensor, target: Tensor, reduction: str) -> Tensor:
    if output.shape != target.shape:  # torch would compare every value with every other
        raise ValueError(
            f"target: shape {tuple(target.shape)} is not allowed; values have the output's, {tuple(output.shape)}"
        )
    known = ~target.isnan()
    if reduction == "mean":
        return functional.mse_loss(output[known], target[known])
    return (output - target).where(known, 0.0).square()


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    forward: Callable[..., Tensor] | None = None,
    *,
    continued: bool = False,
) -> dict[str, float]:
    """``loss``, the mean over all targets of all ``batches``, and for classes ``accuracy``; with an answer for every
    step also ``bits``, loss / ln 2, which is per symbol, and ``perplexity``, exp(loss), where it is a number.

    Of two sequences or more also ``loss_error`` and so on, standard errors: how far off as many other sequences would
    be. Of a single continued one, as a text in one column, its batches count as sequences. Where all sequences are
    equally accurate the accuracy's counts two sequences more, one all right and one all wrong (Agresti & Coull 1998):
    that all of few are right does not make it exact.

    Args:
        model: all of its modules are left in the modes that they were in.
        batches: of (x, y) or (x, y, lengths), with outputs (B, .) or (T, B, .).
        forward: what is called in the model's place, if something wraps it.
        continued: whether sequence k of a batch goes on sequence k of the one before, and is the same.

    Raises:
        ValueError: no batch, or none with a target.

    >>> found = evaluate(nn.Identity(), [(torch.eye(2), torch.tensor([0, 0]))])
    >>> round(found["loss"], 4), round(found["loss_error"], 4)
    (0.8133, 0.5)
    >>> found["accuracy"], round(found["accuracy_error"], 4)
    (0.5, 0.5)
    """
    forward = model if forward is None else forward
    sums, classes, steps = list[Tensor](), False, False
    with _in_eval_mode(model):
        for x, target, *lengths in batches:
            sums.append(_by_sequence(forward(x, *lengths), target))
            classes = not target.is_floating_point()
            steps = classes and target.dim() > 1
    if not any(bool(own[-1].any()) for own in sums):
        raise ValueError("batches: there is no target in them, and a mean needs one")
    same = continued and sums[0].shape[1] > 1
    loss, right, count = torch.stack(sums).sum(0) if same else torch.cat(sums, 1)
    metrics = {"loss": float(loss.sum() / count.sum())}
    errors = {"loss": _standard_error(loss, count)}
    if classes:
        metrics["accuracy"] = float(right.sum() / count.sum())
        errors["accuracy"] = _standard_error(right, count) or _standard_error(*_with_extremes(right, count))
    if steps:
        metrics["bits"], errors["bits"] = metrics["loss"] / math.log(2), errors["loss"] / math.log(2)
        if metrics["loss"] < _LOG_LARGEST:
            metrics["perplexity"] = math.exp(metrics["loss"])
            errors["perplexity"] = metrics["perplexity"] * errors["loss"]
    known = int(count.count_nonzero()) > 1
    return metrics | {f"{name}_error": error for name, error in errors.items() if known and math.isfinite(error)}


def _by_sequence(output: Tensor, target: Tensor) -> Tensor:
    """(3, B): the sum of losses, how many answers are right, 0 of values, and how many targets there are."""
    loss = task_loss(output, target, "none")
    if target.is_floating_point():
        right, count = torch.zeros_like(loss), ~target.isnan()
    else:
        right, count = output.argmax(-1) == target, target != NO_TARGET
    each = torch.stack([part.double().cpu() for part in (loss, right, count)])
    if target.is_floating_point():
        each = each.sum(-1)
    return each if each.dim() == 2 else each.sum(1)


def _standard_error(sums: Tensor, counts: Tensor) -> float:
    """Of the ratio of two sums over sequences, linearised."""
    residuals = (sums - counts * (sums.sum() / counts.sum()))[counts > 0]
    return float((residuals.square().mean() / (len(residuals) - 1)).sqrt() / counts[counts > 0].mean())


def _with_extremes(right: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """With two sequences of the mean's number of targets, all right and all wrong."""
    usual = count[count > 0].mean()
    return torch.cat([right, torch.stack([usual, 0 * usual])]), torch.cat([count, usual.repeat(2)])


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training
