"""The root of one function of one number."""

from __future__ import annotations

from collections.abc import Callable


def brent(function: Callable[[float], float], low: float, high: float, **tolerance: float) -> float:
    """Between ``low`` and ``high``, where the function changes sign, by Brent's method; ``xtol``, ``rtol`` as scipy's.

    >>> round(brent(lambda x: x * x - 2, 0.0, 2.0, xtol=1e-9), 6)
    1.414214
    """
    # Half a second to import, and most commands solve for nothing.
    from scipy.optimize import brentq

    return float(brentq(function, low, high, **tolerance))
