"""minGRU and minLSTM: the GRU and the LSTM without recurrent matrices, so that a scan computes them.

Source: Feng, Tung, Ahmed, Bengio & Hajimirsadeghi 2024 (arXiv 2410.01201). These are the paper's plain versions. Its
log-space versions, for float16 and long scans, replace ``u`` in the candidate by ``u + 1/2`` where u > 0 and
sigma(u) elsewhere, so that states stay positive: other networks, not another way to compute these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from isornn.cells.cell import Cell, Reads, Values
from isornn.cells.gated import GatedCell

_PRESENT = Reads(state=False)


@dataclass(frozen=True)
class MinGRU(GatedCell):
    """``h = (1-z) h + z u_n``, ``z = sigma(u_z)``; with f = 1 - z it is the T-RNN of Balduzzi & Ghifary 2016.

    Source: arXiv 2410.01201, section 3.1.

    >>> MinGRU().states, tuple(MinGRU().gates)
    (('h',), ('z', 'n'))
    """

    name = "min_gru"
    gates = {"z": _PRESENT, "n": _PRESENT}
    equations = ("z = sigma(u_z)", "h = (1-z)*h + z*u_n")

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        z = self.sigma(u.z)
        return {"h": (1 - z) * s.h + z * u.n}


@dataclass(frozen=True)
class MinLSTM(Cell):
    """``h = (f h + i u_n) / (f + i)``, ``f, i = sigma(u_f), sigma(u_i)``.

    ``f / (f + i)`` is computed as ``(1 + c sigma(u_f - u_i)) / (2 + c)``, ``c = e^-u_f + e^-u_i``: the same, and not
    0 / 0 where both gates are closed.

    Source: arXiv 2410.01201, section 3.2.

    >>> MinLSTM().states, tuple(MinLSTM().gates)
    (('h',), ('f', 'i', 'n'))
    """

    name = "min_lstm"
    gates = {"f": _PRESENT, "i": _PRESENT, "n": _PRESENT}
    equations = ("f, i = sigma(u_f), sigma(u_i)", "h = f/(f+i)*h + i/(f+i)*u_n")

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        # e^88 overflows in float32. A gate below -85 counts as e^-85 beside an open one, and as itself beside a closed.
        c = torch.exp(-u.f.clamp(min=-85)) + torch.exp(-u.i.clamp(min=-85))
        keep = (1 + c * torch.sigmoid(u.f - u.i)) / (2 + c)
        return {"h": keep * s.h + (1 - keep) * u.n}
