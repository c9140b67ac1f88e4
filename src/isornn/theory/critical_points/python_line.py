"""The line of Python that applies a critical point, or any spec, to a module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from isornn import cells
from isornn.cells import Cell, Gate, Input, Spec
from isornn.cells.catalogue import importable
from isornn.theory.critical_points.front import Objective
from isornn.theory.critical_points.rule import Biases

_UNIT_INPUT = Input()


def rule_line(start: str, length: float, fixed: Mapping[str, Any], input: Input, biases: Biases = "fixed") -> str:
    """Of the start ``critical`` or ``isometric``, with what differs from the defaults of its function in `init`."""
    options = ["module", f"length={_plain(length)}", *_options(fixed, input, biases)]
    return f"isornn.init.{start}_({', '.join(options)})"


def batch_line(length: float, fixed: Mapping[str, Any]) -> str:
    """Of the start ``critical`` for a batch of the user's."""
    options = ["module", f"length={_plain(length)}", "batch=batch"]
    if fixed:
        options.append(f"fixed={_qualified(dict(fixed))}")
    return f"isornn.init.critical_({', '.join(options)})"


def objective_line(
    cell: Cell, length: float, objective: Objective, fixed: Mapping[str, Any], input: Input, biases: Biases
) -> str:
    """The layers of `init` solve by the rule, so the spec is solved for by itself and then applied."""
    options = [_named(cell), f"length={_plain(length)}", f"objective=isornn.Objective({_changed(objective)})"]
    options += _options(fixed, input, biases)
    return f"{_imported(cell)}isornn.init.apply_(module, isornn.isometric({', '.join(options)}).spec)"


def spec_line(spec: Spec) -> str:
    """The spec itself, without the fields that are as they would be anyway.

    >>> from isornn.cells import SCRN
    >>> spec_line(Spec(SCRN(), {"z": Gate(input_var=1.0)}))
    "isornn.init.apply_(module, isornn.Spec(isornn.cells.SCRN(alpha=0.95), {'z': isornn.Gate(input_var=1.0)}))"
    """
    gates = {name: f"isornn.Gate({_changed(gate)})" for name, gate in spec.gates.items() if gate != Gate()}
    options = [_named(spec.cell), "{" + ", ".join(f"{name!r}: {law}" for name, law in gates.items()) + "}"]
    options += _options({}, spec.input, "fixed")
    if spec.biases != "redrawn":
        options.append(f"biases={spec.biases!r}")
    return f"{_imported(spec.cell)}isornn.init.apply_(module, isornn.Spec({', '.join(options)}))"


def _named(cell: Cell) -> str:
    kind = type(cell)
    if getattr(cells, kind.__name__, None) is kind:
        return f"isornn.cells.{cell!r}"
    return f"{kind.__module__}.{cell!r}" if importable(kind) else repr(cell)


def _imported(cell: Cell) -> str:
    """The line before, for a cell of the user's own; one of a notebook is at hand there."""
    kind = type(cell)
    own = importable(kind) and not kind.__module__.startswith("isornn.")
    return f"import {kind.__module__}\n" if own else ""


def _changed(record: Any) -> str:
    """The fields of a record that are not their defaults, as keywords."""
    changed = [f for f in fields(record) if getattr(record, f.name) != f.default]
    return ", ".join(f"{f.name}={_qualified(getattr(record, f.name))}" for f in changed)


def _options(fixed: Mapping[str, Any], input: Input, biases: Biases) -> list[str]:
    options = []
    if fixed:
        options.append(f"fixed={_qualified(dict(fixed))}")
    if input != _UNIT_INPUT:
        options.append(f"input=isornn.Input({', '.join(_input_numbers(input))})")
    if biases != "fixed":
        options.append(f"biases={biases!r}")
    return options


def _input_numbers(input: Input) -> list[str]:
    numbers = [_plain(float(input.variance)), _plain(float(input.correlation))]
    further = {name: float(getattr(input, name)) for name in ("mean", "autocorrelation")}
    return numbers + [f"{name}={_plain(number)}" for name, number in further.items() if number]


def _plain(number: float) -> str:
    """All its digits, and no more where it is whole."""
    return repr(int(number) if number == int(number) else number)


def _qualified(value: Any) -> str:
    """``value`` as Python reads it after ``import isornn``."""
    return repr(value).replace("BiasLaw(", "isornn.cells.BiasLaw(").replace("Range(", "isornn.theory.Range(")
