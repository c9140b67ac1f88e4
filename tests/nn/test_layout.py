"""A cell as a text, which an exported program holds: another process makes the same cell of it, or says why not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from isornn.cells import Cell, CellError, Reads, Values
from isornn.nn import layout
from isornn.nn.layout import Layout, cell_of


@dataclass(frozen=True)
class Scaled(Cell):
    """With a field that its constructor does not take, and a tuple."""

    name = "scaled"
    gates = {"n": Reads()}

    rates: tuple[float, ...] = (0.5,)
    total: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", sum(self.rates))

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": self.total * torch.tanh(u.n)}


@dataclass(frozen=True)
class Gain:
    size: float


@dataclass(frozen=True)
class OfAnObject(Cell):
    """With an option that is no value of JSON."""

    name = "of_an_object"
    gates = {"n": Reads()}

    gain: Gain = Gain(2.0)

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": self.gain.size * torch.tanh(u.n)}


def test_another_process_makes_the_same_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Scaled((0.25, 0.5))
    key = Layout.of(cell).key
    monkeypatch.setattr(layout, "_CELLS", {})
    assert cell_of(key) == cell


def test_an_option_that_a_text_does_not_hold_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = OfAnObject()
    key = Layout.of(cell).key
    assert cell_of(key) is cell
    monkeypatch.setattr(layout, "_CELLS", {})
    with pytest.raises(CellError, match=r"OfAnObject: a program does not hold its option gain, Gain\(size=2.0\); make"):
        cell_of(key)
