"""A record of numbers that goes to JSON, and what all records here are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

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


def thinned(count: int) -> Tensor:
    """Indices from 0 to ``count - 1``: every one up to 128, then evenly in their logarithm, at most 512 in all.

    >>> len(thinned(100)), len(thinned(10_000)) <= 512, int(thinned(10_000)[-1])
    (100, True, 9999)
    """
    if count <= _EVERY:
        return torch.arange(count)
    rest = torch.logspace(math.log10(_EVERY), math.log10(count - 1), _MOST - _EVERY, dtype=torch.float64)
    return torch.cat([torch.arange(_EVERY), rest.round().long()]).unique()


def plain(value: Any) -> Any:
    """``value`` as strict JSON: numbers that are not finite become null, a `Quantity` an object with its error.

    >>> plain({"norms": torch.tensor([1.0, -torch.inf])})
    {'norms': [1.0, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Quantity):
        reason, error = value.reason(), value.error()
        known = None if error is None or math.isinf(error) else error
        found: dict[str, Any] = {"value": value.number(), "stderr": known}
        if reason is not None:
            found |= {"reason": reason, "infinite": bool(value.value.isinf())}
        return found
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if hasattr(value, "to_json"):
        return value.to_json()
    return {one.name: plain(getattr(value, one.name)) for one in fields(value)} if is_dataclass(value) else repr(value)


class Record:
    """A dataclass whose JSON has its fields, and those of its properties that ``derived`` names.

    JSON has neither infinity nor NaN: ``nulls`` says by field what a null among its numbers is, where that is not NaN.
    """

    derived: ClassVar[tuple[str, ...]] = ()
    nulls: ClassVar[Mapping[str, float]] = {}

    def to_json(self) -> dict[str, Any]:
        """One JSON object without NaN or infinity; what does not exist is null."""
        names = [*self.derived, *(field.name for field in fields(self))]  # type: ignore[arg-type]
        return {name: plain(getattr(self, name)) for name in names}


def layer_name(module: str, kind: str, layer: int, direction: int) -> str:
    """Name of a layer and direction of a module; a model that is itself the module goes by its class.

    >>> layer_name("encoder.rnn", "LSTM", 1, 1), layer_name("", "GRUCell", 0, 0)
    ('encoder.rnn l1_reverse', 'GRUCell')
    """
    own = "" if kind.endswith("Cell") else f" l{layer}" + ("_reverse" if direction else "")
    return (module or kind) + own
