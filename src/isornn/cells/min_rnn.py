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

    ``f / (f + i)`` is computed as ``(1 + e^-u_i) / (2 + e^-u_f + e^-u_i)``: the same, and not 0 / 0 where both gates
    are closed.

    Source: arXiv 2410.01201, section 3.2.

    >>> MinLSTM().states, tuple(MinLSTM().gates)
    (('h',), ('f', 'i', 'n'))
    """

    name = "min_lstm"
    gates = {"f": _PRESENT, "i": _PRESENT, "n": _PRESENT}
    equations = ("f, i = sigma(u_f), sigma(u_i)", "h = f/(f+i)*h + i/(f+i)*u_n")

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        # e^88 overflows in float32. Where both exponentials are above e^40, the numbers beside them do not count, and a
        # common factor brings the smaller one down to e^40. Of the larger one, what is beyond e^85 does not count.
        common = torch.maximum(u.f, u.i).detach().clamp(max=-40) + 40
        f, i = torch.exp((common - u.f).clamp(max=85)), torch.exp((common - u.i).clamp(max=85))
        keep = (1 + i) / (2 + f + i)
        return {"h": keep * s.h + (1 - keep) * u.n}
