"""Numbers in words: a value with its error, infinite, or undefined."""

from __future__ import annotations

from dataclasses import dataclass

from isornn.theory import Analysis, Quantity
from isornn.words import rounded, value_of

_LABELS = {
    "xi": ("ξ", "steps, -1/ln χ"),
    "reach": ("reach", "steps until a change is down to 1/e"),
    "chi": ("χ", "factor per step, at the stable correlation"),
    "chi_1": ("χ₁", "factor per step, at correlation 1"),
    "fixed_point.correlation": ("C*", "stable correlation"),
    "fixed_point.second_moment": ("E[h²]", "second moment of the state"),
    "fixed_point.mean": ("E[h]", "mean of the state"),
    "jacobian.mean": ("m₁", "mean squared singular value"),
    "jacobian.variance": ("m₂ - m₁²", "variance of the squared singular values"),
    "xi_q": ("ξ_Q", "steps for the moments to settle"),
}
_FAR = 2.0  # ratio of reach to T from which on the two are no longer about the same


@dataclass(frozen=True)
class Reading:
    """One quantity as it is shown: its symbol, what it is, its value, how sure that is, and why there is none."""

    name: str
    symbol: str
    meaning: str
    value: str
    sure: str
    why: str


def readings(analysis: Analysis) -> tuple[Reading, ...]:
    """Every quantity that is shown, in order."""
    found = dict(analysis.quantities())
    residual = float(analysis.fixed_point.residual)
    exact = f"exact, residual {residual:.0e}" if analysis.engine == "quadrature" and residual else "exact"
    return tuple(
        Reading(name, *label, value_of(found[name]), _sure(found[name], exact), _why(found[name]))
        for name, label in _LABELS.items()
    )


def against(reach: Quantity, length: int) -> str:
    """The reach beside the length that is wanted."""
    steps = reach.number()
    if steps is None:
        return f"T = {length:,}: no number of steps to compare with." if not reach.value.isinf() else ""
    ratio = steps / length
    if 1 / _FAR <= ratio <= _FAR:
        return f"About the T = {length:,} steps wanted."
    if ratio > _FAR:
        return f"Beyond the T = {length:,} steps wanted, {rounded(ratio)} times as far."
    if steps == 0:
        return f"Nothing is left after one step; T = {length:,} are wanted."
    return f"Short of the T = {length:,} steps wanted by a factor {1 / ratio:.3g}."


def _sure(quantity: Quantity, exact: str) -> str:
    error = quantity.error()
    if error is None:
        return ""
    if not error:
        return exact
    return f"± {error:.2g}"


def _why(quantity: Quantity) -> str:
    """The reason, without the word that stands for the value already."""
    reason = quantity.reason()
    return "" if reason is None else reason.removeprefix("infinite: ")
