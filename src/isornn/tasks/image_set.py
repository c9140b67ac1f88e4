"""Labelled images with a fixed split, and what the tasks made of them share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isqrt

import torch
from torch import Tensor
from torch.nn import functional

from isornn.tasks.task import Part, Task, checked_part

__all__ = ["ImageSet", "ImageTask", "Part", "steps_of"]


@dataclass(frozen=True)
class ImageSet:
    """Images as rows of D values, with a fixed split.

    Args:
        name: which data, as records name it.
        source: where it is from and its licence, one line.
        train_images, test_images: (n, D) float32 in [0, 1], row by row from the top left, channel after channel.
        train_labels, test_labels: (n,) int64, 0 to 9.
        valid: how many of the training images, the last ones, are ``part("valid")``.
        channels: 1, or 3 for red, green and blue.
        mirrors: whether a mirror image shows the same class.

    >>> from isornn.tasks import load_digits
    >>> digits = load_digits()
    >>> digits.side, digits.part("test")[0].shape[1]
    (8, 64)
    """

    name: str
    source: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    valid: int
    channels: int = 1
    mirrors: bool = False

    @property
    def pixels(self) -> int:
        """D."""
        return self.train_images.shape[1]

    @property
    def side(self) -> int:
        """Rows of an image, which is a square."""
        return isqrt(self.pixels // self.channels)

    def part(self, part: Part) -> tuple[Tensor, Tensor]:
        """Images (n, D) and labels (n,): "train" and "valid", which together are the training images, or "test".

        Raises:
            ValueError: another part.
        """
        kept = len(self.train_labels) - self.valid
        if checked_part(part) == "test":
            return self.test_images, self.test_labels
        of = slice(None, kept) if part == "train" else slice(kept, None)
        return self.train_images[of], self.train_labels[of]

    def with_held_out(self, most: int) -> ImageSet:
        """The same images for training, and of "valid" and "test" the first ``most`` each.

        >>> from isornn.tasks import load_digits
        >>> fewer = load_digits().with_held_out(100)
        >>> [len(fewer.part(part)[1]) for part in ("train", "valid", "test")]
        [1073, 100, 100]
        """
        train, valid = self.part("train"), self.part("valid")
        images, labels = (torch.cat([kept, held[:most]]) for kept, held in zip(train, valid, strict=True))
        return replace(
            self,
            train_images=images,
            train_labels=labels,
            test_images=self.test_images[:most],
            test_labels=self.test_labels[:most],
            valid=min(most, self.valid),
        )


class ImageTask(Task):
    """One part of an image set; item i shows image i, and y is its label, int64 ()."""

    outputs = 10

    def __init__(self, images: ImageSet, part: Part, seed: int) -> None:
        self.images, self.labels = images.part(part)
        self.source = images.name
        super().__init__(len(self.labels), seed)


def steps_of(values: Tensor, inputs: int) -> Tensor:
    """A stream of values cut into steps of D; zeros fill the last step where they do not come out even.

    >>> import torch
    >>> steps_of(torch.arange(5), 2)
    tensor([[0, 1],
            [2, 3],
            [4, 0]])
    """
    return functional.pad(values, (0, -len(values) % inputs)).view(-1, inputs)
