"""LSTM and GRU with a refine gate, which moves the forget gate where its own gradient is small.

The forget gate f and the refine gate r make one effective gate ``g = r (1 - (1-f)^2) + (1-r) f^2``. It is between
f^2 and ``1 - (1-f)^2``, and it is f at r = 1/2. The authors start both gates with `isornn.init.uniform_gate_`: f
uniform over units, and the bias of r the negative of that of f.

Source: Gu, Gulcehre, Paine, Hoffman & Pascanu 2020 (arXiv 1910.09890), eqs. 5-10 and appendix A; UR stands for uniform
start, refine gate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from isornn.cells.cell import Reads, Values
from isornn.cells.gated import GatedCell


def refined(f: Any, r: Any) -> Any:
    """``r (1 - (1-f)^2) + (1-r) f^2``.

    >>> refined(0.5, 1.0), refined(0.5, 0.5), refined(0.5, 0.0)
    (0.75, 0.5, 0.25)
    """
    return r * (1 - (1 - f) ** 2) + (1 - r) * f**2


@dataclass(frozen=True)
class URLSTM(GatedCell):
    """``g = r (1 - (1-f)^2) + (1-r) f^2``, ``c = g c + (1-g) tanh(u_z)``, ``h = o tanh(c)``.

    Source: arXiv 1910.09890, UR-LSTM; ``u_z`` makes the candidate.

    >>> URLSTM().states, tuple(URLSTM().gates)
    (('h', 'c'), ('f', 'r', 'z', 'o'))
    """

    name = "ur_lstm"
    states = ("h", "c")
    gates = {"f": Reads(), "r": Reads(), "z": Reads(), "o": Reads()}
    equations = (
        "f, r = sigma(u_f), sigma(u_r)",
        "g = r*(1-(1-f)^2) + (1-r)*f^2",
        "c = g*c + (1-g)*tanh(u_z)",
        "h = sigma(u_o)*tanh(c)",
    )

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        g = refined(self.sigma(u.f), self.sigma(u.r))
        c = g * s.c + (1 - g) * torch.tanh(u.z)
        return {"h": self.sigma(u.o) * torch.tanh(c), "c": c}


@dataclass(frozen=True)
class URGRU(GatedCell):
    """``g = r (1 - (1-f)^2) + (1-r) f^2``, ``h = g h + (1-g) tanh(u_n)``, ``u_n = W_n (q h) + U_n x + b_n``.

    q is the GRU's reset gate, r the refine gate.

    Source: arXiv 1910.09890, UR-GRU.

    >>> URGRU().states, tuple(URGRU().gates)
    (('h',), ('f', 'r', 'q', 'n'))
    """

    name = "ur_gru"
    gates = {"f": Reads(), "r": Reads(), "q": Reads(), "n": Reads()}
    equations = (
        "f, r, q = sigma(u_f), sigma(u_r), sigma(u_q)",
        "g = r*(1-(1-f)^2) + (1-r)*f^2",
        "n reads q*h",
        "h = g*h + (1-g)*tanh(u_n)",
    )

    def read(self, gate: str, s: Values, u: Values) -> Any:
        return self.sigma(u.q) * s.h if gate == "n" else s.h

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        g = refined(self.sigma(u.f), self.sigma(u.r))
        return {"h": g * s.h + (1 - g) * torch.tanh(u.n)}
