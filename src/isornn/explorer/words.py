"""Numbers as text: a value with its error, infinite, or undefined."""

from __future__ import annotations

from dataclasses import dataclass

from isornn.formatting import is_rounding, plus_minus, rounded, value_of
from isornn.present.labels import LABELS
from isornn.theory import Analysis, Quantity

_SHOWN = (
    "xi",
    "reach",
    "chi",
    "chi_1",
    "fixed_point.correlation",
    "fixed_point.second_moment",
    "fixed_point.mean",
    "jacobian.mean",
    "jacobian.variance",
    "xi_q",
)
_FAR = 2.0  # ratio of reach to T from which on the two are no longer about the same


@dataclass(frozen=True)
class Reading:
    """One quantity as it is shown: its symbol, what it is, its value, its error or reason."""

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
        Reading(
            name,
            LABELS[name].symbol,
            LABELS[name].meaning,
            value_of(found[name]),
            _sure(found[name], exact),
            _why(found[name]),
        )
        for name in _SHOWN
    )


def against(reach: Quantity, length: int) -> str:
    """The reach compared with the requested length."""
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
    if is_rounding(error, float(quantity.value)):
        return exact
    return plus_minus(error)


def _why(quantity: Quantity) -> str:
    """The reason, without the word that is already shown as the value."""
    reason = quantity.reason()
    return "" if reason is None else reason.removeprefix("infinite: ")
