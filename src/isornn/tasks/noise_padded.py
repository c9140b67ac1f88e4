"""Noise-padded classification: an image at the first step, then noise; the label is asked for at the last step.

The task only requires keeping the image over the noise, so learning it shows that a network remembers T steps.
Source: Gilboa et al. 2019, figure 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from isornn.tasks.image_set import ImageSet, ImageTask
from isornn.tasks.task import Item, Part, at_least


def standardised(digits: ImageSet) -> ImageSet:
    """The same digits shifted and scaled, both parts alike, so that training pixels have E[x] = 0 and E[x^2] = 1.

    One shift and one scale for all pixels; the image then is as large as the noise, input variance R = 1.

    >>> from isornn.tasks import load_digits
    >>> pixels = standardised(load_digits()).train_images
    >>> bool(pixels.mean().abs() < 1e-4), round(float(pixels.square().mean()), 4)
    (True, 1.0)
    """
    shift, scale = digits.train_images.mean(), digits.train_images.std(correction=0)
    train, test = ((images - shift) / scale for images in (digits.train_images, digits.test_images))
    return replace(digits, train_images=train, test_images=test)


def noise_padded(images: Tensor, length: int, generator: torch.Generator) -> Tensor:
    """``x_1 = image``, ``x_t ~ N(0, 1)`` for t = 2 ... T, independent over steps, images and pixels.

    Args:
        images: (B, D), standardised.
        length: T, at least 1; the image is T - 1 steps before the end.
        generator: source of the noise.

    Returns:
        (T, B, D).

    Raises:
        ValueError: length below 1.

    >>> x = noise_padded(torch.ones(2, 3), 5, torch.Generator().manual_seed(0))
    >>> x.shape, bool((x[0] == 1).all())
    (torch.Size([5, 2, 3]), True)
    """
    at_least("length", length, 1, "a sequence has at least 1 step")
    x = torch.randn((length, *images.shape), generator=generator)
    x[0] = images
    return x


class NoisePadded(ImageTask):
    """x_1 = image i, standardised; x_t ~ N(0, 1) for t = 2 ... T; y is the digit, asked for at the last step.

    Left unsaid in the paper, and chosen here: the noise has the images' variance, 1; one shift and one scale for all
    pixels, from all training images (`standardised`).

    Args:
        images: a set of images.
        length: T, at least 1.
        part: "train", "valid" or "test".
        seed: of the noise, from 0; a loader of training batches draws it afresh each time.

    Item: x (T, D) float32, y () int64.

    Raises:
        ValueError: an argument that is not allowed.

    Source: Gilboa et al. 2019, section 5.1, figures 2 and 6.

    >>> from isornn.tasks import load_digits
    >>> task = NoisePadded(load_digits(), 30, "test")
    >>> task
    <noise-padded(30); UCI digits 8x8; 510 items>
    >>> x, y = task[0]
    >>> x.shape, y
    (torch.Size([30, 64]), tensor(0))
    """

    def __init__(self, images: ImageSet, length: int, part: Part = "train", *, seed: int = 0) -> None:
        at_least("length", length, 1, "a sequence has at least 1 step")
        super().__init__(standardised(images), part, seed)
        self.length, self.inputs = length, images.pixels
        self.name = f"noise-padded({length})"

    def draw(self, index: int, generator: torch.Generator) -> Item:
        return noise_padded(self.images[index : index + 1], self.length, generator)[:, 0], self.labels[index]


# The demo's own batches. Each goes on where the last left one generator, so that no batch is a function of its number;
# a loader of `NoisePadded` is, and therefore cannot give the demo's published figures.


def batches(
    digits: ImageSet, length: int, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Training batches without end: images drawn with replacement, with fresh noise each time.

    Args:
        digits: as loaded; standardised here.
        length: T.
        batch_size: B.
        generator: source of images and noise.

    Yields:
        x (T, B, D) and labels (B,); no more than one batch is held.

    >>> from isornn.tasks import load_digits
    >>> x, y = next(batches(load_digits(), 10, 4, torch.Generator().manual_seed(0)))
    >>> x.shape, y.shape
    (torch.Size([10, 4, 64]), torch.Size([4]))
    """
    digits = standardised(digits)
    while True:
        chosen = torch.randint(len(digits.train_labels), (batch_size,), generator=generator)
        yield noise_padded(digits.train_images[chosen], length, generator), digits.train_labels[chosen]


def held_out(
    digits: ImageSet, length: int, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Every test image once, in order, with fresh noise; the last batch may be smaller. As `batches` otherwise.

    >>> from isornn.tasks import load_digits
    >>> sum(len(y) for _, y in held_out(load_digits(), 3, 100, torch.Generator().manual_seed(0)))
    510
    """
    digits = standardised(digits)
    for images, labels in zip(digits.test_images.split(batch_size), digits.test_labels.split(batch_size), strict=True):
        yield noise_padded(images, length, generator), labels
