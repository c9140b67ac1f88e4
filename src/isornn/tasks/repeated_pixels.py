"""Images pixel by pixel, each pixel repeated, for sequences of any length."""

from __future__ import annotations

import torch
from torch.nn import functional

from isornn.tasks.image_set import ImageSet, ImageTask, steps_of
from isornn.tasks.task import Item, Part, at_least


class RepeatedPixels(ImageTask):
    """Each pixel r times, row by row from the top left; that stream cut into steps of D values; y is the class.

    28x28 images and D = 7 give T = 784 r / 7 = 112 r steps. Where T is not whole (the package's 8x8 digits), zeros
    fill the last step.

    MNIST's images end with rows that are blank, the package's digits do not: ``blank_rows`` of zeros go below each
    image before its pixels are repeated.

    Left unsaid in the paper, and chosen here: r, which is an argument; pixels are in [0, 1].

    Args:
        images: a set of images.
        repeats: r, at least 1.
        part: "train", "valid" or "test".
        inputs: D.
        blank_rows: 0 for the images as they are.
        seed: without effect on items; of the loader's order.

    Item: x (T, D) float32, y () int64.

    Raises:
        ValueError: an argument that is not allowed.

    Source: Gilboa et al. 2019, figure 4, bottom row.

    >>> from isornn.tasks import load_digits
    >>> RepeatedPixels(load_digits(), 7)[0][0].shape
    torch.Size([64, 7])
    """

    def __init__(
        self,
        images: ImageSet,
        repeats: int,
        part: Part = "train",
        *,
        inputs: int = 7,
        blank_rows: int = 0,
        seed: int = 0,
    ) -> None:
        at_least("repeats", repeats, 1, "each pixel comes at least once")
        at_least("inputs", inputs, 1, "a step has at least 1 value")
        at_least("blank_rows", blank_rows, 0, "rows are there or not")
        super().__init__(images, part, seed)
        self.images = functional.pad(self.images, (0, blank_rows * images.side))
        self.repeats, self.inputs = repeats, inputs
        self.name = f"repeated pixels({repeats})"

    def draw(self, index: int, generator: torch.Generator) -> Item:
        return steps_of(self.images[index].repeat_interleave(self.repeats), self.inputs), self.labels[index]
