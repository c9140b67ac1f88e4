"""Linear recurrent units: each unit multiplies its own state by a number of modulus below 1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from isornn.cells.arguments import is_number
from isornn.cells.cell import Cell, ParameterLaw, Reads, Values
from isornn.cells.errors import OptionError
from isornn.cells.gated import GatedCell

_PRESENT = Reads(state=False)


@dataclass(frozen=True)
class LRU(Cell):
    """``x = lambda x + gamma u`` with complex x and ``lambda = exp(-exp(nu_log) + i exp(theta_log))``, per unit.

    x and u have two real parts each, and ``gamma = exp(gamma_log)``, trained, starts at ``sqrt(1 - |lambda|^2)``.
    lambda starts uniform on a ring: ``|lambda|^2`` uniform between ``low^2`` and ``high^2``, its phase between 0 and
    ``max_phase``. The authors' read-out ``Re(C x) + D u`` is a matrix, so it belongs to the layer above. This layer's
    output is Re x, and its last state has both parts; two units with the same lambda whose input rows are (B_re, B_im)
    and (-B_im, B_re) give out Re x and -Im x, which is all that ``Re(C x)`` reads.

    Args:
        low, high: r_min and r_max, 0 <= low < high < 1.
        max_phase: in radians, above 0.

    Raises:
        OptionError: numbers outside these ranges.

    Source: Orvieto et al. 2023 (arXiv 2303.06349), section 3 and appendix A, whose biases are 0.

    >>> LRU().states, tuple(LRU().gates)
    (('re', 'im'), ('re', 'im'))
    """

    name = "lru"
    states = ("re", "im")
    gates = {"re": _PRESENT, "im": _PRESENT}
    equations = ("lambda = exp(-exp(nu_log) + i*exp(theta_log))", "x = lambda*x + exp(gamma_log)*(u_re + i*u_im)")

    low: float = 0.9
    high: float = 0.999
    max_phase: float = 6.28

    def __post_init__(self) -> None:
        numbers = all(map(is_number, (self.low, self.high, self.max_phase)))
        if not (numbers and 0 <= self.low < self.high < 1 and 0 < self.max_phase < math.inf):
            raise OptionError(
                f"options: low, high, max_phase = {self.low!r}, {self.high!r}, {self.max_phase!r} are not allowed; "
                "0 <= low < high < 1 and max_phase > 0, finite"
            )

    @property
    def parameters(self) -> Mapping[str, ParameterLaw]:
        def square(v: Tensor) -> Tensor:
            return self.low**2 + (self.high**2 - self.low**2) * v

        return {
            "nu_log": ParameterLaw(lambda v: (-0.5 * square(v).log()).log(), variate="modulus"),
            "gamma_log": ParameterLaw(lambda v: 0.5 * (-square(v)).log1p(), variate="modulus"),
            "theta_log": ParameterLaw(lambda v: (self.max_phase * v).log(), variate="phase"),
        }

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        modulus, phase, gamma = torch.exp(-torch.exp(u.nu_log)), torch.exp(u.theta_log), torch.exp(u.gamma_log)
        real, imaginary = modulus * torch.cos(phase), modulus * torch.sin(phase)
        return {
            "re": real * s.re - imaginary * s.im + gamma * u.re,
            "im": imaginary * s.re + real * s.im + gamma * u.im,
        }


@dataclass(frozen=True)
class RGLRU(GatedCell):
    """``h = a h + sqrt(1 - a^2) (i x)``, ``a = exp(-8 softplus(Lambda) r)``, ``r, i = sigma(u_r), sigma(u_i)``.

    The input enters pointwise; in Griffin a linear map and a short convolution come before it. Lambda starts so that a
    at r = 1 is uniform between 0.9 and 0.999.

    Source: De et al. 2024 (Griffin, arXiv 2402.19427), section 2.4, with full gate matrices. The authors' code has
    block diagonal ones, and draws ``a^(1/4)`` uniform between 0.81 and 0.998.

    >>> RGLRU().states, tuple(RGLRU().gates)
    (('h',), ('r', 'i'))
    """

    name = "rg_lru"
    gates = {"r": _PRESENT, "i": _PRESENT}
    parameters = {"Lambda": ParameterLaw(lambda v: (-(0.9 + 0.099 * v).log() / 8).expm1().log(), variate="a")}
    equations = ("a = exp(-8*softplus(Lambda)*sigma(u_r))", "h = a*h + sqrt(1-a^2)*sigma(u_i)*x")
    input_enters_pointwise = True

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        log_a = -8 * softplus(u.Lambda) * self.sigma(u.r)
        # 1 - a^2 by expm1: where a rounds to 1 its root would have no gradient
        return {"h": torch.exp(log_a) * s.h + torch.sqrt(-torch.expm1(2 * log_a)) * self.sigma(u.i) * x}
