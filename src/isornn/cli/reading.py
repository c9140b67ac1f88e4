"""What an analysis means in plain words."""

from __future__ import annotations

import math

from isornn.formatting import share, with_error_of
from isornn.theory.records import UNENDING, Analysis

# Verdicts by the largest ratio of reach to length that they are for.
_VERDICTS = ((0.1, "blind"), (0.5, "short"), (2.0, "fits"), (math.inf, "long"))
_MEANING = {
    "blind": "far fewer than",
    "short": "fewer than",
    "fits": "about",
    "long": "more than",
}


def verdict(analysis: Analysis, length: int) -> str:
    """``blind`` up to a tenth of the length, ``short`` to a half, ``fits`` to twice, ``long``; ``endless`` where
    changes do not fade, ``unknown`` where the theory has no answer."""
    reach = analysis.reach.number()
    if reach is None:
        return "endless" if analysis.reach.reason() == UNENDING else "unknown"
    return next(word for most, word in _VERDICTS if reach / length <= most)


def left_after(analysis: Analysis, length: int) -> float | None:
    """``P_T / P_1``: the share of the response that is left after T steps; ``None`` where it is not known.

    Beyond the end of the profile it is continued by chi, where the decay is exponential.
    """
    profile = analysis.profile
    last = min(length, profile.shape[-1] - 1)
    first, end = float(profile[1]), float(profile[last])
    if not (math.isfinite(first) and math.isfinite(end)) or first <= 0:
        return None
    if last == length:
        return end / first
    chi = analysis.chi.number()
    if chi is None or not 0 <= chi < 1:
        return None
    return end / first * chi ** (length - last)


def sentence(analysis: Analysis, length: int | None) -> str:
    """Over how many steps a change survives and, given T, what that means."""
    reach = analysis.reach.number()
    if reach is None:
        return f"No number of steps can be given: {analysis.reach.reason()}."
    seen = f"A change of the state is down to 1/e of its first effect {with_error_of(reach)} steps later"
    if length is None:
        return f"{seen}."
    left = left_after(analysis, length)
    remains = "" if left is None else f"; after {length} steps {share(left)} of it is left"
    return f"{seen}, {_MEANING[verdict(analysis, length)]} the {length} to be bridged{remains}."
