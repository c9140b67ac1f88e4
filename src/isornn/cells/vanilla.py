"""The Elman network: one matrix, one nonlinearity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isornn.cells.activations import (
    PAIRED_TRANSITIONS,
    SHAPED_TRANSITIONS,
    TRANSITIONS,
    choose,
    leaky,
    mod_relu,
)
from isornn.cells.arguments import is_number
from isornn.cells.cell import Cell, Reads, Values
from isornn.cells.errors import OptionError

_SLOPE = 0.25


@dataclass(frozen=True)
class Vanilla(Cell):
    """``h = phi(u_h)``; ``phi`` is tanh, or the logistic function as in Gilboa et al. 2019's Table 1, relu, identity.

    Three more transitions have a shape of their own:

    - ``prelu``: ``max(u, 0) + slope min(u, 0)``, the slope trained per unit from the option's value;
    - ``leaky_relu``: the same with the slope held (Vorontsov et al. 2017 clamp it to 0.5, 0.7 and 1);
    - ``modrelu``: ``sign(u) max(|u| + offset, 0)``, the offset trained per unit from 0, where it is the identity.

    And ``oplu`` takes pairs of units, 1 and 2, 3 and 4, ...: the larger pre-activation to the first, the smaller to the
    second. It permutes a vector, so it keeps norms; it is not pointwise, so the theory does not cover it.

    Args:
        nonlinearity: the name of phi.
        slope: where a PReLU's slope starts (torch's 0.25 by default), or a leaky ReLU's slope.

    Raises:
        OptionError: no such nonlinearity; a slope that is not a finite number, or given to one that has none.

    Source: Gilboa et al. 2019 Table 1; Vorontsov et al. 2017 (5.2 for the slopes); Arjovsky et al. 2016 (modReLU);
    Chernodub & Nowicki 2016 (OPLU).

    >>> Vanilla("prelu", slope=0.7).parameters
    {'slope': 0.7}
    """

    name = "vanilla"
    gates = {"h": Reads()}
    equations = ("h = tanh(u_h)",)

    nonlinearity: str = "tanh"
    slope: float = _SLOPE

    def __post_init__(self) -> None:
        choose(TRANSITIONS | SHAPED_TRANSITIONS | PAIRED_TRANSITIONS, "nonlinearity", self.nonlinearity)
        if not is_number(self.slope) or not math.isfinite(self.slope):
            raise OptionError(f"options.slope: {self.slope!r} is not a finite number")
        if self.slope != _SLOPE and self.nonlinearity not in ("prelu", "leaky_relu"):
            raise OptionError(f"options.slope: {self.nonlinearity} has no slope; prelu and leaky_relu have")

    @property
    def parameters(self) -> Mapping[str, float]:
        """PReLU's slope, modReLU's offset."""
        if self.nonlinearity == "prelu":
            return {"slope": self.slope}
        return {"offset": 0.0} if self.nonlinearity == "modrelu" else {}

    @property
    def pointwise(self) -> bool:
        """False for OPLU."""
        return self.nonlinearity not in PAIRED_TRANSITIONS

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        if self.nonlinearity == "prelu":
            return {"h": leaky(u.h, u.slope)}
        if self.nonlinearity == "leaky_relu":
            return {"h": leaky(u.h, self.slope)}
        if self.nonlinearity == "modrelu":
            return {"h": mod_relu(u.h, u.offset)}
        return {"h": (TRANSITIONS | PAIRED_TRANSITIONS)[self.nonlinearity](u.h)}
