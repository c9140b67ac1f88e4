"""Fields of a configuration: what is allowed, what is meant where nothing is said, and errors that say both."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from isornn.cells.errors import brief, suggested

Value = Any  # of JSON


MOST = 1_000_000_000
"""Of anything that is counted."""
LARGEST = 3.4e38
"""Of numbers that parameters are multiplied by: what float32 has."""


class ConfigurationError(ValueError):
    """A configuration that cannot be: names the field, the value, or that it is `NEEDED`, and what is allowed.

    >>> from isornn.training import Configuration
    >>> Configuration.from_mapping({"task": {"name": "chess"}})
    Traceback (most recent call last):
    ...
    isornn.training.fields.ConfigurationError: ...
    """

    def __init__(self, where: str, value: object, allowed: str) -> None:
        wrong = " is needed" if value is NEEDED else f": {brief(value)} is not allowed"
        super().__init__(f"{where}{wrong}; {allowed}")


class _Needed:
    """In the place of a default that a field does not have, and of a value that was not given."""


NEEDED = _Needed()


@dataclass(frozen=True)
class Field:
    """One field.

    Args:
        allowed: in words.
        read: the value as it is kept; ValueError or TypeError for one that is not allowed.
        default: where nothing is said; `NEEDED` if something must be said.
        choices: the words it is one of, where it is.
    """

    allowed: str
    read: Callable[[Any], Value]
    default: Value | _Needed = NEEDED
    choices: tuple[str, ...] = ()


def whole(least: int = 1, default: Value | _Needed = NEEDED, most: int = MOST) -> Field:
    """A whole number from ``least`` to ``most``.

    >>> whole(1).read(3)
    3
    """

    def read(value: Any) -> int:
        _demand(isinstance(value, int) and not isinstance(value, bool) and least <= value <= most)
        return int(value)

    return Field(
        f"it must be a whole number of at least {least}, at most {most:,}", _or_default(read, default), default
    )


def seed(default: Value | _Needed = NEEDED) -> Field:
    """A seed of torch's generators."""
    return whole(0, default, most=2**63 - 1)


def number(low: float = 0.0, below: float = math.inf, default: Value | _Needed = NEEDED) -> Field:
    """A number from ``low`` to below ``below``, kept as a float.

    >>> number().read(1)
    1.0
    """

    def read(value: Any) -> float:
        _demand(isinstance(value, int | float) and not isinstance(value, bool) and low <= value < below)
        _demand(value <= sys.float_info.max)
        return float(value)

    bounds = f"from {low:g}" + (f" to below {below:.7g}" if math.isfinite(below) else "")
    return Field(f"it must be a finite number {bounds}", _or_default(read, default), default)


def positive(default: Value | _Needed = NEEDED) -> Field:
    """A number above 0 that float32 has, kept as a float."""

    def read(value: Any) -> float:
        _demand(isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= LARGEST)
        return float(value)

    return Field(f"it must be a finite number above 0, at most {LARGEST:g}", _or_default(read, default), default)


def one_of(*choices: str, default: Value | _Needed = NEEDED) -> Field:
    """One of some words."""

    def read(value: Any) -> str:
        _demand(isinstance(value, str) and value in choices)
        return str(value)

    return Field(f"it must be one of {', '.join(choices)}", _or_default(read, default), default, choices)


def text(default: Value | _Needed = NEEDED) -> Field:
    """Words."""

    def read(value: Any) -> str:
        _demand(isinstance(value, str) and value != "")
        return str(value)

    return Field("it must be a text", read, default)


def flag(default: bool) -> Field:
    """True or false."""

    def read(value: Any) -> bool:
        _demand(isinstance(value, bool))
        return bool(value)

    return Field("it must be true or false", read, default)


def only_true() -> Field:
    """True or false, where false is kept as nothing: configurations from before there was the field are the same."""
    read = flag(False).read
    return Field("it must be true or false", lambda value: None if value is None else read(value) or None, None)


def anything(allowed: str, default: Value | _Needed = NEEDED) -> Field:
    """What another part checks."""
    return Field(allowed, lambda value: value, default)


def read_fields(where: str, data: Any, fields: Mapping[str, Field]) -> dict[str, Value]:
    """Every field's value, defaults filled in, in the order of ``fields``.

    Raises:
        ConfigurationError: no mapping, an unknown field, a value that is not allowed, one that is missing.

    >>> read_fields("task", {}, {"length": whole(1)})
    Traceback (most recent call last):
    ...
    isornn.training.fields.ConfigurationError: task.length is needed; it must be a whole number of at least 1, ...
    """
    if not isinstance(data, Mapping):
        raise ConfigurationError(where, data, f"it must be a table with {', '.join(fields)}")
    for key in data:
        if key not in fields:
            allowed = f"fields are {', '.join(fields)}" if fields else "it has no further fields"
            allowed = suggested(key, fields) + allowed
            raise ConfigurationError(_path(where, key), data[key], allowed)
    return {name: _value(_path(where, name), data.get(name, NEEDED), field) for name, field in fields.items()}


def _value(where: str, given: Any, field: Field) -> Value:
    if given is NEEDED:
        if field.default is NEEDED:
            raise ConfigurationError(where, NEEDED, field.allowed)
        return field.default
    try:
        return field.read(given)
    except (ValueError, TypeError):
        raise ConfigurationError(where, given, suggested(given, field.choices) + field.allowed) from None


def _path(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)


def _demand(fits: bool) -> None:
    if not fits:
        raise ValueError


def _or_default(read: Callable[[Any], Value], default: Value | _Needed) -> Callable[[Any], Value]:
    """What a configuration's own mapping says of a field that was left out is allowed again: None."""
    return (lambda value: None if value is None else read(value)) if default is None else read


def flattened(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Fields with dots and their values.

    >>> dict(flattened({"task": {"name": "copy", "length": 100}, "seed": 0}))
    {'task.name': 'copy', 'task.length': 100, 'seed': 0}
    """
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from flattened(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
