"""The adding task: the sum of two marked numbers among many."""

from __future__ import annotations

import torch

from isornn.tasks.task import Item, Task, at_least


class Adding(Task):
    """Adding(T): T steps of (value, mark); the target is the sum of the two values whose mark is 1.

    Values are independent, uniform in [0, 1). Counted from 0, the first mark is uniform over the steps
    0 ... T/2 - 1 and the second over T/2 ... T - 1 (T/2 rounded down). Without memory the best answer is 1, with a
    mean squared error of 2/12, the ``baseline``.

    Args:
        length: T, at least 2.
        size: number of items; None for no end.
        seed: from 0.

    Item: x (T, 2) and y (1,), float32.

    Raises:
        ValueError: an argument that is not allowed.

    Source: Vorontsov et al. 2017, section 4.1, after Hochreiter & Schmidhuber 1997 and Arjovsky et al. 2016; all that
    is needed is said there.

    >>> x, y = Adding(100)[0]
    >>> x.shape, x[:, 1].sum().item(), bool((x[:, 0] * x[:, 1]).sum() == y)
    (torch.Size([100, 2]), 2.0, True)
    """

    inputs, outputs = 2, 1
    baseline = 2 / 12

    def __init__(self, length: int, *, size: int | None = None, seed: int = 0) -> None:
        at_least("length", length, 2, "two numbers are marked")
        super().__init__(size, seed)
        self.length = length
        self.name = f"adding({length})"

    def draw(self, index: int, generator: torch.Generator) -> Item:
        half = self.length // 2
        x = torch.zeros(self.length, 2)
        x[:, 0] = torch.rand(self.length, generator=generator)
        marked = torch.stack(
            [torch.randint(low, high, (), generator=generator) for low, high in ((0, half), (half, self.length))]
        )
        x[marked, 1] = 1
        return x, x[marked, 0].sum(0, keepdim=True)
