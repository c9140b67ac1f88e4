"""Recurrent layers from a state dict alone, without the model that it is of."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from isornn.cells import SpecError

_KINDS: dict[str, tuple[Callable[..., nn.RNNBase], int]] = {
    "lstm": (nn.LSTM, 4),
    "gru": (nn.GRU, 3),
    "vanilla": (nn.RNN, 1),
}
_NAME = re.compile(r"(?:(?P<prefix>.*)\.)?(?P<own>(?:weight_ih|weight_hh|weight_hr|bias_ih|bias_hh)_l\d+(?:_reverse)?)")
SEQUENCES, STEPS, SEED = 8, 200, 0


class Layers(nn.Module):
    """Recurrent modules by the names that they have in a state dict, each run on an input of its own."""

    def __init__(self, modules: Mapping[str, nn.RNNBase]) -> None:
        super().__init__()
        self._in_order = tuple(modules.values())
        for name, module in modules.items():
            *path, own = name.split(".")
            owner: nn.Module = self
            try:
                for part in path:
                    if part not in owner._modules:
                        owner.add_module(part, nn.Module())
                    owner = owner.get_submodule(part)
                owner.add_module(own, module)
            except KeyError as taken:
                raise SpecError("state dict", name, f"torch cannot call a module so: {taken.args[0]}") from None

    def forward(self, *inputs: Tensor) -> None:
        """Inputs (T, B, D), one for each module."""
        for module, x in zip(self._in_order, inputs, strict=True):
            module(x)


def layers_of(content: object, cell: str) -> nn.Module:
    """The recurrent modules whose ``weight_ih_l*`` and ``weight_hh_l*`` lie in a state dict, by their names in it.

    Args:
        content: a state dict, or a mapping that holds one, as trainers save them; the first with such names counts.
        cell: ``"lstm"``, ``"gru"`` or ``"vanilla"`` (tanh), as torch has them; the names do not say which.

    Raises:
        SpecError: another cell, no such names, or shapes that are not such a cell's.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.LSTM(3, 4, bidirectional=True))
    >>> layers_of({"state_dict": model.state_dict()}, "lstm")
    Layers(
      (1): LSTM(3, 4, bidirectional=True)
    )
    """
    if cell not in _KINDS:
        raise SpecError("--cell", cell, f"of a bare state dict it is one of {', '.join(_KINDS)}")
    groups = next(_groups(content), None)
    if groups is None:
        raise SpecError("state dict", type(content).__name__, "it holds tensors named weight_ih_l0 and weight_hh_l0")
    modules = {prefix: _module(prefix, tensors, cell) for prefix, tensors in groups.items()}
    return modules[""] if list(modules) == [""] else Layers({name or "recurrent": own for name, own in modules.items()})


def random_inputs(model: nn.Module, steps: int) -> tuple[Tensor, ...]:
    """For every module of `layers_of`: 8 sequences of independent Gaussian values of mean 0 and variance 1."""
    generator = torch.Generator().manual_seed(SEED)
    found = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    return tuple(
        torch.randn(steps, SEQUENCES, module.input_size, generator=generator).to(next(module.parameters()).dtype)
        for module in found
    )


def notes(model: nn.Module, cell: str, steps: int) -> tuple[str, ...]:
    """What a state dict leaves open, and what was put in its place."""
    kind = "torch.nn.RNN with tanh" if cell == "vanilla" else f"torch.nn.{cell.upper()}"
    return (
        f"Built from a state dict alone, taken to be {kind}.",
        f"The inputs are not the model's own: each module hears {SEQUENCES} sequences of {steps:,} steps of "
        "independent Gaussian values of variance 1.",
        "So this says nothing of padding, of the scale of real inputs, or of what reaches upper modules, and nothing "
        "of the loss.",
    )


def _groups(content: object) -> Iterator[dict[str, dict[str, Tensor]]]:
    """Tensors by prefix and own name, from every mapping within that has some."""
    if not isinstance(content, Mapping):
        return
    found: dict[str, dict[str, Tensor]] = {}
    for name, value in content.items():
        fits = _NAME.fullmatch(name) if isinstance(name, str) and isinstance(value, Tensor) else None
        if fits is not None:
            found.setdefault(fits["prefix"] or "", {})[fits["own"]] = value
    complete = {prefix: own for prefix, own in found.items() if {"weight_ih_l0", "weight_hh_l0"} <= own.keys()}
    if complete:
        yield complete
    for value in content.values():
        yield from _groups(value)


def _module(prefix: str, tensors: Mapping[str, Tensor], cell: str) -> nn.RNNBase:
    kind, gates = _KINDS[cell]
    rows, columns = _shape(prefix, tensors, "weight_hh_l0")
    projection = tensors.get("weight_hr_l0")
    hidden = columns if projection is None else projection.shape[-1]
    if rows != gates * hidden or (projection is not None and cell != "lstm"):
        raise SpecError(_full(prefix, "weight_hh_l0"), [rows, columns], f"of {cell} it has {gates} rows for each unit")
    options: dict[str, Any] = {} if projection is None else {"proj_size": projection.shape[0]}
    module = kind(
        _shape(prefix, tensors, "weight_ih_l0")[1],
        hidden,
        num_layers=1 + max(int(re.findall(r"_l(\d+)", name)[0]) for name in tensors),
        bias="bias_ih_l0" in tensors,
        bidirectional="weight_ih_l0_reverse" in tensors,
        dtype=tensors["weight_ih_l0"].dtype,
        **options,
    )
    try:
        module.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise SpecError(prefix or "state dict", sorted(tensors), " ".join(str(error).split())) from None
    return module


def _shape(prefix: str, tensors: Mapping[str, Tensor], name: str) -> tuple[int, int]:
    shape = tuple(tensors[name].shape)
    if len(shape) != 2 or 0 in shape or not tensors[name].is_floating_point():
        raise SpecError(_full(prefix, name), list(shape), "it is a matrix of floating point values")
    return shape


def _full(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
