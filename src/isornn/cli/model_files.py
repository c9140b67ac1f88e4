"""Load the user's model factory or weight file. Files are read as data; no code in them is run.

What the user's code prints goes to stderr: stdout is for the command's answer.
"""

from __future__ import annotations

import importlib
import sys
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isornn.cells import SpecError
from isornn.cli.own_code import import_from_here
from isornn.files import check_regular
from isornn.training.checkpoint import is_checkpoint, load_checkpoint

_MOST_SHARED = 16  # times that a file's numbers may be used, as tied weights are


class TheirError(ValueError):
    """An error in the user's code, or in its arguments."""


def made(where: str) -> tuple[nn.Module, Any]:
    """What ``package.module:factory`` returns: the model, and the batch where it returns one.

    Raises:
        SpecError: there is no such function, or it returns something else.
        TheirError: the module or the function raises.
    """
    module, name = factory_name(where)
    factory = getattr(_imported(module), name, None)
    if not callable(factory) or isinstance(factory, nn.Module):
        raise SpecError(
            "WHAT", where, f"{name} must be a function in {module} that returns the model, or (model, batch)"
        )
    try:
        with redirect_stdout(sys.stderr):
            found = factory()
    except (Exception, SystemExit) as error:
        raise their(where, error) from error
    if isinstance(found, nn.Module):
        return found, None
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], nn.Module):
        return found[0], found[1]
    raise SpecError("WHAT", where, f"it returns the model, or (model, batch), not {type(found).__name__}")


def factory_name(where: str) -> tuple[str, str]:
    """The module and the function of ``package.module:factory``.

    Raises:
        SpecError: it is something else.
    """
    module, _, name = where.partition(":")
    if not (all(part.isidentifier() for part in module.split(".")) and name.isidentifier()):
        raise SpecError(
            "WHAT", where, "it must be package.module:factory, or a file of weights (.pt, .pth, .safetensors)"
        )
    return module, name


def their(where: str, error: BaseException) -> TheirError:
    """An error of the user's code, in one line."""
    return TheirError(f"{where}: {type(error).__name__}: {error}")


def read_weights(file: Path) -> object:
    """A state dict, or what holds one: of safetensors, ``torch.save``, or a checkpoint of ``isornn train``.

    Raises:
        SpecError: the file cannot be read as weights only.
    """
    if file.suffix.lower() != ".safetensors":
        return loaded("WHAT", file)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        check_regular(file)
        return load_file(file)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise SpecError("WHAT", str(file), f"it must be a file of safetensors ({reason_of(error)})") from None


def _imported(module: str) -> Any:
    import_from_here()
    try:
        with redirect_stdout(sys.stderr):
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise their(module, error) from error
        raise SpecError("WHAT", module, "it must be a module that Python finds from here") from None
    except (Exception, SystemExit) as error:
        raise their(module, error) from error


def loaded(option: str, file: Path) -> Any:
    """What torch.save wrote of tensors, or a checkpoint.

    Raises:
        SpecError: names ``option``: no such file, or it holds something else.
    """
    try:
        size = check_regular(file)
        _check_parts(file, size)
        content = load_checkpoint(file) if is_checkpoint(file) else _unpickled(file)
    except Exception as error:  # a pickle that somebody made may raise anything
        if isinstance(error, FileNotFoundError):
            raise SpecError(option, str(file), "there is no such file") from None
        reason = reason_of(error)
        raise SpecError(option, str(file), f"it must be what torch.save wrote of tensors only ({reason})") from None
    _check_tensors(option, file, content, size)
    return content


def _unpickled(file: Path) -> Any:
    """What torch.save wrote; torch's warning of pickles that others wrote would be a second line before the error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected pickle protocol")
        return torch.load(file, map_location="cpu", weights_only=True)


def reason_of(error: Exception) -> str:
    """The first sentence of an error."""
    if isinstance(error, KeyError):  # of the unpickler, with the byte that it stopped at
        return "it is no pickle, or a damaged one"
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return text.split(". ")[0].splitlines()[0] if text else type(error).__name__


def _check_parts(file: Path, size: int) -> None:
    """Refuse an archive whose parts are larger than the file: compressed, which torch.save does not do, or shared.

    Raises:
        ValueError: such an archive.
    """
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(part.file_size for part in archive.infolist())
        if unpacked > size:
            raise ValueError(f"its {size:,} bytes unpack to {unpacked:,}")


def _check_tensors(option: str, file: Path, content: Any, size: int) -> None:
    """Refuse tensors that are larger than the file they came in, as strides of 0 and tensors without numbers are.

    Raises:
        SpecError: such a tensor.
    """
    inner, seen = [content], set[int]()
    taken = 0
    while inner:
        one = inner.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Mapping):
            inner += one.values()
        elif isinstance(one, list | tuple | set):
            inner += one
        elif isinstance(one, Tensor):
            if one.layout != torch.strided or one.is_meta or one.is_quantized:
                raise SpecError(option, str(file), f"its tensors must be plain, not {one.layout} on {one.device}")
            taken += one.nbytes
            if taken > _MOST_SHARED * size:
                raise SpecError(
                    option, str(file), f"its tensors have the numbers of its {size:,} bytes, not {taken:,} bytes"
                )
