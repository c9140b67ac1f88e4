"""Symbol and meaning of every quantity that commands, figures and pages show."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Label:
    """A quantity as it is shown.

    Args:
        symbol: as the papers write it.
        meaning: what it is, with its unit.
    """

    symbol: str
    meaning: str

    def __str__(self) -> str:
        return f"{self.symbol}: {self.meaning}"


_MEAN = Label("E[h]", "mean of the state")
_SECOND_MOMENT = Label("E[h²]", "second moment of the state")
_CORRELATION = Label("C*", "stable correlation of two sequences' states")
_M1 = Label("m₁", "mean squared singular value of the Jacobian")
_M2 = Label("m₂", "mean fourth power of its singular values")
_VARIANCE = Label("m₂ - m₁²", "variance of its squared singular values")

# By the names of `Analysis.quantities`, of phase diagrams and of tied networks.
LABELS = {
    "xi": Label("ξ", "time scale -1/ln χ, steps"),
    "reach": Label("reach", "steps after the first until a perturbation's mean square falls to 1/e"),
    "chi": Label("χ", "factor per step of the response, at the stable correlation C*"),
    "chi_1": Label("χ₁", "factor per step of the response, at correlation 1"),
    "fixed_point.correlation": _CORRELATION,
    "fixed_point.second_moment": _SECOND_MOMENT,
    "fixed_point.mean": _MEAN,
    "jacobian.mean": _M1,
    "jacobian.second_moment": _M2,
    "jacobian.variance": _VARIANCE,
    "xi_q": Label("ξ_Q", "time scale of the moments, steps"),
    "lyapunov": Label("λ", "Lyapunov exponent, ln |dh| per step"),
    "m1": _M1,
    "variance": _VARIANCE,
    "second_moment": _SECOND_MOMENT,
    "correlation": _CORRELATION,
}
