"""The Elman network: one matrix, one nonlinearity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isornn.cells.activations import TRANSITIONS, choose
from isornn.cells.cell import Cell, Reads, Values


@dataclass(frozen=True)
class Vanilla(Cell):
    """``h = phi(u_h)``; ``phi`` is tanh, or the logistic function as in Gilboa et al. 2019's Table 1, relu, identity.

    Source: Gilboa et al. 2019 Table 1; Vorontsov et al. 2017.
    """

    name = "vanilla"
    gates = {"h": Reads()}
    equations = ("h = tanh(u_h)",)

    nonlinearity: str = "tanh"

    def __post_init__(self) -> None:
        choose(TRANSITIONS, "nonlinearity", self.nonlinearity)

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": TRANSITIONS[self.nonlinearity](u.h)}
