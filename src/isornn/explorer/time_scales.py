"""The time scales of the units: how long each retains its state by its gates alone, without recurrent weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isornn.cells import Spec
from isornn.figures import Panel
from isornn.formatting import rounded, with_error_of
from isornn.present.time_constants import TITLE, X, Y, time_constants_panel
from isornn.theory import Analysis, NotPolynomial
from isornn.theory.carry import carry_of

_SHARES = (0.9, 0.5, 0.1)
_NEVER = 1e12  # steps: a unit that keeps all but one in so many is drawn as one that never forgets


@dataclass(frozen=True)
class TimeScales:
    """Time scales of representative units in steps, rising, and the share of all units that each represents.

    A unit's time scale is ``-1 / ln E[A_a A_b]``, with ``s' = A s + ..`` its slow state: that of its part in the
    response, as xi is of the whole.
    """

    state: str
    steps: np.ndarray
    share: np.ndarray

    def beyond(self, steps: float) -> float:
        """The share of units with a time scale of at least so many steps."""
        return float(self.share[self.steps >= steps].sum())

    def uncertainty(self, share: float) -> float:
        """Standard error of a share, 0 where the units are nodes of a deterministic rule, whose weights differ."""
        sampled = len(self.share) > 1 and bool(np.ptp(self.share) == 0)
        return float(np.sqrt(share * (1 - share) / len(self.share))) if sampled else 0.0

    def reached_by(self, share: float) -> float:
        """The time scale that this share of the units has or exceeds."""
        slowest_first = np.cumsum(self.share[::-1])
        return float(self.steps[::-1][min(int(np.searchsorted(slowest_first, share - 1e-12)), len(self.steps) - 1)])


def time_scales(spec: Spec, second_moment: float) -> TimeScales:
    """Of the units of ``spec`` at the given E[h^2].

    Raises:
        NotPolynomial: no state carries itself affinely.
    """
    carry = carry_of(spec, second_moment)
    rates = carry.rates.clamp(0, 1).numpy()
    with np.errstate(divide="ignore"):
        steps = np.minimum(-1 / np.log(np.clip(rates, 1e-300, 1 - 1 / _NEVER)), _NEVER)
    order = np.argsort(steps)
    return TimeScales(carry.state, steps[order], carry.weight.numpy()[order])


def units_of(analysis: Analysis) -> TimeScales | str:
    """The time scales, or why there are none."""
    second = analysis.fixed_point.second_moment.number()
    if second is None:
        return analysis.fixed_point.second_moment.reason() or ""
    try:
        return time_scales(analysis.spec, second)
    except NotPolynomial as reason:
        return f"Units have no time scale of their own: {reason}."


def time_scales_panel(found: TimeScales | str, length: int) -> Panel:
    """The share of units whose time scale is at least t; nothing, and why, where there are none."""
    caption = time_scales_caption(found, length)
    if isinstance(found, str):
        return Panel(TITLE, X, Y, caption=caption)
    return time_constants_panel(found.steps, found.share, length, caption)


def time_scales_caption(found: TimeScales | str, length: int) -> str:
    """The spread in words, and the share beyond T."""
    if isinstance(found, str):
        return found
    if found.steps[-1] - found.steps[0] < 1e-9 * found.steps[-1]:
        return (
            f"Every unit's {found.state} keeps what it has for {_steps(found.steps[0])}, without what weights pass on."
        )
    spread = ", ".join(f"{share:.0%} at least {_steps(found.reached_by(share))}" for share in _SHARES)
    beyond = found.beyond(length)
    shown = with_error_of(100 * beyond, 100 * found.uncertainty(beyond))
    return f"Of the units' {found.state}, without what weights pass on: {spread}; {shown} % beyond T = {length:,}."


def _steps(steps: float) -> str:
    return "for ever" if steps >= _NEVER else f"{rounded(steps)} steps"
