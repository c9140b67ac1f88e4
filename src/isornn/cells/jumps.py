"""Along which variables a cell's update jumps: derivatives, which are 0 or finite beside a jump, say nothing of it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from isornn.cells.cell import Cell
from isornn.cells.graph import CellGraph, Leaf, evaluate
from isornn.cells.graph_values import start_of
from isornn.cells.trace import graph_of

_SAMPLES, _STEPS, _STEEPEST, _HALVINGS = 8, 8, 16, 40
_GRID = torch.linspace(-12.0, 12.0, 4002, dtype=torch.float64, device="cpu")
_LEAST = 1e-3  # a continuous function changes by less over the last interval, also a cube root


@functools.cache
def jumping(cell: Cell) -> tuple[str, ...]:
    """The pre-activations and states along which a new state, or what a gate reads, jumps.

    Looked for between -12 and 12, along a state between the ends of where it comes to, from some random values of the
    others: where a function changes most between neighbouring points, the interval is halved until a continuous one
    hardly changes. States are those of some steps from 0, so that a cell may divide by one that stays positive, as
    xLSTM's normaliser does. An update that cannot be traced has none.

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
    reached = _reached(graph) if "update" not in graph.untraced else {}
    for leaf in sorted(set(graph.leaves.values()), key=lambda leaf: (leaf.kind, leaf.name)):
        values = [value for value in (*graph.update.values(), *graph.reads.values()) if leaf in graph.depends_on(value)]
        if leaf.kind in ("gate", "state") and any(_jumps(graph, value, leaf, reached) for value in values):
            found.append(leaf.name)
    return tuple(found)


def _reached(graph: CellGraph) -> dict[str, Tensor]:
    """By state its values at some steps from 0, (steps, samples, 1), driven by pre-activations of variance 9."""
    generator = torch.Generator().manual_seed(1)
    states = dict.fromkeys(graph.cell.states, torch.zeros(_SAMPLES, 1, dtype=torch.float64))
    steps = []
    for _ in range(_STEPS):
        drawn = 3 * torch.randn(len(graph.leaves), _SAMPLES, 1, generator=generator, dtype=torch.float64)
        values = dict(zip(graph.leaves.values(), drawn, strict=True))
        values |= {leaf: states[leaf.name] for leaf in values if leaf.kind == "state"}
        values |= {leaf: _start(graph, leaf, drawn[0]) for leaf in values if leaf.kind == "parameter"}
        value_of = graph.interpret(values.__getitem__, evaluate, graph.update.values())
        new = {name: torch.as_tensor(value_of(node), dtype=torch.float64) for name, node in graph.update.items()}
        states = {name: value.nan_to_num(0.0).expand(_SAMPLES, 1) for name, value in new.items()}
        steps.append(states)
    return {name: torch.stack([step[name] for step in steps]) for name in states}


def _start(graph: CellGraph, leaf: Leaf, like: Tensor) -> Tensor:
    return torch.full_like(like, start_of(graph.cell, leaf.name))


def _jumps(graph: CellGraph, value: Any, along: Leaf, reached: Mapping[str, Tensor]) -> bool:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(len(graph.leaves), _SAMPLES, 1, generator=generator, dtype=torch.float64)
    samples = dict(zip(graph.leaves.values(), drawn, strict=True))
    samples |= {leaf: reached[leaf.name][-1] for leaf in samples if leaf.kind == "state" and leaf.name in reached}
    grid = _GRID
    if along.kind == "state" and along.name in reached:
        low, high = reached[along.name].aminmax()
        grid = low + (high - low) * torch.linspace(0, 1, len(_GRID), dtype=torch.float64)

    def at(points: Tensor) -> Tensor:
        def leaf_value(leaf: Leaf) -> Tensor:
            if leaf == along:
                return points
            if leaf.kind == "parameter":
                return _start(graph, leaf, points)
            return samples[leaf].expand_as(points)

        found: Tensor = graph.interpret(leaf_value, evaluate, [value])(value)
        return found

    whole = at(grid.expand(_SAMPLES, -1))
    steepest = whole.diff().abs().nan_to_num(0.0).topk(_STEEPEST).indices
    low, high = grid[steepest], grid[steepest + 1]
    below, above = whole.gather(1, steepest), whole.gather(1, steepest + 1)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        between = at(middle)
        lower = (between - below).abs() > (above - between).abs()
        low, below = torch.where(lower, low, middle), torch.where(lower, below, between)
        high, above = torch.where(lower, middle, high), torch.where(lower, between, above)
    return bool(((above - below).abs() > _LEAST).any())
