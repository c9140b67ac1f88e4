"""Handwritten digits: the small set that comes with the package, or MNIST's files where the user has them."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from isornn.tasks.data_files import DataError, content, data_folder, found, which
from isornn.tasks.idx import parse_idx
from isornn.tasks.image_set import ImageSet
from isornn.tasks.known_sets import FASHION_MNIST, MNIST

_UCI = "Optical Recognition of Handwritten Digits (E. Alpaydin, C. Kaynak, 1998, doi.org/10.24432/C50P49), CC BY 4.0"
# Writer follows writer in the file, and each begins with 0, 1, ..., 9 three times over; one such run begins here. So
# the held-out digits are of other hands: their nearest training image has their label for 96 %, of a random split 99 %.
_UCI_TRAIN = 1287
_MNIST_SIDE = 28
# 10,000 of MNIST's 60,000 training images are for validation (Gilboa et al. 2019); the last ones, which is not said.
_VALID = 6


def load_digits(folder: Path | str | None = None, *, pooled: bool = True, block: int = 4) -> ImageSet:
    """MNIST from the folder that holds its IDX files, or the package's digits where there is no folder.

    - a folder, or the environment's ISORNN_DATA: ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``,
      ``t10k-images-idx3-ubyte`` and ``t10k-labels-idx1-ubyte``, each plain or ``.gz``, there or in its folder
      ``mnist``; 28x28 images, averaged over squares of ``block`` pixels' side, 4x4 to D = 49, if ``pooled``. Files of
      that form with other pictures (Fashion-MNIST) work as well; ``name`` says which they are by their checksums.
    - neither: 1797 images of 8x8 pixels, D = 64; the first 1287 are for training and the last 510, by other
      writers, for testing.

    The last sixth of the training images (of MNIST 10,000) is ``part("valid")``.

    Raises:
        DataError: a file that is missing, truncated, of another format or size, or labels that do not match.
        ValueError: ``block`` does not divide 28.

    Warns:
        DataWarning: the files are neither MNIST's nor Fashion-MNIST's, by their checksums.

    Sources: Alpaydin & Kaynak 1998 (UCI); LeCun et al. 1998 (MNIST); Gilboa et al. 2019 (the pooling).

    >>> digits = load_digits()
    >>> digits.train_images.shape, digits.test_images.shape
    (torch.Size([1287, 64]), torch.Size([510, 64]))
    """
    if not 1 <= block <= _MNIST_SIDE or _MNIST_SIDE % block:
        raise ValueError(f"block: {block} is not allowed; it must divide {_MNIST_SIDE}")
    place = data_folder(folder)
    return _embedded() if place is None else _mnist(place, block if pooled else 1)


def _embedded() -> ImageSet:
    with (files("isornn") / "data" / "digits.npz").open("rb") as file, np.load(file) as arrays:
        images = torch.from_numpy(arrays["images"]).reshape(-1, 64).float() / 16.0
        labels = torch.from_numpy(arrays["targets"]).long()
    train, test = slice(None, _UCI_TRAIN), slice(_UCI_TRAIN, None)
    parts = (images[train], labels[train], images[test], labels[test])
    return ImageSet("UCI digits 8x8", _UCI, *parts, valid=_UCI_TRAIN // _VALID)


def _mnist(folder: Path, block: int) -> ImageSet:
    names = list(MNIST.files)
    at = dict(zip(names, found(folder, names, MNIST.endings, (MNIST.folder,), "MNIST"), strict=True))
    held = {name: content(file) for name, file in at.items()}
    train, test = ((_images(held, at, part, block), _labels(held, at, part)) for part in ("train", "t10k"))
    for (images, labels), part in ((train, "train"), (test, "t10k")):
        if len(labels) != len(images):
            raise DataError(f"{at[_label_file(part)]}: {len(labels)} labels for {len(images)} images")
    known = which(held, (MNIST, FASHION_MNIST))
    side = _MNIST_SIDE // block
    name = f"{'IDX images' if known is None else known.title} 28x28{f' pooled to {side}x{side}' if block > 1 else ''}"
    source = f"IDX files in {folder}" if known is None else known.terms
    return ImageSet(name, source, *train, *test, valid=len(train[1]) // _VALID)


def _label_file(part: str) -> str:
    return f"{part}-labels-idx1-ubyte"


def _images(held: dict[str, bytes], at: dict[str, Path], part: str, block: int) -> Tensor:
    name = f"{part}-images-idx3-ubyte"
    images = parse_idx(held[name], 3, at[name])
    if images.shape[1:] != (_MNIST_SIDE, _MNIST_SIDE):
        raise DataError(f"{at[name]}: sizes {tuple(images.shape)}, expected (n, 28, 28)")
    scaled = images.float() / 255.0
    return functional.avg_pool2d(scaled[:, None], block).flatten(1)


def _labels(held: dict[str, bytes], at: dict[str, Path], part: str) -> Tensor:
    name = _label_file(part)
    labels = parse_idx(held[name], 1, at[name])
    if int(labels.max()) > 9:
        raise DataError(f"{at[name]}: label {int(labels.max())}, expected 0 to 9")
    return labels.long()
