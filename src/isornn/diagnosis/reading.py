"""A diagnosis read back from its JSON."""

from __future__ import annotations

import math
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from isornn.cells.errors import brief
from isornn.diagnosis.advice import Advice
from isornn.diagnosis.facts import JacobianAt, Lyapunov, Memory, Profile, StateMoments
from isornn.diagnosis.finding import Finding
from isornn.diagnosis.json_record import Record, single
from isornn.diagnosis.records import Diagnosis, LayerDiagnosis, Predicted
from isornn.records import RecordError
from isornn.theory import Quantity

NOT_KEPT = "the theory's answer is not read back from a file"
_LARGEST, _WHOLE = sys.float_info.max, 2**63
# By record: the field along which its other numbers go, one for each; and the fields that have at least one entry.
_ALONG: Mapping[type, str] = {Profile: "lags", StateMoments: "times"}
_FILLED: Mapping[type, str] = {
    **_ALONG,
    JacobianAt: "singular_values",
    LayerDiagnosis: "moments",
    Lyapunov: "exponents",
    Memory: "time_constants",
}


def diagnosis_from_json(value: Any) -> Diagnosis:
    """The diagnosis that `Diagnosis.to_json` wrote, without the theory's answers.

    A null in an array is what the array's record says of it (``Record.nulls``), NaN elsewhere. A quantity without a
    value keeps its reason. A field that has a default may be missing: versions before it did not measure it.

    Raises:
        RecordError: names the first field that is missing, of another type, or of another length than it goes along.

    >>> from torch import nn
    >>> from isornn.diagnosis import measure
    >>> diagnosis = measure(nn.GRU(2, 8), torch.randn(20, 3, 2))
    >>> diagnosis_from_json(diagnosis.to_json()).layers[0].info == diagnosis.layers[0].info
    True
    """
    return typing.cast(Diagnosis, _record(Diagnosis, value, ""))


def findings_from_json(value: Any) -> tuple[Finding, ...]:
    """The findings that a report's JSON lists; of a fix it has the code alone.

    Raises:
        RecordError: as `diagnosis_from_json`.
    """
    if not isinstance(value, list):
        raise RecordError(f"findings: {brief(value)} is not allowed; it must be a list")
    return tuple(_finding(one, f"findings[{number}]") for number, one in enumerate(value))


def _finding(value: Any, where: str) -> Finding:
    kinds = {"kind": str, "layer": str | None, "sentence": str, "remedy": str, "evidence": Mapping[str, str]}
    if not isinstance(value, dict):
        raise RecordError(f"{where}: {brief(value)} is not allowed; it must be an object")
    if missing := [name for name in kinds if name not in value]:
        raise RecordError(f"{where}.{missing[0]}: it is missing")
    read = {name: _value(kind, value[name], f"{where}.{name}", math.nan) for name, kind in kinds.items()}
    fix = Advice(read.pop("remedy"), "it was read from a file, without the model")
    return Finding(**read, fix=fix if fix.code else None)


def _record(kind: Any, value: Any, where: str) -> Any:
    if kind is Predicted:
        return Predicted(None, None, value["reason"] if isinstance(value, dict) and value.get("reason") else NOT_KEPT)
    if not isinstance(value, dict):
        raise RecordError(f"{where or 'the report'}: {brief(value)} is not allowed; it must be an object")
    hints, found = typing.get_type_hints(kind), {}
    for field in fields(kind):
        name = f"{where}.{field.name}" if where else field.name
        if field.name not in value:
            if _has_default(field):  # what versions before it did not measure
                continue
            raise RecordError(f"{name}: it is missing; files of other versions may lack it")
        found[field.name] = _value(hints[field.name], value[field.name], name, kind.nulls.get(field.name, math.nan))
    read = kind(**found)
    if isinstance(read, Diagnosis | Memory) and not 1 <= read.length <= _LARGEST:
        name = f"{where}.length".lstrip(".")
        raise RecordError(f"{name}: {brief(read.length)} is not allowed; it must be a number of steps, at least 1")
    _check_lengths(read, where)
    return read


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _check_lengths(record: Any, where: str) -> None:
    """Figures draw fields of one record against each other, and the last entries of some."""
    filled, along = _FILLED.get(type(record)), _ALONG.get(type(record))
    if filled is not None and (one := getattr(record, filled)) is not None and len(one) == 0:
        raise RecordError(f"{where}.{filled}: it is empty")
    if along is None:
        return
    if isinstance(record, Profile) and "all" not in record.log_norm:
        raise RecordError(f"{where}.log_norm.all: it is missing")
    count = len(getattr(record, along))
    for field in fields(record):
        value = getattr(record, field.name)
        for one in value.values() if isinstance(value, Mapping) else [value]:
            if isinstance(one, Tensor) and len(one) != count:
                raise RecordError(f"{where}.{field.name}: length {len(one)} is not allowed; {along} has {count}")


def _value(hint: Any, value: Any, where: str, null: float) -> Any:
    """``value`` as the type ``hint`` of a record's field."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in parts:
            return None
        (hint,) = (part for part in parts if part is not type(None))
        return _value(hint, value, where, null)
    if origin is tuple:
        return _tuple(parts, value, where, null)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise RecordError(f"{where}: {brief(value)} is not allowed; it must be an object")
        return {name: _value(parts[1], one, f"{where}.{name}", null) for name, one in value.items()}
    if hint is Tensor:
        return _tensor(value, where, null)
    if hint is Quantity:
        return _quantity(value, where)
    if is_dataclass(hint) and issubclass(typing.cast(type, hint), Record):
        return _record(hint, value, where)
    return _plain(hint, value, where, null)


def _tuple(parts: tuple[Any, ...], value: Any, where: str, null: float) -> tuple[Any, ...]:
    if not isinstance(value, list) or (Ellipsis not in parts and len(value) != len(parts)):
        raise RecordError(f"{where}: {brief(value)} is not allowed; it must be a list")
    kinds = [parts[0]] * len(value) if Ellipsis in parts else parts
    each = enumerate(zip(kinds, value, strict=True))
    return tuple(_value(kind, one, f"{where}[{number}]", null) for number, (kind, one) in each)


def _tensor(value: Any, where: str, null: float) -> Tensor:
    numbers = value if isinstance(value, list) else None
    if numbers is None or not all(one is None or _is_number(one) for one in numbers):
        raise RecordError(f"{where}: {brief(value)} is not allowed; it must be a list of numbers")
    if numbers and all(isinstance(one, int) and abs(one) < _WHOLE for one in numbers):
        return torch.tensor(numbers)
    return torch.tensor([null if one is None else float(one) for one in numbers], dtype=torch.float64)


def _quantity(value: Any, where: str) -> Quantity:
    numbers: list[Any] = [value.get(name) for name in ("value", "stderr")] if isinstance(value, dict) else ["none"]
    if not all(one is None or _is_number(one) for one in numbers) or (numbers[1] is not None and numbers[1] < 0):
        raise RecordError(f"{where}: {brief(value)} is not allowed; it must be an object of value, stderr and reason")
    if value.get("value") is None:
        reason = str(value.get("reason", "not in the file"))
        infinite = value.get("infinite", reason.startswith("infinite"))  # files of before say it in words alone
        return single(math.inf if infinite is True else math.nan, reasons={reason: True})
    error = value.get("stderr")
    return single(float(value["value"]), math.inf if error is None else float(error))


def _plain(hint: Any, value: Any, where: str, null: float) -> Any:
    if hint is float:
        if value is None or _is_number(value):
            return null if value is None else float(value)
        raise RecordError(f"{where}: {brief(value)} is not allowed; it must be a finite number")
    if hint is Any or (isinstance(value, hint) and (hint is bool or not isinstance(value, bool))):
        return value
    raise RecordError(f"{where}: {brief(value)} is not allowed; it must be of type {hint.__name__}")


def _is_number(value: Any) -> bool:
    """Whether it is one that a double can hold; NaN and infinities, which Python reads from JSON, are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
