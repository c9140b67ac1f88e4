"""Several digits one after another, and one label for all of them."""

from __future__ import annotations

import torch

from isornn.tasks.image_set import ImageSet, steps_of
from isornn.tasks.task import Item, Part, Task, at_least


class ConcatenatedDigits(Task):
    """n digits, each a 0 or a 1; each pixel r times; that stream cut into steps of D values; y says which they were.

    With digits d_1 ... d_n, y = sum_j d_j 2^(n - j), one of 2^n classes. 28x28 images, r = 10 and D = 112 give 70
    steps a digit. Where the number of steps is not whole, zeros fill the last step.

    Left unsaid in the paper, and chosen here: digits are drawn with replacement, all images of a 0 or a 1 alike; pixels
    are in [0, 1]. "Product of the labels" is read as the joint label.

    Args:
        images: a set of digits.
        digits: n, from 1 to 60.
        part: "train", "valid" or "test", from which digits are drawn.
        repeats: r, at least 1.
        inputs: D.
        size: number of items; None for no end.
        seed: of the digits that are drawn, from 0.

    Item: x (T, D) float32, y () int64.

    Raises:
        ValueError: an argument that is not allowed, or no 0 and 1 among the images.

    Source: Gilboa et al. 2019, figures 1 and 4, top row.

    >>> from isornn.tasks import load_digits
    >>> task = ConcatenatedDigits(load_digits(), 3, repeats=4, inputs=32)
    >>> task.outputs, task[0][0].shape
    (8, torch.Size([24, 32]))
    """

    def __init__(
        self,
        images: ImageSet,
        digits: int,
        part: Part = "train",
        *,
        repeats: int = 10,
        inputs: int = 112,
        size: int | None = None,
        seed: int = 0,
    ) -> None:
        at_least("repeats", repeats, 1, "each pixel comes at least once")
        at_least("inputs", inputs, 1, "a step has at least 1 value")
        if not 1 <= digits <= 60:
            raise ValueError(f"digits: {digits} is not allowed; it must be from 1 to 60")
        super().__init__(size, seed)
        shown, labels = images.part(part)
        binary = labels < 2
        if set(labels[binary].tolist()) != {0, 1}:
            raise ValueError(f"images: {images.name} is not allowed; there is no 0 or no 1 in its part {part}")
        self.images, self.labels = shown[binary], labels[binary]
        self.digits, self.repeats, self.inputs, self.outputs = digits, repeats, inputs, 2**digits
        self.source = images.name
        self.name = f"concatenated digits({digits})"

    def draw(self, index: int, generator: torch.Generator) -> Item:
        chosen = torch.randint(len(self.labels), (self.digits,), generator=generator)
        places = 2 ** torch.arange(self.digits - 1, -1, -1)
        x = steps_of(self.images[chosen].flatten().repeat_interleave(self.repeats), self.inputs)
        return x, (self.labels[chosen] * places).sum()
