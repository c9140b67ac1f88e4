"""The user's own: a function that makes a model, a file of data, a file of weights. Nothing that a file says is run."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from isornn.cells import SpecError
from isornn.cli.own_code import import_from_here


class TheirError(ValueError):
    """An error in the user's own code, or in what it was given."""


def made(where: str) -> tuple[nn.Module, Any]:
    """What ``package.module:factory`` returns: the model, and the batch where it returns one.

    Raises:
        SpecError: there is no such function, or it returns something else.
        TheirError: the module or the function raises.
    """
    module, _, name = where.partition(":")
    if not (all(part.isidentifier() for part in module.split(".")) and name.isidentifier()):
        raise SpecError("WHAT", where, "it is package.module:factory, or a file of weights (.pt, .pth, .safetensors)")
    factory = getattr(_imported(module), name, None)
    if not callable(factory) or isinstance(factory, nn.Module):
        raise SpecError("WHAT", where, f"{name} is a function in {module} that returns the model, or (model, batch)")
    try:
        found = factory()
    except Exception as error:
        raise their(where, error) from error
    if isinstance(found, nn.Module):
        return found, None
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], nn.Module):
        return found[0], found[1]
    raise SpecError("WHAT", where, f"it returns the model, or (model, batch), not {type(found).__name__}")


def their(where: str, error: Exception) -> TheirError:
    """What went wrong in code that is not ours, in a line."""
    return TheirError(f"{where}: {type(error).__name__}: {error}")


def read_batch(file: Path, model: nn.Module) -> Any:
    """A batch for ``model``: an array of .npy, or of .pt a tensor, a tuple of them, or a dict by name.

    Floating point arrays of .npy are given the model's dtype; all goes to the model's device.

    Raises:
        SpecError: no such file.
    """
    some = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    if file.suffix.lower() == ".npy":
        try:
            array = torch.from_numpy(np.load(file, allow_pickle=False))
        except (OSError, ValueError, TypeError, EOFError) as error:
            raise SpecError("--data", str(file), f"it is an array that numpy reads without pickle ({error})") from None
        return array.to(some.device, some.dtype if array.is_floating_point() else array.dtype)
    if file.suffix.lower() != ".pt":
        raise SpecError("--data", str(file), "its name ends in .npy or .pt")
    return _on(some.device, _loaded("--data", file), file)


def read_weights(file: Path) -> object:
    """A state dict, or what holds one.

    Raises:
        SpecError: the file cannot be read as weights only.
    """
    if file.suffix.lower() != ".safetensors":
        return _loaded("WHAT", file)
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise SpecError("WHAT", str(file), f"it is a file of safetensors ({error})") from None


def _imported(module: str) -> Any:
    import_from_here()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise their(module, error) from error
        raise SpecError("WHAT", module, "it is a module that Python finds from here") from None
    except Exception as error:
        raise their(module, error) from error


def _loaded(option: str, file: Path) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        reason = str(error).split(". ")[0].splitlines()[0] if str(error) else type(error).__name__
        raise SpecError(option, str(file), f"it is what torch.save wrote of tensors only ({reason})") from None


def _on(device: torch.device, content: Any, file: Path) -> Any:
    if isinstance(content, Tensor):
        return content.to(device)
    if isinstance(content, (tuple, list)) and all(isinstance(part, Tensor) for part in content):
        return tuple(part.to(device) for part in content)
    if isinstance(content, dict) and all(isinstance(part, Tensor) for part in content.values()):
        return {name: part.to(device) for name, part in content.items()}
    raise SpecError("--data", str(file), "it holds a tensor, a tuple of tensors, or a dict of tensors by argument")
