"""Along which variables a cell's update jumps: derivatives, which are 0 or finite beside a jump, say nothing of it."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from isornn.cells.cell import Cell
from isornn.cells.graph import CellGraph, Leaf, evaluate
from isornn.cells.roles import start_of
from isornn.cells.trace import graph_of

_SAMPLES, _STEEPEST, _HALVINGS = 8, 16, 40
_GRID = torch.linspace(-12.0, 12.0, 4002, dtype=torch.float64)
_LEAST = 1e-3  # a continuous function changes by less over the last interval, also a cube root


@functools.cache
def jumping(cell: Cell) -> tuple[str, ...]:
    """The pre-activations and states along which a new state, or what a gate reads, jumps.

    Looked for between -12 and 12 from some random values of the others: where a function changes most between
    neighbouring points, the interval is halved until a continuous one hardly changes. An update that cannot be traced
    has none.

    >>> import torch
    >>> from isornn.cells import LSTM, Reads
    >>> class Binary(Cell):
    ...     name = "binary"
    ...     gates = {"f": Reads(), "h": Reads()}
    ...     def update(self, s, u, x):
    ...         return {"h": u.f.sigmoid() * s.h + u.h.sign()}
    >>> jumping(Binary()), jumping(LSTM())
    (('h',), ())
    """
    graph = graph_of(cell)
    found = []
    for leaf in sorted(set(graph.leaves.values()), key=lambda leaf: (leaf.kind, leaf.name)):
        values = [value for value in (*graph.update.values(), *graph.reads.values()) if leaf in graph.depends_on(value)]
        if leaf.kind in ("gate", "state") and any(_jumps(graph, value, leaf) for value in values):
            found.append(leaf.name)
    return tuple(found)


def _jumps(graph: CellGraph, value: Any, along: Leaf) -> bool:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(len(graph.leaves), _SAMPLES, 1, generator=generator, dtype=torch.float64)
    samples = dict(zip(graph.leaves.values(), drawn, strict=True))

    def at(points: Tensor) -> Tensor:
        def leaf_value(leaf: Leaf) -> Tensor:
            if leaf == along:
                return points
            if leaf.kind == "parameter":
                return torch.full_like(points, start_of(graph.cell, leaf.name))
            return samples[leaf].expand_as(points)

        found: Tensor = graph.interpret(leaf_value, evaluate, [value])(value)
        return found

    whole = at(_GRID.expand(_SAMPLES, -1))
    steepest = whole.diff().abs().nan_to_num(0.0).topk(_STEEPEST).indices
    low, high = _GRID[steepest], _GRID[steepest + 1]
    below, above = whole.gather(1, steepest), whole.gather(1, steepest + 1)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        between = at(middle)
        lower = (between - below).abs() > (above - between).abs()
        low, below = torch.where(lower, low, middle), torch.where(lower, below, between)
        high, above = torch.where(lower, middle, high), torch.where(lower, between, above)
    return bool(((above - below).abs() > _LEAST).any())
