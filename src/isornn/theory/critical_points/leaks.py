"""Cells without gates that keep part of their states at every step, for which `critical` has no start."""

from __future__ import annotations

import math

import torch

from isornn.cells import Cell, SpecError, Values, drawn_parameters
from isornn.cells.graph import Leaf
from isornn.cells.trace import graph_of


def refuse_leak(cell: Cell) -> None:
    """Refuse a cell without gates that keeps part of its states: ``h = (1 - a) h + a tanh(u_h)``, say.

    Weights that theory draws anew at each step add ``a^2 w`` to what is kept of a squared change, ``(1 - a)^2``. With
    a = .1 that is isometric at w = 19. Where weights stay, the linear part has eigenvalues up to ``.9 + .1 sqrt(19)``.

    Raises:
        SpecError: for such a cell.
    """
    update = graph_of(cell).update
    leaking = [state for state, new in update.items() if Leaf("state", state) in graph_of(cell).depends_on(new)]
    leaking = [state for state in leaking if not math.isclose(_kept(cell, state), 1.0, rel_tol=1e-12)]
    if leaking and any(reads.state for reads in cell.gates.values()):
        raise SpecError(
            "cell",
            cell.name,
            f"part of {leaking[0]} is kept at every step by no gate (a leak), and the recurrent weights that in theory "
            "add a reach of T, where they are drawn anew at each step, make a network unstable, where they stay. A "
            "leak of 1/(2T) has reach T by itself; draw the weights by orthogonal_ or standard_",
        )


def _kept(cell: Cell, state: str) -> float:
    """What a state keeps of a change by 1 in a step, beside states and pre-activations of 0."""
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    gates, states = (dict.fromkeys(names, zero) for names in (cell.gates, cell.states))
    numbers = Values(**gates, **drawn_parameters(cell, 1, torch.Generator().manual_seed(0)))
    before, after = (cell.update(Values(**states | {state: h}), numbers, zero)[state] for h in (zero, one))
    return float(after - before)
