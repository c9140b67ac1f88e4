"""Labelled images with a fixed split, and what the tasks made of them share."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Literal

from torch import Tensor
from torch.nn import functional

from isornn.tasks.data_files import DataError
from isornn.tasks.task import Task

Part = Literal["train", "valid", "test"]


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
            DataError: another part.
        """
        kept = len(self.train_labels) - self.valid
        if part == "train":
            return self.train_images[:kept], self.train_labels[:kept]
        if part == "valid":
            return self.train_images[kept:], self.train_labels[kept:]
        if part == "test":
            return self.test_images, self.test_labels
        raise DataError(f"part: {part!r} is not allowed; it is train, valid or test")


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
