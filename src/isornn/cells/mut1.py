"""MUT1: the best cell of a search over architectures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from isornn.cells.cell import Reads, Values
from isornn.cells.gated import GatedCell


@dataclass(frozen=True)
class MUT1(GatedCell):
    """``h = (1-z) h + z tanh(u_n + tanh(x))``, ``u_n = W_n (r h) + b_n``; z reads the input alone, r input and state.

    The input enters the candidate pointwise, so D = N. z and the sum over steps are strongly typed, as one basis is
    enough for them; the reset gate is not.

    Source: Jozefowicz, Zaremba & Sutskever 2015, MUT1; Balduzzi & Ghifary 2016, section 3.1.
    """

    name = "mut1"
    gates = {"z": Reads(state=False), "r": Reads(), "n": Reads(input=False)}
    equations = ("z = sigma(u_z)", "r = sigma(u_r)", "n reads r*h", "h = (1-z)*h + z*tanh(u_n + tanh(x))")
    input_enters_pointwise = True

    def read(self, gate: str, s: Values, u: Values) -> Any:
        return self.sigma(u.r) * s.h if gate == "n" else s.h

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        z = self.sigma(u.z)
        return {"h": (1 - z) * s.h + z * torch.tanh(u.n + torch.tanh(x))}
