"""Which tensor was the first to become NaN or infinite."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn.utils import get_total_norm


class NonFiniteLoss(ArithmeticError):
    """Training cannot go on: a number became NaN or infinite. Says which tensor was the first, and at which update.

    Args:
        update: the number of the update, from 1.
        tensor: ``"the loss"``, ``"the gradient of readout.weight"``, ``"the parameter readout.weight"``, ...
        what: how it is not finite, in words.
    """

    def __init__(self, update: int, tensor: str, what: str) -> None:
        super().__init__(f"update {update}: {tensor} is {what}")
        self.update, self.tensor = update, tensor


def check_finite_loss(update: int, loss: Tensor, **before: Tensor) -> None:
    """Refuse a loss that is not finite; ``before`` are the tensors that it comes from, the earliest first.

    Raises:
        NonFiniteLoss: names the loss, and what it comes from if that was not finite already.
    """
    value = loss.item()
    if math.isfinite(value):
        return
    for name, tensor in before.items():
        if not bool(tensor.isfinite().all()):
            raise NonFiniteLoss(update, "the loss", f"{value}; {_NAMES[name]} came first: {_share(tensor)}")
    raise NonFiniteLoss(update, "the loss", f"{value}; the model's input and output were finite")


def check_finite_gradients(update: int, norm: Tensor, model: nn.Module) -> None:
    """Refuse a gradient whose ``norm`` is not finite.

    Raises:
        NonFiniteLoss: names the parameter; of several the last in the model, where the backward pass comes first.
    """
    if math.isfinite(norm.item()):
        return
    for name, parameter in reversed(list(model.named_parameters())):
        if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
            raise NonFiniteLoss(update, f"the gradient of {name}", f"not finite: {_share(parameter.grad)}")
    raise NonFiniteLoss(update, "the norm of the gradient", f"{norm.item()}; its entries are finite but too large")


def check_finite_parameters(update: int, model: nn.Module) -> None:
    """Refuse parameters that are not finite, as an update may leave them whose gradient was finite.

    Raises:
        NonFiniteLoss: names the first in the model.
    """
    if math.isfinite(get_total_norm(model.parameters()).item()):
        return
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise NonFiniteLoss(update, f"the parameter {name}", f"not finite after the step: {_share(parameter)}")


_NAMES = {"x": "the batch", "output": "the model's output"}


def _share(tensor: Tensor) -> str:
    return f"{int((~tensor.isfinite()).sum())} of {tensor.numel()} entries"
