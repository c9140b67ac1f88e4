"""The two gated recurrent units: torch's (reset after the matrix) and Cho's (reset before it)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from isornn.cells.cell import Reads, Values
from isornn.cells.gated import GatedCell


@dataclass(frozen=True)
class GRU(GatedCell):
    """``h = z h + (1-z) tanh(u_nx + r u_nh)``: torch.nn.GRU, which cuDNN runs.

    ``nx`` reads the input and ``nh`` the state, each with its own bias.

    >>> GRU().states, tuple(GRU().gates)
    (('h',), ('r', 'z', 'nx', 'nh'))
    """

    name = "gru"
    gates = {"r": Reads(), "z": Reads(), "nx": Reads(state=False), "nh": Reads(input=False)}
    equations = ("r, z = sigma(u_r), sigma(u_z)", "h = z*h + (1-z)*tanh(u_nx + r*u_nh)")

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        z = self.sigma(u.z)
        return {"h": z * s.h + (1 - z) * torch.tanh(u.nx + self.sigma(u.r) * u.nh)}


@dataclass(frozen=True)
class ChoGRU(GatedCell):
    """``h = z h + (1-z) tanh(u_n)``, ``u_n = W_n (r h) + U_n x + b_n``: the papers' GRU.

    Source: Gilboa et al. 2019 Table 1 (their f, r, r2 are z, r, n here); Balduzzi & Ghifary 2016, eqs. 32-35 (their
    f, z, o are z, r, n here).

    >>> ChoGRU().states, tuple(ChoGRU().gates)
    (('h',), ('r', 'z', 'n'))
    """

    name = "gru_cho"
    gates = {"r": Reads(), "z": Reads(), "n": Reads()}
    equations = ("r, z = sigma(u_r), sigma(u_z)", "n reads r*h", "h = z*h + (1-z)*tanh(u_n)")

    def read(self, gate: str, s: Values, u: Values) -> Any:
        return self.sigma(u.r) * s.h if gate == "n" else s.h

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        z = self.sigma(u.z)
        return {"h": z * s.h + (1 - z) * torch.tanh(u.n)}
