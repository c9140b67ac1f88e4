"""From a sweep file to run configurations: a base, a list of changes, and the product of lists.

A sweep file is TOML::

    [base]                      # what all runs share
    seed = 0
    task = { name = "copy", length = 100 }

    [grid]                      # lists over fields, of which every combination is run; dots reach into tables, and a
                                # table in a list replaces the base's
    "optimiser.rate" = [1e-2, 1e-3]
    seed = [0, 1, 2]

    [[runs]]                    # changes that belong together; one run each where there is no grid
    task.length = 200

All three may be missing, not all at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

from isornn.cells.errors import brief
from isornn.files import DEEPEST, read_toml
from isornn.training.fields import flattened

Fields = dict[str, Any]
"""A run's configuration as plain tables and values."""

_PARTS = ("base", "grid", "runs")


class SweepError(ValueError):
    """A sweep that cannot be read or begun; names the field, its value and what is allowed.

    >>> expand({"base": {"seed": 0}, "grids": {}})
    Traceback (most recent call last):
    ...
    isornn.training.sweep.plan.SweepError: ...
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field}: {brief(value)} is not allowed; {allowed}")


def load_sweep(file: Path) -> list[Fields]:
    """The configurations that a sweep file asks for, in the order of `expand`.

    Raises:
        SweepError: the file is missing, not TOML, or not a sweep.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "rates.toml").write_text("[base]\\nseed = 0\\n[grid]\\nrate = [0.1, 0.2]")
    ...     load_sweep(Path(folder) / "rates.toml")
    [{'seed': 0, 'rate': 0.1}, {'seed': 0, 'rate': 0.2}]
    """
    try:
        table = read_toml(file)
    except OSError as error:
        raise SweepError("FILE.toml", str(file), f"it must be a file that can be read ({error.strerror})") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise SweepError("FILE.toml", str(file), f"it must be TOML ({error})") from None
    return expand(table)


def expand(table: Mapping[str, Any]) -> list[Fields]:
    """``base``, changed by each of ``runs`` in turn, and each of these by every point of ``grid``.

    The last field of the grid changes fastest, as in nested loops in the order of the file; ``runs`` are the outermost.

    Raises:
        SweepError: a part that is unknown or has the wrong form; a field of the grid that a run sets too.

    >>> expand({"base": {"seed": 0}, "grid": {"rate": [0.1, 0.2]}, "runs": [{}, {"seed": 1}]})
    [{'seed': 0, 'rate': 0.1}, {'seed': 0, 'rate': 0.2}, {'seed': 1, 'rate': 0.1}, {'seed': 1, 'rate': 0.2}]
    >>> expand({"base": {"task": {"name": "copy"}}, "grid": {"task.length": [100]}})
    [{'task': {'name': 'copy', 'length': 100}}]
    """
    _check(table)
    grid = dict(flattened(table.get("grid", {})))
    for field, values in grid.items():
        if not isinstance(values, list) or not values:
            raise SweepError(f"grid.{field}", values, "it must be a list of at least one value")
    base = changed({}, table.get("base", {}), "base")
    return [
        with_values(changed(base, change, f"runs[{place}]"), _tables_first(zip(grid, values, strict=True)), "grid")
        for place, change in enumerate(_runs(table, grid))
        for values in product(*grid.values())
    ]


def _tables_first(values: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """So that a table of the grid does not take the place of what another list of the grid sets in it."""
    return sorted(values, key=lambda pair: pair[0].count("."))


def changed(configuration: Mapping[str, Any], change: Mapping[str, Any], where: str) -> Fields:
    """A copy of ``configuration`` in which the fields of ``change`` have its values; dots in both reach into tables.

    A table in ``change`` changes the fields that it has, as TOML writes ``task.length = 200`` and
    ``task = {length = 200}`` the same way.

    Args:
        where: ``change`` is, for errors.

    Raises:
        SweepError: a field within what is no table.

    >>> changed({"task": {"name": "copy"}}, {"task.length": 100}, "runs")
    {'task': {'name': 'copy', 'length': 100}}
    """
    return with_values(configuration, flattened(change), where)


def with_values(configuration: Mapping[str, Any], values: Iterable[tuple[str, Any]], where: str) -> Fields:
    """A copy of ``configuration`` in which fields, with dots, have other values: a table has the place of the old one.

    Raises:
        SweepError: as `changed`.

    >>> with_values({"start": {"name": "chrono", "length": 9}}, [("start", {"name": "critical"})], "--set")
    {'start': {'name': 'critical'}}
    """
    result = deepcopy(dict(configuration))
    for field, value in values:
        *tables, name = field.split(".")
        inner = result
        if len(tables) >= DEEPEST:
            raise SweepError(where, field, f"a field has at most {DEEPEST} parts")
        for table in tables:
            inner = inner.setdefault(table, {})
            if not isinstance(inner, dict):
                raise SweepError(f"{where}.{field}", value, f"{table} is no table but {inner!r}")
        inner[name] = deepcopy(value)
    return result


def lies_within(field: str, table: str) -> bool:
    """Whether a field, with dots, is ``table`` or in it.

    >>> lies_within("task.length", "task"), lies_within("tasks", "task")
    (True, False)
    """
    return f"{field}.".startswith(f"{table}.")


def _check(table: Mapping[str, Any]) -> None:
    if not table:
        raise SweepError("sweep", {}, f"it must have at least one of {', '.join(_PARTS)}")
    for part in table:
        if part not in _PARTS:
            raise SweepError("sweep", part, f"its parts are {', '.join(_PARTS)}")
    for part in ("base", "grid"):
        if not isinstance(table.get(part, {}), Mapping):
            raise SweepError(part, table[part], "it must be a table")


def _runs(table: Mapping[str, Any], grid: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    runs = table.get("runs", [{}])
    if not isinstance(runs, list) or not runs or not all(isinstance(change, Mapping) for change in runs):
        raise SweepError("runs", runs, "it must be a list of tables: [[runs]]")
    for place, change in enumerate(runs):
        for field, _ in flattened(change):
            if any(lies_within(field, varied) or lies_within(varied, field) for varied in grid):
                raise SweepError(f"runs[{place}]", field, "the grid varies it already, and a field is varied once")
    return runs
