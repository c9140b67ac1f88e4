"""One plain loop: a recurrent module and a linear readout of its last output, trained by Adam for K updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn import functional


class NonFiniteLoss(ArithmeticError):
    """The loss became NaN or infinite; names the update at which it did."""


class LastOutput(nn.Module):
    """``y = A h_T + a``: x (T, B, D) to logits (B, classes).

    Args:
        recurrent: any module with torch.nn.LSTM's call and its ``hidden_size``, steps first; one direction.
        classes: how many logits.

    >>> LastOutput(nn.GRU(3, 8), 10)(torch.zeros(5, 2, 3)).shape
    torch.Size([2, 10])
    """

    def __init__(self, recurrent: nn.Module, classes: int) -> None:
        super().__init__()
        self.recurrent = recurrent
        self.readout = nn.Linear(int(recurrent.hidden_size), classes)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.recurrent(x)[0][-1])


def train(
    model: nn.Module,
    batches: Iterator[tuple[Tensor, Tensor]],
    updates: int,
    learning_rate: float,
    on_update: Callable[[int, float], None] | None = None,
    clip: float = 1.0,
) -> list[float]:
    """Minimise the mean cross entropy by Adam, the gradient's norm clipped at ``clip``.

    Given the model, the batches and the number of threads, the result is the same on one machine.

    Args:
        model: x to logits (B, classes).
        batches: at least ``updates`` of (x, labels).
        updates: K.
        learning_rate: Adam's.
        on_update: called after each update with its number, from 1, and its loss.

    Returns:
        The loss before each update; K numbers.

    Raises:
        NonFiniteLoss: the loss is NaN or infinite; the model is as it was before that update.

    >>> model = nn.Linear(2, 2)
    >>> data = iter([(torch.eye(2), torch.arange(2))] * 100)
    >>> losses = train(model, data, 100, 0.1)
    >>> len(losses), losses[-1] < losses[0]
    (100, True)
    """
    optimizer = torch.optim.Adam(model.parameters(), learning_rate)
    losses: list[float] = []
    model.train()
    for update, (x, labels) in enumerate(islice(batches, updates), start=1):
        loss = functional.cross_entropy(model(x), labels)
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            raise NonFiniteLoss(f"update {update}: the loss is {losses[-1]}")
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if on_update is not None:
            on_update(update, losses[-1])
    return losses


@torch.no_grad()
def accuracy(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The share of labels that have the largest logit, over all of ``batches``.

    >>> accuracy(nn.Identity(), [(torch.eye(2), torch.tensor([0, 0]))])
    0.5
    """
    model.eval()
    counts = [(int((model(x).argmax(-1) == labels).sum()), len(labels)) for x, labels in batches]
    return sum(right for right, _ in counts) / sum(of for _, of in counts)
