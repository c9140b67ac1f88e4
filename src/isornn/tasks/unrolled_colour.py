"""Unrolled CIFAR-10: colour images pixel by pixel, three values a step."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from isornn.tasks.image_set import ImageSet, ImageTask
from isornn.tasks.task import Item, Part


class UnrolledColour(ImageTask):
    """x_t is red, green and blue of pixel t, row by row from the top left; y is the class.

    32x32 images give T = 1024 and D = 3. Training images are shifted at random by up to 4 pixels either way (an eighth
    of the side), black where nothing is left, and mirrored with probability 1/2 where the set allows it.

    Left unsaid in the paper, and chosen here: "standard data augmentation" is the above (He et al. 2016); each channel
    is shifted and scaled to mean 0 and variance 1 over all training images; "3 pixels" a step is read as one pixel's
    three values, which is what gives 1024 steps.

    Args:
        images: a set of images, of any number of channels.
        part: "train", "valid" or "test"; only "train" is augmented.
        seed: of the augmentation, from 0; a loader of training batches draws it afresh each time.

    Item: x (T, channels) float32, y () int64.

    Raises:
        ValueError: an argument that is not allowed.

    Source: Gilboa et al. 2019, table 2, after Trinh et al. 2018.

    >>> from isornn.tasks import load_cifar
    >>> task = UnrolledColour(load_cifar())
    >>> task
    <unrolled colour; UCI digits 8x8, grey, in CIFAR-10's place; 1073 items>
    >>> task[0][0].shape
    torch.Size([64, 3])
    """

    name = "unrolled colour"

    def __init__(self, images: ImageSet, part: Part = "train", *, seed: int = 0) -> None:
        super().__init__(images, part, seed)
        self.inputs, self.side = images.channels, images.side
        self.shift = images.side // 8 if part == "train" else 0
        self.mirrors = images.mirrors and part == "train"
        channels = images.train_images.view(-1, self.inputs, self.side**2)
        self.mean = channels.mean((0, 2))
        spread = channels.std((0, 2), correction=0)
        self.scale = torch.where(spread > 0, spread, 1.0)

    def draw(self, index: int, generator: torch.Generator) -> Item:
        image = self.images[index].view(self.inputs, self.side, self.side)
        x = self._augmented(image, generator).flatten(1).T
        return (x - self.mean) / self.scale, self.labels[index]

    def _augmented(self, image: Tensor, generator: torch.Generator) -> Tensor:
        if self.shift:
            top, left = torch.randint(2 * self.shift + 1, (2,), generator=generator).tolist()
            wide = functional.pad(image, [self.shift] * 4)
            image = wide[:, top : top + self.side, left : left + self.side]
        if self.mirrors and bool(torch.rand((), generator=generator) < 0.5):
            image = image.flip(-1)
        return image
