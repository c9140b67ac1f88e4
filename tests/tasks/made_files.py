"""Small files in the formats of the published ones, and ways to damage them."""

from __future__ import annotations

import gzip
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CIFAR_FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


def idx(values: Tensor) -> bytes:
    header = struct.pack(f">BBBB{values.dim()}I", 0, 0, 8, values.dim(), *values.shape)
    return header + values.numpy().tobytes()


def mnist(folder: Path) -> dict[str, Tensor]:
    """Four small files, two of them gzipped; by name what they hold."""
    generator = torch.Generator().manual_seed(0)
    shapes = {name: (6 if "train" in name else 3, *((28, 28) if "idx3" in name else ())) for name in IDX_FILES}
    held = {
        name: torch.randint(256 if "idx3" in name else 10, shape, generator=generator).byte()
        for name, shape in shapes.items()
    }
    for name, values in held.items():
        if "train" in name:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(values)))
        else:
            (folder / name).write_bytes(idx(values))
    return held


def cifar_batch(number: int, count: int = 4) -> tuple[Tensor, Tensor]:
    """Images (count, 3072) bytes and labels."""
    generator = torch.Generator().manual_seed(number)
    images = torch.randint(256, (count, 3072), generator=generator).byte()
    return images, torch.randint(10, (count,), generator=generator)


def binary_batch(images: Tensor, labels: Tensor) -> bytes:
    return torch.cat([labels.byte()[:, None], images], 1).numpy().tobytes()


def python_batch(images: Tensor, labels: Tensor) -> bytes:
    """As Python 2 and a numpy of 2009 wrote it, opcode by opcode: byte strings, and numpy under its old address."""

    def string(text: bytes) -> bytes:
        return b"T" + struct.pack("<I", len(text)) + text

    def number(value: object) -> bytes:
        return b"J" + struct.pack("<i", value) if isinstance(value, int) else b"G" + struct.pack(">d", value)

    kind = {torch.uint8: b"u1", torch.float32: b"f4"}[images.dtype]
    shape = b"(" + b"".join(number(size) for size in images.shape) + b"t"
    dtype = b"cnumpy\ndtype\n(" + string(kind) + number(0) + number(1) + b"tR"
    dtype += b"(" + number(3) + string(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(" + number(0) + b"t" + string(b"b") + b"tR"
    array += b"(" + number(1) + shape + dtype + b"\x89" + string(images.numpy().tobytes()) + b"tb"
    listed = b"](" + b"".join(number(label) for label in labels.tolist()) + b"e"
    entries = {b"batch_label": string(b"made"), b"labels": listed, b"data": array}
    return b"\x80\x02}(" + b"".join(string(key) + value for key, value in entries.items()) + b"u."


def cifar(folder: Path, write: Callable[[Tensor, Tensor], bytes], ending: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(CIFAR_FILES):
        (folder / f"{name}{ending}").write_bytes(write(*cifar_batch(number)))


class Runs:
    """A pickle of it runs a command."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return print, ("it ran",)


def evil_batch() -> bytes:
    return pickle.dumps({"labels": [Runs()]}, protocol=2)
