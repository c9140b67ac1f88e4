"""Base class of gated cells, with the option of the gate's squashing function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isornn.cells.activations import GATE_FUNCTIONS, choose
from isornn.cells.cell import Cell


@dataclass(frozen=True)
class GatedCell(Cell):
    """A cell whose gates are ``sigmoid`` (default) or ``hard_sigmoid`` (Gilboa et al. 2019's CIFAR-10 model)."""

    gate: str = "sigmoid"

    def __post_init__(self) -> None:
        choose(GATE_FUNCTIONS, "gate", self.gate)

    def sigma(self, u: Any) -> Any:
        """The gate function applied to a pre-activation."""
        return GATE_FUNCTIONS[self.gate](u)
