"""Handwritten digits: the small set that comes with the package, or MNIST's files where the user has them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from isornn.tasks.idx import DataError, find_idx, read_idx

__all__ = ["DataError", "Digits", "load_digits"]

_UCI = "Optical Recognition of Handwritten Digits (E. Alpaydin, C. Kaynak, 1998, doi.org/10.24432/C50P49), CC BY 4.0"
# Writer follows writer in the file, and each begins with 0, 1, ..., 9 three times over; one such run begins here. So
# the held-out digits are of other hands: their nearest training image has their label for 96 %, of a random split 99 %.
_UCI_TRAIN = 1287
_MNIST_SIDE, _POOL = 28, 4


@dataclass(frozen=True)
class Digits:
    """Images as rows of D pixels, with a fixed split.

    Args:
        name: which data, as records name it.
        source: where it is from and its licence, one line.
        train_images, test_images: (n, D) float32 in [0, 1], row by row from the top left.
        train_labels, test_labels: (n,) int64, 0 to 9.
    """

    name: str
    source: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    @property
    def pixels(self) -> int:
        """D."""
        return self.train_images.shape[1]


def load_digits(folder: Path | str | None = None) -> Digits:
    """The package's digits, or MNIST from the folder that holds its IDX files.

    - ``None``: 1797 images of 8x8 pixels, D = 64; the first 1287 are for training and the last 510, by other
      writers, for testing.
    - a folder: ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``, ``t10k-images-idx3-ubyte`` and
      ``t10k-labels-idx1-ubyte``, each plain or ``.gz``; 28x28 images, averaged over 4x4 blocks, D = 49. Files of
      that form with other pictures (Fashion-MNIST) work as well.

    Raises:
        DataError: a file that is missing, truncated, of another format or size, or labels that do not match.

    Sources: Alpaydin & Kaynak 1998 (UCI); LeCun et al. 1998 (MNIST); Gilboa et al. 2019 (the pooling).

    >>> digits = load_digits()
    >>> digits.train_images.shape, digits.test_images.shape
    (torch.Size([1287, 64]), torch.Size([510, 64]))
    """
    return _embedded() if folder is None else _mnist(Path(folder))


def _embedded() -> Digits:
    with (files("isornn") / "data" / "digits.npz").open("rb") as file, np.load(file) as arrays:
        images = torch.from_numpy(arrays["images"]).reshape(-1, 64).float() / 16.0
        labels = torch.from_numpy(arrays["targets"]).long()
    train, test = slice(None, _UCI_TRAIN), slice(_UCI_TRAIN, None)
    return Digits("UCI digits 8x8", _UCI, images[train], labels[train], images[test], labels[test])


def _mnist(folder: Path) -> Digits:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; it holds MNIST's four IDX files")
    train, test = _pair(folder, "train"), _pair(folder, "t10k")
    return Digits("IDX digits 28x28 pooled to 7x7", f"IDX files in {folder}", *train, *test)


def _pair(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """One part's images and labels."""
    image_file, label_file = (find_idx(folder, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    if images.shape[1:] != (_MNIST_SIDE, _MNIST_SIDE) or len(images) == 0:
        raise DataError(f"{image_file}: sizes {tuple(images.shape)}, expected (n, 28, 28) with n > 0")
    if len(labels) != len(images):
        raise DataError(f"{label_file}: {len(labels)} labels for {len(images)} images")
    if int(labels.max()) > 9:
        raise DataError(f"{label_file}: label {int(labels.max())}, expected 0 to 9")
    return functional.avg_pool2d(images[:, None].float() / 255.0, _POOL).flatten(1), labels.long()
