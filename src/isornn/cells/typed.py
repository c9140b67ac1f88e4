"""Strongly typed cells: gates read inputs only, the state is touched pointwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from isornn.cells.cell import Reads, Values
from isornn.cells.gated import GatedCell

_PRESENT = Reads(state=False)
_BOTH = Reads(state=False, previous_input=True)


@dataclass(frozen=True)
class TRNN(GatedCell):
    """``h = f h + (1-f) u_z``. Source: Balduzzi & Ghifary 2016, eqs. 15-17."""

    name = "t_rnn"
    gates = {"f": _PRESENT, "z": _PRESENT}
    remember, write, candidates = "f", "f", ("z",)
    equations = ("f = sigma(u_f)", "h = f*h + (1-f)*u_z")

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = self.sigma(u.f)
        return {"h": f * s.h + (1 - f) * u.z}


@dataclass(frozen=True)
class TLSTM(GatedCell):
    """``c = f c + (1-f) u_z``, output ``c tanh(u_o)``; gates read x_t and x_(t-1).

    Source: Balduzzi & Ghifary 2016, eqs. 25-29.
    """

    name = "t_lstm"
    states = ("c",)
    gates = {"f": _BOTH, "z": _BOTH, "o": _BOTH}
    remember, write, candidates = "f", "f", ("z",)
    equations = ("f = sigma(u_f)", "c = f*c + (1-f)*u_z", "output c*tanh(u_o)")

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = self.sigma(u.f)
        return {"c": f * s.c + (1 - f) * u.z}

    def output(self, s: Values, u: Values) -> Any:
        return s.c * torch.tanh(u.o)


@dataclass(frozen=True)
class TGRU(GatedCell):
    """``h = f h + u_z tanh(u_o)``; gates read x_t and x_(t-1).

    Source: Balduzzi & Ghifary 2016, eqs. 37-40 (no factor 1 - f, as printed).
    """

    name = "t_gru"
    gates = {"f": _BOTH, "z": _BOTH, "o": _BOTH}
    remember, candidates = "f", ("z", "o")
    equations = ("f = sigma(u_f)", "h = f*h + u_z*tanh(u_o)")

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": self.sigma(u.f) * s.h + u.z * torch.tanh(u.o)}
