"""Recurrent layers from a state dict alone, without the model that it is of."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from isornn.cells import Cell, SpecError, full_name
from isornn.nn import RNN
from isornn.nn.layout import Layout
from isornn.nn.wrappers import within

_Module = TypeVar("_Module", bound=nn.Module)
_KINDS: dict[str, tuple[Callable[..., nn.RNNBase], int]] = {
    "lstm": (nn.LSTM, 4),
    "gru": (nn.GRU, 3),
    "vanilla": (nn.RNN, 1),
}
_TORCHS = ("weight_ih", "weight_hh", "weight_hr", "bias_ih", "bias_hh")
_OURS = (*_TORCHS, "weight_ph", "weight_phi", "bias_phi")
KINDS = tuple(_KINDS)
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SEQUENCES, STEPS, SEED = 8, 200, 0


@dataclass(frozen=True)
class _Group:
    """The tensors of one recurrent module.

    Args:
        prefix: before their names in the state dict.
        of_one_step: whether these have no layer, as those of `nn.LSTMCell`.
        tensors: by the names that a layer has for them, ``weight_ih_l0`` and the like.
    """

    prefix: str
    of_one_step: bool
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def full(self, name: str) -> str:
        """In the state dict."""
        own = name.removesuffix("_l0") if self.of_one_step else name
        return f"{self.prefix}.{own}" if self.prefix else own


class Layers(nn.Module):
    """Recurrent modules by the names that they have in a state dict, each run on an input of its own."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
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


def layers_of(content: object, cell: str | Cell) -> nn.Module:
    """The recurrent modules whose ``weight_ih_l*`` and ``weight_hh_l*`` lie in a state dict, by their names in it.

    ``weight_ih`` and ``weight_hh``, as `nn.LSTMCell` and the like have them, are those of a layer that runs over time.

    Args:
        content: a state dict, or a mapping that holds one, as trainers save them; the first with such names counts.
        cell: ``"lstm"``, ``"gru"`` or ``"vanilla"`` (tanh), as torch has them; the names do not say which. Where it is
            that of some modules, others are what their numbers of rows for each unit say (4, 3 and 1). Or a cell, of
            the library or one's own: the tensors are those of `isornn.nn.RNN` with it.

    Raises:
        SpecError: another cell, no such names, or shapes that are not such a cell's.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.LSTM(3, 4, bidirectional=True))
    >>> layers_of({"state_dict": model.state_dict()}, "lstm")
    Layers(
      (1): LSTM(3, 4, bidirectional=True)
    )
    """
    if isinstance(cell, str) and cell not in _KINDS:
        raise SpecError("--cell", cell, f"of a bare state dict it is one of {', '.join(_KINDS)}, or an object")
    names, needed = (_TORCHS, ("weight_ih", "weight_hh")) if isinstance(cell, str) else _names(cell)
    groups = next(_groups(content, names, needed), None)
    if groups is None:
        wanted = " and ".join(f"{name}_l0" for name in needed) + ", or the same without _l0"
        there = ", ".join(map(str, content)) if isinstance(content, Mapping) and content else type(content).__name__
        if computed := _computed(content):
            wanted += (
                f". {computed} is a part of one that is computed (weight norm, a parametrisation): remove that first"
            )
        raise SpecError("state dict", there, f"it must hold tensors named {wanted}")
    modules: dict[str, nn.Module]
    if isinstance(cell, str):
        fitting = any(_fits(group, cell) for group in groups)
        modules = {group.prefix: _module(group, _kind_of(group, cell) if fitting else cell) for group in groups}
    else:
        modules = {group.prefix: _layer(group, cell) for group in groups}
    return modules[""] if list(modules) == [""] else Layers({name or "recurrent": own for name, own in modules.items()})


def random_inputs(model: nn.Module, steps: int) -> tuple[Tensor, ...]:
    """For every module of `layers_of`: 8 sequences of independent Gaussian values of mean 0 and variance 1."""
    generator = torch.Generator().manual_seed(SEED)
    found = [module for module in model.modules() if isinstance(module, nn.RNNBase | RNN)]
    return tuple(
        torch.randn(steps, SEQUENCES, module.input_size, generator=generator).to(next(module.parameters()).dtype)
        for module in found
    )


def notes(model: nn.Module, cell: str | Cell, steps: int) -> tuple[str, ...]:
    """What a state dict leaves open, and what was put in its place."""
    if isinstance(cell, Cell):
        kind = f"isornn.nn.RNN of {full_name(cell)}"
    else:
        built = {type(module).__name__ for module in model.modules() if isinstance(module, nn.RNNBase)}
        kind = " and ".join(f"torch.nn.{name}" + " with tanh" * (name == "RNN") for name in sorted(built))
    return (
        f"Built from a state dict alone, taken to be {kind}.",
        f"The inputs are not the model's own: each module gets {SEQUENCES} sequences of {steps:,} steps of "
        "independent Gaussian values of variance 1.",
        "So this says nothing of padding, of the scale of real inputs, or of what reaches upper modules, and nothing "
        "of the loss.",
    )


def _computed(content: object) -> str | None:
    """The name of a tensor from which a recurrent weight is computed, in the state dict or one that lies in it."""
    if not isinstance(content, Mapping):
        return None
    inner = [name for value in content.values() if isinstance(value, Mapping) for name in value]
    found = re.compile(r"parametrizations\.weight_[ih]h|weight_[ih]h(_l\d+(_reverse)?)?_(g|v|orig|raw)$")
    return next((str(name) for name in (*content, *inner) if found.search(str(name))), None)


def _names(cell: Cell) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the parameters of a layer of ``cell`` may be called, less the layer's number, and which it cannot lack."""
    stacks = Layout.of(cell).stacks
    return (*_OURS, *cell.parameters), tuple(name for name in stacks if stacks[name] and name.startswith("weight"))


def _groups(content: object, names: Iterable[str], needed: Iterable[str]) -> Iterator[list[_Group]]:
    """The groups of every mapping within that has some."""
    layer = r"_l(?:0|[1-9][0-9]{0,8})(?:_reverse)?"
    own_name = re.compile(
        rf"(?:(?P<prefix>.*)\.)?(?P<own>{'|'.join(map(re.escape, names))})(?P<layer>{layer})?",
    )
    # Without recursion: a file may hold mappings that are deep, or that hold themselves.
    left, seen = [content], set[int]()
    while left:
        mapping = left.pop()
        if not isinstance(mapping, Mapping) or id(mapping) in seen:
            continue
        seen.add(id(mapping))
        found: dict[tuple[str, bool], _Group] = {}
        for name, value in mapping.items():
            fits = own_name.fullmatch(name) if isinstance(name, str) and isinstance(value, Tensor) else None
            if fits is not None:
                place = within(fits["prefix"] or ""), fits["layer"] is None
                found.setdefault(place, _Group(*place)).tensors[fits["own"] + (fits["layer"] or "_l0")] = value
        complete = [group for group in found.values() if {f"{name}_l0" for name in needed} <= group.tensors.keys()]
        if complete:
            yield complete
        left += reversed([*mapping.values()])


def _fits(group: _Group, cell: str) -> bool:
    """Whether there are as many rows for each unit as the cell has."""
    rows, columns = _shape(group, "weight_hh_l0")
    hidden = _shape(group, "weight_hr_l0")[1] if "weight_hr_l0" in group.tensors else columns
    return rows == _KINDS[cell][1] * hidden


def _kind_of(group: _Group, cell: str) -> str:
    """``cell`` where it fits, else the one that does; ``cell`` where none does, so that it is named."""
    return next((kind for kind in (cell, *_KINDS) if _fits(group, kind)), cell)


def _module(group: _Group, cell: str) -> nn.RNNBase:
    kind, gates = _KINDS[cell]
    tensors = group.tensors
    rows, columns = _shape(group, "weight_hh_l0")
    projected, hidden = _shape(group, "weight_hr_l0") if "weight_hr_l0" in tensors else (0, columns)
    if rows != gates * hidden or (projected and cell != "lstm"):
        raise SpecError(group.full("weight_hh_l0"), [rows, columns], f"of {cell} it has {gates} rows for each unit")
    options: dict[str, Any] = {"proj_size": projected} if projected else {}
    make = partial(
        kind,
        _shape(group, "weight_ih_l0")[1],
        hidden,
        num_layers=_depth(group),
        bias="bias_ih_l0" in tensors,
        bidirectional="weight_ih_l0_reverse" in tensors,
        dtype=tensors["weight_ih_l0"].dtype,
        **options,
    )
    return _filled(make, group, cell)


def _layer(group: _Group, cell: Cell) -> RNN:
    """An `RNN` of the cell, of which the shapes say all but how its sequences begin."""
    stacks, tensors = Layout.of(cell).stacks, group.tensors
    stack = next(name for name in ("weight_hh", "weight_ih", "weight_ph") if stacks[name])
    rows, gates = _shape(group, f"{stack}_l0")[0], len(stacks[stack])
    if rows % gates:
        raise SpecError(group.full(f"{stack}_l0"), rows, f"of {cell.name} it has {gates} rows for each unit")
    maps, projects = "weight_phi_l0" in tensors, "weight_hr_l0" in tensors
    inputs = "weight_phi" if maps else "weight_ih" if stacks["weight_ih"] else "weight_ph"
    make = partial(
        RNN,
        cell,
        _shape(group, f"{inputs}_l0")[1],
        rows // gates,
        num_layers=_depth(group),
        bias=any(name.startswith("bias_") for name in tensors),
        bidirectional=any(name.endswith("_reverse") for name in tensors),
        proj_size=_shape(group, "weight_hr_l0")[0] if projects else 0,
        features="linear" if maps else None,
        dtype=tensors[f"{stack}_l0"].dtype,
    )
    return _filled(make, group, cell.name)


def _depth(group: _Group) -> int:
    numbers = {int(name.removesuffix("_reverse").rpartition("_l")[2]): name for name in group.tensors}
    if max(numbers) >= len(numbers):
        allowed = f"layers are numbered from 0 on, and tensors of {len(numbers)} are there"
        raise SpecError(group.full(numbers[max(numbers)]), max(numbers), allowed)
    return len(numbers)


def _filled(make: Callable[..., _Module], group: _Group, cell: str) -> _Module:
    """The module with these tensors; tried on torch's meta device, where sizes that do not fit take no memory."""
    try:
        _check_fits(make(device="meta"), group, cell)
        module = make()
        module.load_state_dict(group.tensors)
    except SpecError:
        raise
    except (RuntimeError, ValueError) as error:
        raise SpecError(group.prefix or "state dict", sorted(group.tensors), " ".join(str(error).split())) from None
    return module


def _check_fits(module: nn.Module, group: _Group, cell: str) -> None:
    """That the tensors have the module's names and shapes, and hold numbers that it can take."""
    wanted, tensors = module.state_dict(), group.tensors
    for name in sorted(wanted.keys() | tensors.keys()):
        found = list(tensors[name].shape) if name in tensors else "absent"
        allowed = f"has it of shape {list(wanted[name].shape)}" if name in wanted else "has no such tensor"
        if name not in wanted or found != list(wanted[name].shape):
            raise SpecError(group.full(name), found, f"a layer of {cell} that fits the others {allowed}")
    module.load_state_dict(tensors, assign=True)


def _shape(group: _Group, name: str) -> tuple[int, int]:
    tensor = group.tensors[name]
    shape = tuple(tensor.shape)
    if len(shape) != 2 or 0 in shape or tensor.dtype not in _DTYPES:
        allowed = "it must be a matrix of float64, float32, float16 or bfloat16"
        raise SpecError(group.full(name), f"{tensor.dtype} {list(shape)}", allowed)
    return shape
