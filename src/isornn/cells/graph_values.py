"""A cell's graph in numbers: values of its nodes for values of its leaves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from isornn.cells.cell import Cell
from isornn.cells.graph import CellGraph, Leaf

LeafValues = Callable[[Leaf], Tensor]


def at_start(cell: Cell, u: Mapping[str, Tensor]) -> LeafValues:
    """Values of a graph's leaves: these pre-activations, the others, states and input 0, parameters as they start."""
    u = dict(zip(u, torch.broadcast_tensors(*u.values()), strict=True))
    like = next(iter(u.values()))

    def value(leaf: Leaf) -> Tensor:
        if leaf.kind == "parameter":
            return torch.full_like(like, start_of(cell, leaf.name))
        return u[leaf.name] if leaf.kind == "gate" and leaf.name in u else torch.zeros_like(like)

    return value


def start_of(cell: Cell, parameter: str) -> float:
    """What a parameter starts as; the median over units where they start differently."""
    start = cell.parameters[parameter]
    return float(start) if isinstance(start, (int, float)) else float(start.quantile(torch.tensor(0.5).double()))


def evaluate(graph: CellGraph, wanted: Any, leaves: LeafValues, held: Collection[str] = ()) -> Tensor:
    """A node's value; operations of the names ``held`` are constants to autograd."""

    def apply(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        value = function(*args, **kwargs)
        return value.detach() if name in held else value

    value: Tensor = graph.interpret(leaves, apply, [wanted])(wanted)
    return value
