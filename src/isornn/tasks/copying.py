"""The copying task: ten symbols, a delay, and the ten symbols again."""

from __future__ import annotations

from math import log

import torch

from isornn.tasks.task import Item, Task, at_least

LETTERS, COPIED = 8, 10
BLANK, DELIMITER = 0, LETTERS + 1


class Copy(Task):
    """Copy(T): T + 20 steps over ten symbols, the blank 0, letters 1 to 8 and the delimiter 9.

    With letters a_1 ... a_10, independent and uniform:

    ===== ============ ============ ====== =================
    steps 1 ... 10     11 ... T + 9 T + 10 T + 11 ... T + 20
    ===== ============ ============ ====== =================
    x     a_1 ... a_10 0            9      0
    y     0            0            0      a_1 ... a_10
    ===== ============ ============ ====== =================

    Without memory the best answer is blanks, then uniform over the letters; over all steps a mean cross-entropy of
    10 ln 8 / (T + 20), the ``baseline``.

    Left unsaid in the paper, and chosen here: the targets before the last ten steps are blanks, and the loss is the
    cross-entropy over all steps. Whether its accuracies are over all steps or the last ten is not known.

    Args:
        length: T, at least 1.
        size: number of items; None for no end.
        seed: from 0.

    Item: x (T + 20,) and y (T + 20,), int64.

    Raises:
        ValueError: an argument that is not allowed.

    Source: Vorontsov et al. 2017, section 4.1, after Hochreiter & Schmidhuber 1997 and Arjovsky et al. 2016.

    >>> x, y = Copy(5)[0]
    >>> x[9:].tolist()[1:], y[:15].tolist() == [0] * 15, x[:10].equal(y[15:])
    ([0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], True, True)
    >>> round(Copy(200).baseline, 4)
    0.0945
    """

    inputs = outputs = LETTERS + 2
    symbolic = per_step = True
    baseline: float

    def __init__(self, length: int, *, size: int | None = None, seed: int = 0) -> None:
        at_least("length", length, 1, "the wait is at least 1 step")
        super().__init__(size, seed)
        self.length = length
        self.name = f"copy({length})"
        self.baseline = COPIED * log(LETTERS) / (length + 2 * COPIED)

    def draw(self, index: int, generator: torch.Generator) -> Item:
        letters = torch.randint(1, LETTERS + 1, (COPIED,), generator=generator)
        x = torch.full((self.length + 2 * COPIED,), BLANK)
        y = x.clone()
        x[:COPIED] = y[-COPIED:] = letters
        x[-COPIED - 1] = DELIMITER
        return x, y
