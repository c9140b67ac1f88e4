"""Numbers as records hold them: with their errors, with reasons where there is none, and as JSON, which has no NaN."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from isornn.theory import Quantity

_EVERY, _MOST = 128, 512


def single(value: float, stderr: float = 0.0, reasons: Mapping[str, bool] | None = None) -> Quantity:
    """One number as a `Quantity`.

    >>> single(2.0, 0.1).number(), single(0.0, reasons={"no step": True}).reason()
    (2.0, 'no step')
    """
    number, error = (torch.tensor(one, dtype=torch.float64) for one in (value, stderr))
    return Quantity.of(number, error, dict(reasons or {}))


def quantity_json(quantity: Quantity) -> dict[str, Any]:
    """``value`` and ``stderr``, and the ``reason`` where there is no number; an error that is not known is null."""
    reason, error = quantity.reason(), quantity.error()
    known = None if error is None or math.isinf(error) else error
    return {"value": quantity.number(), "stderr": known, **({} if reason is None else {"reason": reason})}


def listed(values: Tensor) -> Any:
    """Nested lists, None for what is not a finite number.

    >>> listed(torch.tensor([1.0, -torch.inf]))
    [1.0, None]
    """
    return _nulled(values.tolist())


def thinned(count: int) -> Tensor:
    """Places from 0 to ``count - 1``: every one up to 128, then evenly in their logarithm, at most 512 in all.

    >>> len(thinned(100)), len(thinned(10_000)) <= 512, int(thinned(10_000)[-1])
    (100, True, 9999)
    """
    if count <= _EVERY:
        return torch.arange(count)
    rest = torch.logspace(math.log10(_EVERY), math.log10(count - 1), _MOST - _EVERY, dtype=torch.float64)
    return torch.cat([torch.arange(_EVERY), rest.round().long()]).unique()


def _nulled(values: Any) -> Any:
    if isinstance(values, list):
        return [_nulled(value) for value in values]
    return values if math.isfinite(values) else None
