"""The IDX format of MNIST's files: a magic number, the sizes, then unsigned bytes."""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isornn.tasks.data_files import DataError, content


def read_idx(file: Path, dimensions: int) -> Tensor:
    """Unsigned bytes with that many dimensions from an IDX file, gzipped if its name ends in ``.gz``.

    The header is big endian: two zero bytes, 8 for unsigned bytes, the number of dimensions, and each size as 32 bits.

    Raises:
        DataError: not readable, not gzip, another magic number, more or fewer bytes than the sizes say, or
            none.

    Source: Y. LeCun, C. Cortes & C. Burges, "The MNIST database of handwritten digits".

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "labels-idx1-ubyte"
    ...     _ = file.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
    ...     read_idx(file, 1)
    tensor([7, 2, 1], dtype=torch.uint8)
    """
    return parse_idx(content(file), dimensions, file)


def parse_idx(data: bytes, dimensions: int, file: Path) -> Tensor:
    """As `read_idx`, of what ``file`` holds."""
    start = 4 + 4 * dimensions
    magic = bytes([0, 0, 8, dimensions])
    if data[:4] != magic:
        raise DataError(f"{file}: magic number 0x{data[:4].hex()} is not IDX bytes in {dimensions}-D, 0x{magic.hex()}")
    if len(data) < start:
        raise DataError(f"{file}: truncated in its header, {len(data)} bytes of {start}")
    sizes = struct.unpack(f">{dimensions}I", data[4:start])
    if len(data) != start + prod(sizes):
        wrong = "truncated" if len(data) < start + prod(sizes) else "too long"
        raise DataError(f"{file}: {wrong}, {len(data)} bytes where sizes {sizes} need {start + prod(sizes)}")
    if not prod(sizes):
        raise DataError(f"{file}: sizes {sizes} hold nothing")
    # A copy, because torch wants memory that it may write to.
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=start).copy()).reshape(sizes)
