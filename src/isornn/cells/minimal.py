"""minimalRNN: one gate between the state and the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isornn.cells.cell import Reads, Values
from isornn.cells.gated import GatedCell


@dataclass(frozen=True)
class Minimal(GatedCell):
    """``h = f h + (1-f) x``, ``f = sigma(u_u)``; the input enters pointwise, so D = N.

    Source: Chen, Pennington, Schoenholz 2018, eqs. 16-18 (the update gate is called u there).

    >>> Minimal().states, tuple(Minimal().gates)
    (('h',), ('u',))
    """

    name = "minimal"
    gates = {"u": Reads()}
    equations = ("f = sigma(u_u)", "h = f*h + (1-f)*x")
    input_enters_pointwise = True

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = self.sigma(u.u)
        return {"h": f * s.h + (1 - f) * x}
