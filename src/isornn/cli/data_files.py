"""Read a file of data: .npy has one array, .npz arrays by name, .pt tensors. No code in them is run."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from torch import Tensor, nn

from isornn import files
from isornn.cells import SpecError
from isornn.cli.model_files import loaded, reason_of

_OF_DATA_SET = ("inputs", "targets", "lengths")
# Of an encrypted or damaged archive RuntimeError, of a damaged header SyntaxError or TokenError.
_DAMAGED = (EOFError, MemoryError, RuntimeError, SyntaxError, BadZipFile, zlib.error, TokenError)

Data = Tensor | tuple[Tensor, ...] | dict[str, Tensor]


def read_data(option: str, file: Path) -> Data:
    """An array of .npy, those of .npz by name, or of .pt a tensor, a tuple of them, or a dict by name.

    Raises:
        SpecError: names ``option``: no such file, or none of these.
    """
    readers: dict[str, Callable[[str, Path], Data]] = {".npy": _array, ".npz": _arrays, ".pt": _tensors}
    if file.suffix.lower() not in readers:
        raise SpecError(option, str(file), "its name must end in .npy, .npz or .pt")
    return readers[file.suffix.lower()](option, file)


def read_data_set(option: str, file: Path, needed: Sequence[str]) -> dict[str, Tensor]:
    """Inputs, targets and lengths by these names; what is one array is the inputs.

    Raises:
        SpecError: as `read_data`; one that is ``needed`` is missing, or there are others.
    """
    content = read_data(option, file)
    if isinstance(content, tuple):
        raise SpecError(option, str(file), "it must be an array, or arrays by name, not a tuple")
    arrays = {"inputs": content} if isinstance(content, Tensor) else content
    for name in (name for name in needed if name not in arrays):
        has = f"; it has {', '.join(arrays)}" if arrays else ""
        raise SpecError(option, str(file), f"it must have an array {name}, as numpy.savez writes{has}")
    unknown = [name for name in arrays if name not in _OF_DATA_SET]
    if unknown:
        allowed = f"its arrays are {', '.join(_OF_DATA_SET)}; it also has {', '.join(unknown)}"
        raise SpecError(option, str(file), allowed)
    return arrays


def read_batch(file: Path, model: nn.Module) -> Any:
    """A batch for ``model``: tensors by name are its arguments. Of .npz the targets are left out, and inputs alone are
    the only argument.

    Floating point arrays of .npy and .npz are given the model's dtype; all goes to the model's device.

    Raises:
        SpecError: as `read_data`.
    """
    content, of_numpy = read_data("--data", file), file.suffix.lower() != ".pt"
    some = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))

    def placed(tensor: Tensor) -> Tensor:
        return tensor.to(some.device, some.dtype if of_numpy and tensor.is_floating_point() else tensor.dtype)

    if isinstance(content, Tensor):
        return placed(content)
    if isinstance(content, tuple):
        return tuple(map(placed, content))
    given = {name: placed(part) for name, part in content.items() if not (of_numpy and name == "targets")}
    return given["inputs"] if of_numpy and list(given) == ["inputs"] else given


def _array(option: str, file: Path) -> Tensor:
    with _refused(option, file, "it must be an array that numpy reads without pickle"), np.errstate(over="raise"):
        files.check_regular(file)
        # Mapped, so that a header is compared with the file's size before memory is taken.
        array = np.load(file, mmap_mode="r", allow_pickle=False)
        tensor = _as_tensor(option, file, "it", array)
    return _checked(option, file, "it", tensor)


def _arrays(option: str, file: Path) -> dict[str, Tensor]:
    with _refused(option, file, "it must be an .npz file of plain arrays"):
        files.check_regular(file)
        with ZipFile(file) as parts:
            unpacked = sum(part.file_size for part in parts.infolist())
        if unpacked > files.MOST_DATA:
            raise ValueError(f"it unpacks to {unpacked:,} bytes, the most is {files.MOST_DATA:,}")
        with np.load(file, allow_pickle=False) as arrays:
            found = {name: _as_tensor(option, file, name, arrays[name]) for name in arrays.files}
    return {name: _checked(option, file, name, tensor) for name, tensor in found.items()}


def _tensors(option: str, file: Path) -> Data:
    content = loaded(option, file)
    if isinstance(content, Tensor):
        return content
    if isinstance(content, tuple | list) and all(isinstance(part, Tensor) for part in content):
        return tuple(content)
    named = isinstance(content, dict) and all(isinstance(name, str) for name in content)
    if named and all(isinstance(part, Tensor) for part in content.values()):
        return dict(content)
    raise SpecError(option, str(file), "it holds a tensor, a tuple of tensors, or a dict of tensors by argument")


@contextmanager
def _refused(option: str, file: Path, allowed: str) -> Iterator[None]:
    """Say what is allowed where numpy cannot read the file."""
    try:
        yield
    except FileNotFoundError:
        raise SpecError(option, str(file), "there is no such file") from None
    except SpecError:
        raise
    except (OSError, ValueError, TypeError, ArithmeticError, *_DAMAGED) as error:
        raise SpecError(option, str(file), f"{allowed} ({reason_of(error)})") from None


def _as_tensor(option: str, file: Path, name: str, array: Any) -> Tensor:
    """A copy, of whatever byte order and strides."""
    if array.dtype.kind not in "biufc":
        raise SpecError(option, str(file), f"{name} must hold numbers; its dtype is {array.dtype}")
    try:
        return torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))
    except TypeError:  # numpy.longdouble, which torch does not have
        allowed = f"{name} must hold numbers of a dtype that torch has too; its dtype is {array.dtype}"
        raise SpecError(option, str(file), allowed) from None


def _checked(option: str, file: Path, name: str, tensor: Tensor) -> Tensor:
    if tensor.numel() == 0:
        raise SpecError(option, str(file), f"{name} must hold numbers; its shape is {tuple(tensor.shape)}")
    return tensor
