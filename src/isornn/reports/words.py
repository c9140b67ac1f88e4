"""Numbers in words: a value with as many digits as its error makes sense of, infinite, or undefined."""

from __future__ import annotations

import math

from isornn.theory import Quantity


def value_of(quantity: Quantity) -> str:
    """The value as people read it.

    >>> import torch
    >>> def of(value, error=0.0, **reasons):
    ...     return value_of(Quantity.of(torch.tensor(value), torch.tensor(error), reasons))
    >>> of(74.5134), of(0.27571, 0.0013), of(torch.inf, unending=True), of(1.0, unsettled=True)
    ('74.51', '0.2757', 'infinite', 'undefined')
    """
    value = quantity.number()
    if value is None:
        return "infinite" if bool(quantity.value.isinf()) else "undefined"
    return rounded(value, quantity.error() or 0.0)


def rounded(value: float, error: float = 0.0) -> str:
    """Four digits, or as many as the error makes sense of: its own first two.

    >>> rounded(1234.567), rounded(35.3754, 0.14), rounded(3.2e-9), rounded(1.2e-9, 1e-9)
    ('1235', '35.38', '3.2e-09', '1.2e-09')
    """
    if not error or not 1e-4 < abs(value) < 1e6:
        return f"{value:.4g}"
    return f"{value:.{max(0, 1 - math.floor(math.log10(error)))}f}"
