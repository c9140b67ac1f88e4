"""Strongly typed cells: gates read inputs only, the state is updated pointwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from isornn.cells.arguments import is_number
from isornn.cells.cell import Cell, Reads, Values
from isornn.cells.errors import OptionError
from isornn.cells.gated import GatedCell

_PRESENT = Reads(state=False)
_BOTH = Reads(state=False, previous_input=True)


@dataclass(frozen=True)
class TRNN(GatedCell):
    """``h = f h + (1-f) u_z``. Source: Balduzzi & Ghifary 2016, eqs. 15-17.

    >>> TRNN().states, tuple(TRNN().gates)
    (('h',), ('f', 'z'))
    """

    name = "t_rnn"
    gates = {"f": _PRESENT, "z": _PRESENT}
    equations = ("f = sigma(u_f)", "h = f*h + (1-f)*u_z")

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = self.sigma(u.f)
        return {"h": f * s.h + (1 - f) * u.z}


@dataclass(frozen=True)
class TLSTM(GatedCell):
    """``c = f c + (1-f) u_z``, output ``c tanh(u_o)``; gates read x_t and x_(t-1).

    Source: Balduzzi & Ghifary 2016, eqs. 25-29.

    >>> TLSTM().states, tuple(TLSTM().gates)
    (('c',), ('f', 'z', 'o'))
    """

    name = "t_lstm"
    states = ("c",)
    gates = {"f": _BOTH, "z": _BOTH, "o": _BOTH}
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

    >>> TGRU().states, tuple(TGRU().gates)
    (('h',), ('f', 'z', 'o'))
    """

    name = "t_gru"
    gates = {"f": _BOTH, "z": _BOTH, "o": _BOTH}
    equations = ("f = sigma(u_f)", "h = f*h + u_z*tanh(u_o)")

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": self.sigma(u.f) * s.h + u.z * torch.tanh(u.o)}


@dataclass(frozen=True)
class TMR(Cell):
    """``h = relu(scale h + u_z)`` with a trained scale per unit: the minimal strongly typed cell.

    It is the later IndRNN (Li et al. 2018). The scale starts at 1, where the state is retained, as in the
    identity start of Le et al. 2015.

    Source: Balduzzi & Ghifary 2016, eq. 65 (their b is the scale; their c the bias of u_z).

    >>> TMR().parameters
    {'scale': 1.0}
    """

    name = "t_mr"
    gates = {"z": _PRESENT}
    parameters = {"scale": 1.0}
    equations = ("h = relu(scale*h + u_z)",)

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.relu(u.scale * s.h + u.z)}


@dataclass(frozen=True)
class SCRN(Cell):
    """``s = alpha s + (1-alpha) u_z``: the state layer of a structurally constrained recurrent network.

    Args:
        alpha: the memory of every unit, from 0 to 1; 0.95 as in Mikolov et al. 2015.

    Raises:
        OptionError: alpha is not a number from 0 to 1.

    Source: Mikolov et al. 2015; Balduzzi & Ghifary 2016, eq. 14.

    >>> SCRN(alpha=0.5).update(Values(s=2.0), Values(z=1.0), None)
    {'s': 1.5}
    """

    name = "scrn"
    states = ("s",)
    gates = {"z": _PRESENT}
    equations = ("s = alpha*s + (1-alpha)*u_z",)

    alpha: float = 0.95

    def __post_init__(self) -> None:
        if not is_number(self.alpha) or not 0 <= self.alpha <= 1:
            raise OptionError(f"options.alpha: {self.alpha!r} is not a number from 0 to 1")

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"s": self.alpha * s.s + (1 - self.alpha) * u.z}
