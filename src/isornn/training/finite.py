"""Which tensor was the first to become NaN or infinite."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torch import Tensor, nn
from torch.nn.utils import get_total_norm


class NonFiniteLoss(ArithmeticError):
    """Training cannot go on: a number became NaN or infinite. Says which tensor was the first, and at which update.

    Attributes:
        update: the number of the update, from 1.
        tensor: ``"batch"``, ``"output"``, ``"loss"``, ``"gradient of readout.weight"``, ``"parameter readout.weight"``.

    >>> print(NonFiniteLoss(12, "loss", "the loss is NaN"))
    update 12: the loss is NaN
    """

    def __init__(self, update: int, tensor: str, what: str) -> None:
        super().__init__(f"update {update}: {what}")
        self.update, self.tensor = update, tensor


def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The norm of all entries together, also where the squares of finite entries overflow.

    >>> import torch
    >>> gradient_norm([torch.full((4,), 1e25)])
    tensor(2.0000e+25)
    """
    norm = get_total_norm(gradients)
    if not norm.isinf():
        return norm
    largest = get_total_norm(gradients, math.inf)
    return largest * get_total_norm([gradient / largest for gradient in gradients]) if largest.isfinite() else norm


def check_before_step(update: int, model: nn.Module, batch: Tensor, output: Tensor, loss: Tensor, norm: Tensor) -> None:
    """Refuse a loss that is not finite, or gradients whose ``norm`` is not.

    Raises:
        NonFiniteLoss: names the first tensor in the order of computation; of gradients the last in the model, where the
            backward pass comes first.
    """
    if math.isfinite(loss.item()) and math.isfinite(norm.item()):
        return
    for name, tensor in _in_order(model, batch, output, loss):
        bad = int((~tensor.isfinite()).sum())
        if bad:
            what = f"the {name} is the first that is not finite, in {bad} of {tensor.numel()} entries"
            raise NonFiniteLoss(update, name, f"{what}; the loss is {loss.item():.6g}")
    what = f"the norm of the gradient is {norm.item()}, of entries that are finite"
    raise NonFiniteLoss(update, "norm of the gradient", what)


def check_after_step(update: int, model: nn.Module) -> None:
    """Refuse parameters that are not finite, as a step may leave them whose gradient was finite.

    Raises:
        NonFiniteLoss: names the first in the model.
    """
    if math.isfinite(get_total_norm(model.parameters()).item()):
        return
    for name, parameter in model.named_parameters():
        bad = int((~parameter.isfinite()).sum())
        if bad:
            what = f"the step made {bad} of {parameter.numel()} entries of the parameter {name} not finite"
            raise NonFiniteLoss(update, f"parameter {name}", f"{what}; its gradient was finite")


def _in_order(model: nn.Module, batch: Tensor, output: Tensor, loss: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "batch", batch
    yield "output", output
    yield "loss", loss
    for name, parameter in reversed(list(model.named_parameters())):
        if parameter.grad is not None:
            yield f"gradient of {name}", parameter.grad
