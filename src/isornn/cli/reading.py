"""Sentences that explain an analysis."""

from __future__ import annotations

from isornn.formatting import with_error, with_error_of
from isornn.theory.compared_starts import left_after, left_stderr, verdict
from isornn.theory.records import Analysis

_MEANING = {
    "blind": "far fewer than",
    "short": "fewer than",
    "fits": "within a factor of 2 of",
    "long": "more than",
}


def sentence(analysis: Analysis, length: int | None) -> str:
    """The reach, over which the mean square of a perturbation falls to 1/e, and its relation to T if given."""
    if analysis.reach.number() is None:
        return f"No number of steps can be given: {analysis.reach.reason()}."
    seen = (
        f"From its first step on, the mean square of a perturbation falls to 1/e in {with_error(analysis.reach)} steps"
    )
    if length is None:
        return f"{seen}."
    left = left_after(analysis, length)
    ratio = with_error_of(left, left_stderr(analysis, length))
    remains = "" if left is None else f"; after {length} steps its norm is {ratio} times that after one step"
    return f"{seen}, {_MEANING[verdict(analysis, length)]} the required {length}{remains}."
