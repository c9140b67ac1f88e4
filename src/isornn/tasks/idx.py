"""The IDX format of MNIST's files: a magic number, the sizes, then unsigned bytes."""

from __future__ import annotations

import gzip
import struct
import zlib
from math import prod
from pathlib import Path

import torch
from torch import Tensor


class DataError(ValueError):
    """A data file that is missing or is not what it should be: names the file, what was found and what is expected."""


def find_idx(folder: Path, name: str) -> Path:
    """The file ``name`` in ``folder``, plain or ``.gz``.

    Raises:
        DataError: neither is there.
    """
    for file in (folder / name, folder / f"{name}.gz"):
        if file.is_file():
            return file
    raise DataError(f"{folder}: no {name} or {name}.gz")


def read_idx(file: Path, dimensions: int) -> Tensor:
    """Unsigned bytes with that many dimensions from an IDX file, gzipped if its name ends in ``.gz``.

    The header is big endian: two zero bytes, 8 for unsigned bytes, the number of dimensions, and each size as 32 bits.

    Raises:
        DataError: not readable, not gzip, another magic number, more or fewer bytes than the sizes say.

    Source: Y. LeCun, C. Cortes & C. Burges, "The MNIST database of handwritten digits".

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "labels-idx1-ubyte"
    ...     _ = file.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
    ...     read_idx(file, 1)
    tensor([7, 2, 1], dtype=torch.uint8)
    """
    data = _bytes(file)
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
    # A copy, because torch wants memory that it may write to.
    return torch.tensor(bytearray(data[start:]), dtype=torch.uint8).reshape(sizes)


def _bytes(file: Path) -> bytes:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: not readable ({error.strerror})") from None
    if file.suffix != ".gz":
        return data
    try:
        return gzip.decompress(data)
    except EOFError:
        raise DataError(f"{file}: truncated, the gzip stream ends early") from None
    except (OSError, zlib.error) as error:
        raise DataError(f"{file}: not a gzip file ({error})") from None
