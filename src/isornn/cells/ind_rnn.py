"""The independently recurrent network: one recurrent weight per unit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from isornn.cells.arguments import is_number
from isornn.cells.cell import Cell, ParameterLaw, Reads, Values
from isornn.cells.errors import OptionError


@dataclass(frozen=True)
class IndRNN(Cell):
    """``h = relu(w h + u_z)``, w per unit, started uniform between ``low`` and ``high``.

    The equation is that of the minimal strongly typed cell T-MR (`isornn.cells.typed.TMR`; Balduzzi & Ghifary 2016, eq.
    65), which came first; there w starts at 1. At w near 1 a unit's stationary E[h^2] grows as ``1/(1-w)``, so with
    ``high = 1`` its mean over units has no limit, and `isornn.theory.analyze` no fixed point: such networks are for
    sequences of finite length.

    Args:
        low, high: the ends of w, ``low <= high``. For sequences of length T the authors' last layer starts between
            ``2^(-1/T)`` and ``2^(1/T)``, and they keep ``|w| <= 2^(1/T)`` in training.

    Raises:
        OptionError: ends that are not finite or not in order.

    Source: Li, Li, Cook, Zhu & Gao 2018 (arXiv 1803.04831), eqs. 3 and 4 and section 4.

    >>> IndRNN().states, tuple(IndRNN().gates)
    (('h',), ('z',))
    """

    name = "ind_rnn"
    gates = {"z": Reads(state=False)}
    equations = ("h = relu(w*h + u_z)",)

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not (is_number(self.low) and is_number(self.high)) or not -math.inf < self.low <= self.high < math.inf:
            raise OptionError(f"options: low, high = {self.low!r}, {self.high!r} are not allowed; low <= high, finite")

    @property
    def parameters(self) -> Mapping[str, ParameterLaw]:
        return {"w": ParameterLaw(lambda v: self.low + (self.high - self.low) * v, variate="w")}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.relu(u.w * s.h + u.z)}
