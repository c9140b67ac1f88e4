"""The simple recurrent unit: no recurrent matrix; each gate reads its own unit's state with one weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isornn.cells.cell import ParameterLaw, Reads, Values
from isornn.cells.gated import GatedCell

_PRESENT = Reads(state=False)


@dataclass(frozen=True)
class SRU(GatedCell):
    """``c' = f c + (1-f) u_z``, output ``h = r c' + (1-r) u_p``; f and r read the old c of their own unit.

    ``f = sigma(u_f + v_f c)``, ``r = sigma(u_r + v_r c)``. ``u_p`` is the skip connection projected to N units, as the
    authors' code has it where D is not N; their rescaling of it is a factor of its matrix. v starts uniform with
    variance 1/2, as in their code.

    Source: Lei, Zhang, Wang, Dai & Artzi 2018, eqs. 1-4 (arXiv 1709.02755).

    >>> SRU().states, tuple(SRU().gates)
    (('h', 'c'), ('f', 'r', 'z', 'p'))
    """

    name = "sru"
    states = ("h", "c")
    gates = {"f": _PRESENT, "r": _PRESENT, "z": _PRESENT, "p": _PRESENT}
    equations = ("f, r = sigma(u_f + v_f*c), sigma(u_r + v_r*c)", "c' = f*c + (1-f)*u_z", "h = r*c' + (1-r)*u_p")

    @property
    def parameters(self) -> Mapping[str, ParameterLaw]:
        return {name: ParameterLaw(lambda v: (2 * v - 1) * 1.5**0.5, variate=name) for name in ("v_f", "v_r")}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f, r = self.sigma(u.f + u.v_f * s.c), self.sigma(u.r + u.v_r * s.c)
        c = f * s.c + (1 - f) * u.z
        return {"h": r * c + (1 - r) * u.p, "c": c}
