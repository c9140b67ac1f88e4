"""What is no cell, or one whose class attributes have a mistake, is refused alike wherever a cell is taken."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import isornn
from isornn.cells import Cell, CellError, OptionError, Reads, Spec, Values, typing_of


@dataclass(frozen=True)
class Plain(Cell):
    """The base of those below."""

    name = "plain"
    gates = {"n": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.tanh(u.n)}


@dataclass(frozen=True)
class ListOfGates(Plain):
    """``gates`` without what they read."""

    gates = ["z", "n"]  # type: ignore[assignment]


@dataclass(frozen=True)
class NamedReads(Plain):
    """What a gate reads, as a string."""

    gates = {"n": "input"}  # type: ignore[dict-item]


@dataclass(frozen=True)
class OneState(Plain):
    """``states`` is a string."""

    states = "h"  # type: ignore[assignment]


@dataclass(frozen=True)
class NoNumber(Plain):
    """A parameter without a start."""

    parameters = {"leak": "0.1"}  # type: ignore[dict-item]


@dataclass(frozen=True)
class TwiceNamed(Plain):
    """A parameter with a gate's name."""

    parameters = {"n": 0.1}


class Unbounded(Plain):
    """A parameter without a finite start."""

    parameters = {"leak": float("nan")}


@dataclass(frozen=True)
class Nameless(Cell):
    """No ``name``."""

    gates = {"n": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.tanh(u.n)}


@dataclass(frozen=True)
class Gateless(Cell):
    """No ``gates``."""

    name = "gateless"

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": s.h}


TAKES: dict[str, Callable[[Any], Any]] = {
    "layer": lambda cell: isornn.nn.RNN(cell, 3, 4),
    "spec": Spec,
    "typing": typing_of,
}


@pytest.mark.parametrize("takes", TAKES)
@pytest.mark.parametrize(
    ("cell", "error", "message"),
    [
        (Plain, OptionError, "cell: the class Plain is not allowed; it must be an instance, Plain()"),
        ("lstm", OptionError, "cell: 'lstm' is not allowed; it must be a cell"),
        ("own_cells:MGU", OptionError, "isornn.cells.cell_named gives one by name"),
        (None, OptionError, "cell: None is not allowed"),
        (ListOfGates(), CellError, "plain.gates: ['z', 'n'] is not a mapping"),
        (NamedReads(), CellError, "plain.gates: {'n': 'input'} is not a mapping from names to isornn.cells.Reads"),
        (OneState(), CellError, "plain.states: 'h' is not a tuple of names"),
        (NoNumber(), CellError, "plain.parameters: {'leak': '0.1'} is not a mapping"),
        (Unbounded(), CellError, "plain.parameters: {'leak': nan} is not a mapping from names to finite numbers"),
        (TwiceNamed(), CellError, "plain.parameters: 'n' is a gate's name too"),
        (Nameless(), CellError, "Nameless.name: None is not a string"),
        (Gateless(), CellError, "gateless.gates: None is not a mapping"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)) if not isinstance(value, str) or len(value) < 9 else "",
)
def test_what_is_no_cell_is_refused_wherever_one_is_taken(
    takes: str, cell: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        TAKES[takes](cell)


@pytest.mark.parametrize("field", ["state", "input", "previous_input"])
@pytest.mark.parametrize("value", ["input", None, 1, "n"])
def test_what_a_gate_reads_is_true_or_false(field: str, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"Reads\.{field}: {value!r} is not allowed; it must be True or False"):
        Reads(**{field: value})
