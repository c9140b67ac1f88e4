"""Sentences that explain an analysis."""

from __future__ import annotations

import math

from isornn.formatting import rounded, share
from isornn.theory.records import UNENDING, Analysis

# Verdicts by the largest ratio of reach to length that they are for.
_VERDICTS = ((0.1, "blind"), (0.5, "short"), (2.0, "fits"), (math.inf, "long"))
_MEANING = {
    "blind": "far fewer than",
    "short": "fewer than",
    "fits": "within a factor of 2 of",
    "long": "more than",
}


def verdict(analysis: Analysis, length: int) -> str:
    """``blind`` up to a tenth of the length, ``short`` to a half, ``fits`` to twice, ``long``; ``endless`` where
    changes do not fade, ``unknown`` where the theory gives no reach."""
    reach = analysis.reach.number()
    if reach is None:
        return "endless" if analysis.reach.reason() == UNENDING else "unknown"
    return next(word for most, word in _VERDICTS if reach / length <= most)


def left_after(analysis: Analysis, length: int) -> float | None:
    """``sqrt(P_T / P_1)``: the norm of the response after T steps relative to one step; ``None`` where unknown.

    At T = reach it is ``e^(-1/2)``, 61 %, as the reach is of the mean square.

    Beyond the end of the profile it is continued by chi, where the decay is exponential.
    """
    profile = analysis.profile
    last = min(length, profile.shape[-1] - 1)
    first, end = float(profile[1]), float(profile[last])
    if not (math.isfinite(first) and math.isfinite(end)) or first <= 0:
        return None
    if last == length:
        return math.sqrt(end / first)
    chi = analysis.chi.number()
    if chi is None or not 0 <= chi < 1:
        return None
    return math.sqrt(end / first * chi ** (length - last))


def sentence(analysis: Analysis, length: int | None) -> str:
    """The reach, over which the mean square of a perturbation falls to 1/e, and its relation to T if given."""
    reach = analysis.reach.number()
    if reach is None:
        return f"No number of steps can be given: {analysis.reach.reason()}."
    seen = f"The mean square of a perturbation falls to 1/e of its first value in {rounded(reach)} steps"
    if length is None:
        return f"{seen}."
    left = left_after(analysis, length)
    remains = "" if left is None else f"; after {length} steps its norm is {share(left)} of its first value"
    return f"{seen}, {_MEANING[verdict(analysis, length)]} the required {length}{remains}."
