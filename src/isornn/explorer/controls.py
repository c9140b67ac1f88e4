"""The sliders: fields of a spec with their ranges, and the spec with a slider's values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from isornn.cells import BiasLaw, Cell, OptionError, Spec, SpecError, with_options
from isornn.cells.activations import GATE_FUNCTIONS, SHAPED_TRANSITIONS, TRANSITIONS
from isornn.cells.bias_laws import WITH_ENDS
from isornn.cells.starts import start

Scale = Literal["linear", "decades", "decades and 0"]


@dataclass(frozen=True)
class Field:
    """A number with a slider.

    Args:
        path: ``"f.bias_mean"``, ``"input.variance"``, ``"law.high"`` or ``"options.alpha"``.
        group: the heading under which it is shown.
        scale, low, high, step: of its slider; on a scale of decades the ends are exponents of ten, and there are ten
            steps to a decade. Any other number can be typed.
    """

    path: str
    group: str
    label: str
    value: float
    scale: Scale
    low: float
    high: float
    step: float = 1.0


@dataclass(frozen=True)
class Choice:
    """An option with named values, for a selector; arguments as `Field`."""

    path: str
    label: str
    value: str
    words: tuple[str, ...]


NETWORK = "network"
_LABELS = {
    "weight_var": "weight variance",
    "input_var": "input variance",
    "previous_input_var": "previous input's",
    "bias_mean": "bias mean",
    "bias_var": "bias variance",
}
_RANGES: dict[str, tuple[Scale, float, float, float]] = {
    "weight_var": ("decades and 0", -6, 2, 1),
    "input_var": ("decades and 0", -6, 2, 1),
    "previous_input_var": ("decades and 0", -6, 2, 1),
    "bias_mean": ("linear", -10, 10, 0.1),
    "bias_var": ("decades and 0", -6, 2, 1),
}
_OPTIONS = {"gate": GATE_FUNCTIONS, "nonlinearity": TRANSITIONS | SHAPED_TRANSITIONS}
_RATIOS = (*WITH_ENDS, "chrono")
_GIVEN = "as given"
_OF_CELL = "options."  # begins the paths of a cell's options


def opening(cell: Cell) -> Spec:
    """The spec that a cell opens with: the standard start with D = N, Gaussian, so that the spectrum can be computed.

    >>> from isornn.cells import LSTM
    >>> opening(LSTM()).gates["f"].bias_mean
    1.0
    """
    return _with_ensemble(start("standard", cell, 1, 1), "gaussian")


def fields_of(spec: Spec) -> Iterator[Field]:
    """The numbers of ``spec``, in the order in which they are shown."""
    yield Field("input.variance", NETWORK, "input variance", float(spec.input.variance), *_RANGES["input_var"])
    correlation = float(spec.input.correlation)
    yield Field("input.correlation", NETWORK, "input correlation", correlation, "linear", -1, 1, 0.01)
    for name, number in _number_options(spec.cell).items():
        yield Field(f"{_OF_CELL}{name}", NETWORK, name, number, "linear", *_range_around(number))
    law = shared_law(spec)
    if law is not None:
        yield Field("law.low", NETWORK, "time scales from", law.low, "decades", 0, 6)
        yield Field("law.high", NETWORK, "time scales to", law.high, "decades", 0, 6)
    for gate, reads in spec.cell.gates.items():
        read = {"weight_var": reads.state, "input_var": reads.input, "previous_input_var": reads.previous_input}
        for name, label in _LABELS.items():
            if read.get(name, True):
                yield Field(f"{gate}.{name}", gate, label, float(getattr(spec.gates[gate], name)), *_RANGES[name])


def choices_of(spec: Spec) -> Iterator[Choice]:
    """The options of ``spec`` with named values."""
    for option in fields(spec.cell):
        value, offered = getattr(spec.cell, option.name), (*_OPTIONS.get(option.name, {}),)
        if value in offered:  # an option of the user's own cell may have the name and other values
            yield Choice(f"{_OF_CELL}{option.name}", option.name, value, offered)
    yield Choice("biases", "biases", spec.biases, ("redrawn", "fixed"))
    ensembles = {spec.gates[gate].ensemble for gate, reads in spec.cell.gates.items() if reads.state}
    if ensembles:
        words = ("gaussian", "orthogonal", "identity")
        one = next(iter(ensembles)) if len(ensembles) == 1 else _GIVEN
        current = one if one in words else _GIVEN
        yield Choice("ensemble", "recurrent matrices", str(current), words if current in words else (*words, _GIVEN))


def shared_law(spec: Spec) -> BiasLaw | None:
    """The law of time scales that all gates with one share, but for its sign."""
    laws = {replace(gate.bias_law, sign=1) for gate in spec.gates.values() if gate.bias_law is not None}
    return next((law for law in laws if law.kind in _RATIOS), None) if len(laws) == 1 else None


def moved(spec: Spec, values: Mapping[str, Any]) -> Spec:
    """``spec`` with other values, by path; words before numbers, as they decide which options the cell has.

    Raises:
        SpecError, OptionError: no such field, or a value that it cannot have.

    >>> from isornn.cells import Minimal
    >>> spec = opening(Minimal())
    >>> moved(spec, {"u.weight_var": 4, "biases": "fixed"}).gates["u"].weight_var
    4.0
    """
    given = {path: float(value) if isinstance(value, (int, float)) else value for path, value in values.items()}
    for path, value in given.items():
        if value is None:
            raise SpecError(path, value, "give a number")
    options = {path.removeprefix(_OF_CELL): value for path, value in given.items() if path.startswith(_OF_CELL)}
    spec = replace(spec, cell=_with_options(spec.cell, options)) if options else spec
    for path, value in given.items():
        if not path.startswith(_OF_CELL):
            spec = _with(spec, path, value)
    return spec


def _with(spec: Spec, path: str, value: Any) -> Spec:
    head, _, name = path.partition(".")
    if path == "ensemble":
        return spec if value == _GIVEN else _with_ensemble(spec, value)
    if head == "law":
        return _with_law(spec, name, value)
    return spec.replace(path, value)


def _with_options(cell: Cell, values: Mapping[str, Any]) -> Cell:
    """``cell`` with these options together, as some are allowed only beside others, and all others as they are.

    Words come first. Numbers that no longer have an effect are left out, and return to their defaults.
    """
    words = {name: value for name, value in values.items() if not isinstance(value, float)}
    given = _options(cell) | words
    try:
        cell = with_options(type(cell), given)
    except OptionError:  # a tanh has no slope
        numbers = _number_options(cell).keys() - words
        cell = with_options(type(cell), {name: value for name, value in given.items() if name not in numbers})
    numbers = _number_options(cell).keys() & (values.keys() - words)
    return with_options(type(cell), _options(cell) | {name: values[name] for name in numbers})


def _options(cell: Cell) -> dict[str, Any]:
    return {option.name: getattr(cell, option.name) for option in fields(cell) if option.init}


def _number_options(cell: Cell) -> dict[str, float]:
    """The options that are numbers and have an effect: a tanh has no slope."""
    found = {}
    for name, value in _options(cell).items():
        if isinstance(value, float):
            for other in (value / 2, (value + 1) / 2):  # one may be bounded by another from below, or from above
                with suppress(OptionError):
                    with_options(type(cell), _options(cell) | {name: other})
                    found[name] = value
    return found


def _range_around(value: float) -> tuple[float, float, float]:
    """Ends and step of the slider of an option: 0 to 1, or to the next power of ten, on both sides of 0 below it."""
    high = 10.0 ** max(0, math.ceil(math.log10(abs(value)))) if math.isfinite(value) and value else 1.0
    return (-high if value < 0 else 0.0), high, high / 100


def _with_ensemble(spec: Spec, ensemble: str) -> Spec:
    for gate, reads in spec.cell.gates.items():
        if reads.state:
            spec = spec.replace(f"{gate}.ensemble", ensemble)
    return spec


def _with_law(spec: Spec, end: str, value: float) -> Spec:
    """The ends of the shared law; a chrono law with changed ends becomes a general law of time scales."""
    law = shared_law(spec)
    if law is None:
        raise SpecError(f"law.{end}", value, "the gates do not share a law of time scales")
    if getattr(law, end) == value:
        return spec
    if not 0 < value <= 1e12:
        raise SpecError(f"law.{end}", value, "it must be a number of steps above 0, at most 1e12")
    ends = {"low": law.low, "high": law.high} | {end: value}
    if ends["low"] > ends["high"]:
        ends = {"low": value, "high": value}
    kind = "timescale" if law.kind == "chrono" else law.kind
    for name, gate in spec.gates.items():
        if gate.bias_law is not None:
            spec = spec.replace(f"{name}.bias_law", BiasLaw(kind, ends["low"], ends["high"], gate.bias_law.sign))
    return spec
