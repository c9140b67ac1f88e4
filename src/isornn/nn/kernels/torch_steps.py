"""A stage's statements by torch's own operations: for devices that no kernel is printed for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from isornn.nn.kernels.schedule import Operation, Row, Stage

OF_ALL_STEPS = ("drive", "du", "du_alone", "saved", "new", "x", "dx", "reads", "direct")


def stepped_in_torch(stage: Stage, arrays: Mapping[str, Tensor]) -> Callable[[int], None]:
    """The stage at step t, written to the arrays."""

    def step(t: int) -> None:
        scratch: dict[Row, Tensor] = {}

        def row(of: Row) -> Tensor:
            return scratch[of] if of in scratch else _row(of, arrays, t)

        for statement in stage.statements:
            value = value_of(statement.value, row)
            if statement.target.array.startswith("scratch"):
                scratch[statement.target] = value
            elif statement.adds:
                row(statement.target).add_(value)
            else:
                written(row(statement.target), value)

    return step


def value_of(value: Any, row: Callable[[Row], Any], apply: Callable[..., Any] | None = None) -> Any:
    """An expression's value from those of its rows; ``apply(function, *args)`` does its operations."""
    if isinstance(value, Row):
        return row(value)
    if not isinstance(value, Operation):
        return value
    args = [value_of(arg, row, apply) for arg in value.args]
    return called(value.function, *args) if apply is None else apply(value.function, *args)


def called(function: Any, *args: Any) -> Any:
    """An operation of tensors and numbers, of which torch takes some only as tensors."""
    places = _tensor_places(function)
    return function(
        *(
            _scalar(value) if place in places and not isinstance(value, Tensor) else value
            for place, value in enumerate(args)
        )
    )


@functools.cache
def _tensor_places(function: Any) -> frozenset[int]:
    return frozenset(
        place for place, argument in enumerate(function._schema.arguments) if str(argument.type) == "Tensor"
    )


@functools.cache
def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, device="cpu")


def written(target: Tensor, value: Tensor | float) -> None:
    """Write a value, or a number for all."""
    target.copy_(value) if isinstance(value, Tensor) else target.fill_(value)


def _row(row: Row, arrays: Mapping[str, Tensor], t: int) -> Tensor:
    """The row of all sequences at step t, (B, N) or (N,)."""
    kind, _, name = row.array.partition(".")
    if kind == "old":
        return arrays[f"initial.{name}"] if t == 0 else arrays[f"new.{name}"][t - 1]
    array = arrays[row.array]
    return part_of(array[t % len(array)] if kind in OF_ALL_STEPS else array, row)


def part_of(array: Tensor, row: Row) -> Tensor:
    """Of an array (..., parts, N) the row's part."""
    return array if row.part is None else array[..., row.part, :]
