"""Norms of a profile as powers of ten, which go far below what a float can hold."""

from __future__ import annotations

import math

import numpy as np

from isornn.diagnosis import Profile
from isornn.formatting import power_of_ten, with_error_of

_ROUNDING = 1e-9  # of the logarithm's error
_DEEPEST = 400  # decades: smaller values are not drawn


def decades(profile: Profile, state: str = "all") -> np.ndarray:
    """log10 of the norm over its value after one step (after none, where nothing is left after one)."""
    logs = profile.log_norm[state].numpy() / math.log(10)
    whole = profile.log_norm["all"].numpy() / math.log(10)
    first = whole[1] if len(whole) > 1 and math.isfinite(whole[1]) else whole[0]
    return logs - first if math.isfinite(first) else np.full_like(logs, -math.inf)


def drawable(values: np.ndarray) -> np.ndarray:
    """The same with gaps where nothing is left, or less than any figure shows."""
    return np.where(np.isfinite(values) & (values > -_DEEPEST), values, np.nan)


def left_after(profile: Profile, length: int) -> str:
    """What is left of the norm after ``length`` steps, as part of that after one, with its standard error; ``-`` beyond
    what was measured."""
    lags = profile.lags.tolist()
    if length > lags[-1]:
        return "-"
    # Where lags are thinned, the last one before.
    place = max(number for number, lag in enumerate(lags) if lag <= length)
    exponent = float(decades(profile)[place])
    error = math.nan if profile.ratio_error is None else float(profile.ratio_error[place])
    left = power_of_ten(exponent)
    if lags[place] <= 1 or not math.isfinite(exponent) or error < _ROUNDING:
        return left
    if math.isnan(error):
        return f"{left} (error unknown)"
    if -3 < exponent < 4:
        return with_error_of(10**exponent, error * 10**exponent)
    return f"{left} ± {power_of_ten(exponent + math.log10(error))}"
