"""CIFAR-10's files, in the binary or the python version."""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isornn.tasks.data_files import DataError, content, data_folder, find, which
from isornn.tasks.digits import load_digits
from isornn.tasks.image_set import ImageSet
from isornn.tasks.known_sets import CIFAR_10

_BYTES = 3 * 32 * 32
_TRAIN, _TEST = tuple(f"data_batch_{number}" for number in range(1, 6)), "test_batch"
CIFAR_BINARY_FOLDER = "cifar-10-batches-bin"


def load_cifar(folder: Path | str | None = None) -> ImageSet:
    """CIFAR-10 from the folder that holds its files, or the package's digits in its place where there is no folder.

    - a folder, or the environment's ISORNN_DATA: ``data_batch_1`` to ``data_batch_5`` and ``test_batch`` of the
      python version, or the same with ``.bin`` of the binary one, there or in the folder that the archive makes;
      32x32 images in three channels, D = 3072.
    - neither: `load_digits`, the same grey in three channels.

    The last fifth of the training images (10,000) is ``part("valid")``: the number is Gilboa et al.'s, which are taken
    is not said.

    Raises:
        DataError: a file that is missing, truncated or of another format.

    Warns:
        DataWarning: the files of the python version are not the published ones, by their checksums. Of the binary
            version's files no checksums are published.

    Source: Krizhevsky 2009, www.cs.toronto.edu/~kriz/cifar.html.

    >>> load_cifar().name
    "UCI digits 8x8, grey, in CIFAR-10's place"
    """
    place = data_folder(folder)
    return _grey_digits() if place is None else _cifar(place)


def _grey_digits() -> ImageSet:
    digits = load_digits()
    return replace(
        digits,
        name=f"{digits.name}, grey, in CIFAR-10's place",
        train_images=digits.train_images.repeat(1, 3),
        test_images=digits.test_images.repeat(1, 3),
        channels=3,
    )


def _cifar(folder: Path) -> ImageSet:
    python = find(folder, _TEST, below=(CIFAR_10.folder,))
    binary = find(folder, _TEST, (".bin",), (CIFAR_BINARY_FOLDER,))
    test = python or binary
    files = [] if test is None else [test.with_name(test.name.replace(_TEST, name)) for name in _TRAIN]
    if test is None or not all(file.is_file() for file in files):
        raise DataError(
            f"{folder}: CIFAR-10 is {', '.join((*_TRAIN, _TEST))}, all there or in {folder / CIFAR_10.folder}, "
            f"or the same with .bin, there or in {folder / CIFAR_BINARY_FOLDER}"
        )
    held = {file: content(file) for file in (*files, test)}
    read = parse_python if test == python else parse_binary
    train = [read(held[file], file) for file in files]
    known = which({file.name: data for file, data in held.items()}, (CIFAR_10,)) if test == python else None
    images, labels = (torch.cat(parts) for parts in zip(*train, strict=True))
    if test == binary:
        name, source = "CIFAR-10 (binary files, not checked)", f"binary files in {folder}"
    elif known is None:
        name, source = "images in CIFAR-10's form", f"python batches in {folder}"
    else:
        name, source = known.title, known.terms
    return ImageSet(
        name, source, images, labels, *read(held[test], test), valid=len(labels) // 5, channels=3, mirrors=True
    )


def parse_binary(data: bytes, file: Path) -> tuple[Tensor, Tensor]:
    """Images (n, 3072) in [0, 1] and labels (n,): records of one byte of label and 3072 of red, green and blue.

    Raises:
        DataError: not a whole number of records, none, or a label above 9.
    """
    if not data or len(data) % (1 + _BYTES):
        raise DataError(f"{file}: {len(data)} bytes are not records of {1 + _BYTES} bytes; truncated or another format")
    records = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, 1 + _BYTES)
    return _checked(records[:, 1:], records[:, 0].long(), file)


def parse_python(data: bytes, file: Path) -> tuple[Tensor, Tensor]:
    """As `parse_binary`, from a pickled dictionary of ``data`` (n, 3072) bytes and ``labels``, n of them.

    The pickle may name nothing but what numpy's arrays are made of: no file can run code.

    Raises:
        DataError: not a pickle, a pickle of other things, or other sizes.
    """
    try:
        # The files are numpy's of 2009, on which a newer numpy may remark.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            batch = _ArraysOnly(io.BytesIO(data), encoding="latin1").load()
    except Exception as error:  # a damaged pickle raises nearly anything
        raise DataError(f"{file}: not a pickled batch of CIFAR-10 ({type(error).__name__}: {error})") from None
    images, labels = (batch.get("data"), batch.get("labels")) if isinstance(batch, dict) else (None, None)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (_BYTES,):
        raise DataError(f"{file}: no array of bytes (n, {_BYTES}) under 'data'")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels) or len(labels) != len(images):
        raise DataError(f"{file}: no list of {len(images)} whole numbers under 'labels'")
    if not all(0 <= label <= 9 for label in labels):
        raise DataError(f"{file}: labels from {min(labels)} to {max(labels)}, expected 0 to 9")
    return _checked(torch.from_numpy(images.copy()), torch.tensor(labels), file)


def _checked(images: Tensor, labels: Tensor, file: Path) -> tuple[Tensor, Tensor]:
    if len(labels) == 0:
        raise DataError(f"{file}: no images")
    if int(labels.max()) > 9:
        raise DataError(f"{file}: label {int(labels.max())}, expected 0 to 9")
    return images.float() / 255.0, labels


class _ArraysOnly(pickle.Unpickler):
    """Knows what a pickled numpy array names, under its old and its new address, and nothing else."""

    def find_class(self, module: str, name: str) -> object:
        known: dict[tuple[str, str], Callable[..., object]] = {
            ("multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],  # type: ignore[dict-item]
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
        }
        short = module.removeprefix("numpy.core.").removeprefix("numpy._core.")
        if (short, name) not in known:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in it")
        return known[short, name]
