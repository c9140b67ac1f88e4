"""The parts of a spec as its file has them: a cell's options, gates, the input."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import Tensor

from isornn.cells.arguments import is_number
from isornn.cells.bias_laws import bias_law_from_json
from isornn.cells.catalogue import full_name, importable, with_options
from isornn.cells.cell import Cell
from isornn.cells.errors import SpecError, suggested
from isornn.cells.laws import GATE_NUMBERS, INPUT_FIELDS, Gate, Input, Number

ENSEMBLES = '"gaussian", "orthogonal", "identity" or {"margin": m} with m >= 0'


def options_to_json(cell: Cell, *, strict: bool) -> dict[str, Any]:
    """A cell's options that are not their defaults.

    Args:
        strict: refuse a cell that cannot be read back.

    Raises:
        SpecError: as `Spec.to_json`.
    """
    options = {
        option.name: getattr(cell, option.name)
        for option in fields(cell)
        if option.init and option.default != getattr(cell, option.name)
    }
    if strict:
        _check_readable(cell, options)
    return {name: listed(value) for name, value in options.items()}


def listed(value: Any) -> Any:
    """An option as JSON has it: tuples become lists.

    >>> listed((1, (2, 3)))
    [1, [2, 3]]
    """
    return [listed(part) for part in value] if isinstance(value, tuple) else value


def _check_readable(cell: Cell, options: Mapping[str, Any]) -> None:
    if not importable(type(cell)):
        allowed = "a cell in a file is imported by module and name: define its class at the top of a module"
        raise SpecError("cell", full_name(cell), allowed)
    try:
        again = json.loads(json.dumps({name: listed(value) for name, value in options.items()}, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SpecError("options", dict(options), f"in a file they are values of JSON ({error})") from None
    if with_options(type(cell), again) != cell:
        raise SpecError("options", dict(options), "in a file they are values that JSON gives back")


def input_to_json(input: Input) -> dict[str, float]:
    """Mean and autocorrelation only where they are not 0."""
    data = {name: _plain(getattr(input, name)) for name in INPUT_FIELDS}
    return {name: value for name, value in data.items() if value or name in ("variance", "correlation")}


def input_from_json(data: Any) -> Input:
    """The law of the input, of plain numbers."""
    check_keys("input", data, INPUT_FIELDS)
    for name, value in data.items():
        _check_plain(f"input.{name}", value)
    return Input(**data)


def gate_to_json(gate: Gate) -> dict[str, Any]:
    """All its numbers; a law of biases and an ensemble where they are not the default."""
    data: dict[str, Any] = {name: _plain(getattr(gate, name)) for name in GATE_NUMBERS}
    if gate.bias_law is not None:
        data["bias_law"] = gate.bias_law.to_json()
    if gate.ensemble != "gaussian":
        data["ensemble"] = gate.ensemble if isinstance(gate.ensemble, str) else {"margin": gate.ensemble}
    return data


def gate_from_json(where: str, data: Any) -> Gate:
    """A gate's law, of plain numbers; ``where`` names it in errors."""
    check_keys(where, data, tuple(f.name for f in fields(Gate)))
    values = dict(data)
    for name in GATE_NUMBERS:
        if name in values:
            _check_plain(f"{where}.{name}", values[name])
    if "bias_law" in values:
        try:
            values["bias_law"] = bias_law_from_json(values["bias_law"])
        except ValueError as error:
            raise SpecError(f"{where}.bias_law", values["bias_law"], f"it must be {error}") from None
    ensemble = values.get("ensemble", "gaussian")
    if isinstance(ensemble, dict) and list(ensemble) == ["margin"]:
        _check_plain(f"{where}.ensemble.margin", ensemble["margin"])
        values["ensemble"] = float(ensemble["margin"])
    elif not isinstance(ensemble, str):
        raise SpecError(f"{where}.ensemble", ensemble, f"it must be {ENSEMBLES}")
    return Gate(**values)


def check_keys(where: str, data: Any, allowed: tuple[str, ...]) -> None:
    """Refuse what is no object, or has a field that is not ``allowed``."""
    if not isinstance(data, dict):
        raise SpecError(where, data, "it must be an object")
    for key in data:
        if key not in allowed:
            field = f"{where}.{key}" if where != "spec" else key
            raise SpecError(field, data[key], f"{suggested(key, allowed)}fields are {', '.join(allowed)}")


def _plain(value: Number) -> float:
    """A tensor's number without its gradient."""
    return float(value.detach() if isinstance(value, Tensor) else value)


def _check_plain(where: str, value: Any) -> None:
    if not is_number(value):
        raise SpecError(where, value, "it must be a number")
