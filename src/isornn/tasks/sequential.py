"""Images pixel by pixel, in order or in one random order."""

from __future__ import annotations

import torch

from isornn.tasks.image_set import ImageSet, ImageTask
from isornn.tasks.task import Item, Part


class SequentialImages(ImageTask):
    """x_t is pixel t, row by row from the top left (unrolled images); y is the class, asked for at the last step.

    With ``permutation`` x_t is pixel p(t), of one random order p for all images.

    28x28 images give T = 784 and D = 1; the package's 8x8 digits T = 64. The last pixel is dark in most images, so
    without memory the loss is about ln 10 nats and 10 % are right.

    Left unsaid in the papers, and chosen here: pixels are in [0, 1]; the permutation is the one that ``permutation``
    seeds; the last sixth of the training images is for validation (of MNIST 10,000, the number that is said).

    Args:
        images: a set of images.
        part: "train", "valid" or "test".
        permutation: seed of the random order, from 0; None for rows from the top left.
        seed: without effect on items; of the loader's order.

    Item: x (T, channels) float32, y () int64.

    Raises:
        ValueError: an argument that is not allowed.

    Sources: Vorontsov et al. 2017, section 4.1, tables 1 and 2; Gilboa et al. 2019, table 2; after Le et al. 2015.

    >>> from isornn.tasks import load_digits
    >>> x, y = SequentialImages(load_digits(), "test", permutation=3)[0]
    >>> x.shape, y
    (torch.Size([64, 1]), tensor(0))
    """

    def __init__(
        self, images: ImageSet, part: Part = "train", *, permutation: int | None = None, seed: int = 0
    ) -> None:
        super().__init__(images, part, seed)
        self.inputs = images.channels
        self.name = "sequential images" if permutation is None else f"permuted images({permutation})"
        steps = images.pixels // images.channels
        self.order = torch.arange(steps)
        if permutation is not None:
            self.order = torch.randperm(steps, generator=torch.Generator().manual_seed(permutation))

    def draw(self, index: int, generator: torch.Generator) -> Item:
        return self.images[index].view(self.inputs, -1).T[self.order], self.labels[index]
