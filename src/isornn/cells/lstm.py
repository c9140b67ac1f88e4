"""The long short-term memory, and the papers' peephole variant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from isornn.cells.cell import Reads, Values
from isornn.cells.gated import GatedCell


@dataclass(frozen=True)
class LSTM(GatedCell):
    """``c = f c + i tanh(u_g)``, ``h = o tanh(c)``; every pre-activation reads h: torch.nn.LSTM.

    Source: Gilboa et al. 2019 eq. 20 (their r is the candidate g here).
    """

    name = "lstm"
    states = ("h", "c")
    gates = {"i": Reads(), "f": Reads(), "g": Reads(), "o": Reads()}
    remember, write, candidates = "f", "i", ("g",)
    equations = ("c = sigma(u_f)*c + sigma(u_i)*tanh(u_g)", "h = sigma(u_o)*tanh(c)")

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        c = self.sigma(u.f) * s.c + self.sigma(u.i) * torch.tanh(u.g)
        return {"h": self.sigma(u.o) * torch.tanh(c), "c": c}


@dataclass(frozen=True)
class Peephole(GatedCell):
    """``c = f c + i tanh(u_g)``; every pre-activation reads **c** through a full matrix; output ``o tanh(c)``.

    Source: Gilboa et al. 2019 Table 1. Gers' diagonal peepholes beside a recurrent h are another cell.
    """

    name = "peephole"
    states = ("c",)
    gates = {"i": Reads(), "f": Reads(), "g": Reads(), "o": Reads()}
    remember, write, candidates = "f", "i", ("g",)
    equations = ("c = sigma(u_f)*c + sigma(u_i)*tanh(u_g)", "output sigma(u_o)*tanh(c), not fed back")

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"c": self.sigma(u.f) * s.c + self.sigma(u.i) * torch.tanh(u.g)}

    def output(self, s: Values, u: Values) -> Any:
        return self.sigma(u.o) * torch.tanh(s.c)
