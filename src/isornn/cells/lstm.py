"""The long short-term memory and its variants: the papers' peepholes, Gers' peepholes, coupled gates."""

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

    >>> LSTM().states, tuple(LSTM().gates)
    (('h', 'c'), ('i', 'f', 'g', 'o'))
    """

    name = "lstm"
    states = ("h", "c")
    gates = {"i": Reads(), "f": Reads(), "g": Reads(), "o": Reads()}
    equations = ("c = sigma(u_f)*c + sigma(u_i)*tanh(u_g)", "h = sigma(u_o)*tanh(c)")

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        c = self.sigma(u.f) * s.c + self.sigma(u.i) * torch.tanh(u.g)
        return {"h": self.sigma(u.o) * torch.tanh(c), "c": c}


@dataclass(frozen=True)
class Peephole(GatedCell):
    """``c = f c + i tanh(u_g)``; every pre-activation reads **c** through a full matrix; output ``o tanh(c)``.

    Source: Gilboa et al. 2019 Table 1. The LSTM with Gers' diagonal peepholes and a recurrent h is another
    cell, `GersLSTM`.

    >>> Peephole().states, tuple(Peephole().gates)
    (('c',), ('i', 'f', 'g', 'o'))
    """

    name = "peephole"
    states = ("c",)
    gates = {"i": Reads(), "f": Reads(), "g": Reads(), "o": Reads()}
    equations = ("c = sigma(u_f)*c + sigma(u_i)*tanh(u_g)", "output sigma(u_o)*tanh(c), not fed back")

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"c": self.sigma(u.f) * s.c + self.sigma(u.i) * torch.tanh(u.g)}

    def output(self, s: Values, u: Values) -> Any:
        return self.sigma(u.o) * torch.tanh(s.c)


@dataclass(frozen=True)
class GersLSTM(GatedCell):
    """The LSTM whose gates also read their own unit's c, each with one weight per unit.

    ``i = sigma(u_i + p_i c)``, ``f = sigma(u_f + p_f c)``, ``c' = f c + i tanh(u_g)``, ``o = sigma(u_o + p_o c')``,
    ``h = o tanh(c')``; the recurrent matrices read h. Without its peepholes p, which start at 0, it is `LSTM`.

    Source: Gers, Schraudolph & Schmidhuber 2002; the baseline of Vorontsov et al. 2017.

    >>> GersLSTM().parameters
    {'peep_i': 0.0, 'peep_f': 0.0, 'peep_o': 0.0}
    """

    name = "lstm_gers"
    states = ("h", "c")
    gates = {"i": Reads(), "f": Reads(), "g": Reads(), "o": Reads()}
    parameters = {"peep_i": 0.0, "peep_f": 0.0, "peep_o": 0.0}
    equations = (
        "i, f = sigma(u_i + p_i*c), sigma(u_f + p_f*c)",
        "c' = f*c + i*tanh(u_g)",
        "h = sigma(u_o + p_o*c')*tanh(c')",
    )

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        i, f = self.sigma(u.i + u.peep_i * s.c), self.sigma(u.f + u.peep_f * s.c)
        c = f * s.c + i * torch.tanh(u.g)
        return {"h": self.sigma(u.o + u.peep_o * c) * torch.tanh(c), "c": c}


@dataclass(frozen=True)
class CoupledLSTM(GatedCell):
    """``c = f c + (1-f) tanh(u_z)``, ``h = tanh(u_o) tanh(c)``: the LSTM that strongly typed cells are compared with.

    Input and forget gate are coupled, as in Greff et al. 2015's CIFG variant, and the output gate is a tanh.

    Source: Balduzzi & Ghifary 2016, eqs. 19-23, as printed; gates are named as there.

    >>> CoupledLSTM().gates.keys()
    dict_keys(['f', 'z', 'o'])
    """

    name = "lstm_coupled"
    states = ("h", "c")
    gates = {"f": Reads(), "z": Reads(), "o": Reads()}
    equations = ("f = sigma(u_f)", "c = f*c + (1-f)*tanh(u_z)", "h = tanh(u_o)*tanh(c)")

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = self.sigma(u.f)
        c = f * s.c + (1 - f) * torch.tanh(u.z)
        return {"h": torch.tanh(u.o) * torch.tanh(c), "c": c}
