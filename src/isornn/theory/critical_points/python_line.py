"""The line of Python that applies a critical point to a module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from isornn.cells import Cell, Input
from isornn.theory.critical_points.front import Objective
from isornn.theory.critical_points.records import Biases

_UNIT_INPUT = Input()


def rule_line(length: float, fixed: Mapping[str, Any], input: Input, biases: Biases) -> str:
    return (
        f"isornn.init.critical_({', '.join(['module', f'length={_plain(length)}', *_options(fixed, input, biases)])})"
    )


def objective_line(
    cell: Cell, length: float, objective: Objective, fixed: Mapping[str, Any], input: Input, biases: Biases
) -> str:
    """The layers of `init` solve by the rule, so the spec is solved for by itself and then applied."""
    named = f"isornn.cells.{cell!r}" if type(cell).__module__.startswith("isornn.") else repr(cell)
    changed = [f for f in fields(objective) if getattr(objective, f.name) != f.default]
    weighed = ", ".join(f"{f.name}={_qualified(getattr(objective, f.name))}" for f in changed)
    options = [named, f"length={_plain(length)}", f"objective=isornn.Objective({weighed})"]
    options += _options(fixed, input, biases)
    return f"isornn.init.apply_(module, isornn.critical({', '.join(options)}).spec)"


def _options(fixed: Mapping[str, Any], input: Input, biases: Biases) -> list[str]:
    options = []
    if fixed:
        options.append(f"fixed={_qualified(dict(fixed))}")
    if input != _UNIT_INPUT:
        options.append(f"input=isornn.Input({_plain(float(input.variance))}, {_plain(float(input.correlation))})")
    if biases != "fixed":
        options.append(f"biases={biases!r}")
    return options


def _plain(number: float) -> str:
    """All its digits, and no more where it is whole."""
    return repr(int(number) if number == int(number) else number)


def _qualified(value: Any) -> str:
    """``value`` as Python reads it after ``import isornn``."""
    return repr(value).replace("BiasLaw(", "isornn.cells.BiasLaw(").replace("Range(", "isornn.theory.Range(")
