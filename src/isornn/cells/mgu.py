"""The minimal gated unit: one gate forgets, writes and resets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from isornn.cells.cell import Reads, Values
from isornn.cells.gated import GatedCell


@dataclass(frozen=True)
class MGU(GatedCell):
    """``h = (1-f) h + f tanh(u_n)``, ``u_n = W_n (f h) + U_n x + b_n``.

    Source: Zhou et al. 2016, eqs. 6a-6c.

    >>> MGU().states, tuple(MGU().gates)
    (('h',), ('f', 'n'))
    """

    name = "mgu"
    gates = {"f": Reads(), "n": Reads()}
    equations = ("f = sigma(u_f)", "n reads f*h", "h = (1-f)*h + f*tanh(u_n)")

    def read(self, gate: str, s: Values, u: Values) -> Any:
        return self.sigma(u.f) * s.h if gate == "n" else s.h

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = self.sigma(u.f)
        return {"h": (1 - f) * s.h + f * torch.tanh(u.n)}
