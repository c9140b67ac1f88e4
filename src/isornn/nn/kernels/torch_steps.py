"""A stage's statements by torch's own operations: for devices that no kernel is printed for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from isornn.nn.kernels.program import aten
from isornn.nn.kernels.schedule import Operation, Row, Stage

_TAKES_NUMBERS = {aten.where.self: torch.where}


def stepped_in_torch(stage: Stage, arrays: Mapping[str, Tensor]) -> Callable[[int], None]:
    """The stage at step t, written to the arrays."""

    def step(t: int) -> None:
        scratch: dict[Row, Tensor] = {}
        for statement in stage.statements:
            value = _value(statement.value, arrays, scratch, t)
            if statement.target.array.startswith("scratch"):
                scratch[statement.target] = value
            elif statement.adds:
                _row(statement.target, arrays, scratch, t).add_(value)
            else:
                target = _row(statement.target, arrays, scratch, t)
                target.copy_(value) if isinstance(value, Tensor) else target.fill_(value)

    return step


def _value(value: Any, arrays: Mapping[str, Tensor], scratch: Mapping[Row, Tensor], t: int) -> Any:
    if isinstance(value, Row):
        return _row(value, arrays, scratch, t)
    if isinstance(value, Operation):
        function = _TAKES_NUMBERS.get(value.function, value.function)
        return function(*(_value(arg, arrays, scratch, t) for arg in value.args))
    return value


def _row(row: Row, arrays: Mapping[str, Tensor], scratch: Mapping[Row, Tensor], t: int) -> Tensor:
    """The row of all sequences, (B, N) or (N,)."""
    kind, _, name = row.array.partition(".")
    if kind == "old":
        return arrays[f"initial.{name}"] if t == 0 else arrays[f"new.{name}"][t - 1]
    if kind.startswith("scratch"):
        return scratch[row]
    array = arrays[row.array]
    if kind in ("drive", "du", "du_alone", "saved", "new", "x", "dx", "reads", "direct"):
        array = array[t % len(array)]
    if row.part is None:
        return array
    return array[row.part] if kind == "offset" else array[:, row.part]
