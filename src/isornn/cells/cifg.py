"""The LSTM with a coupled input and forget gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from isornn.cells.cell import Reads, Values
from isornn.cells.gated import GatedCell


@dataclass(frozen=True)
class CIFG(GatedCell):
    """``c = f c + (1-f) tanh(u_g)``, ``h = o tanh(c)``: the LSTM whose input gate is ``1 - f``.

    `isornn.cells.lstm.CoupledLSTM` has a tanh for the output gate's sigmoid.

    Source: Greff et al. 2015, section 3.3 (CIFG: there ``f = 1 - i``), without their peepholes.

    >>> CIFG().states, tuple(CIFG().gates)
    (('h', 'c'), ('f', 'g', 'o'))
    """

    name = "cifg"
    states = ("h", "c")
    gates = {"f": Reads(), "g": Reads(), "o": Reads()}
    equations = ("f = sigma(u_f)", "c = f*c + (1-f)*tanh(u_g)", "h = sigma(u_o)*tanh(c)")

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = self.sigma(u.f)
        c = f * s.c + (1 - f) * torch.tanh(u.g)
        return {"h": self.sigma(u.o) * torch.tanh(c), "c": c}
