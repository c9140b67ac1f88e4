"""What is answered when a critical point is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from isornn.cells import Spec
from isornn.theory.records import Analysis, Quantity

Biases = Literal["redrawn", "fixed"]
TimeScales = Literal["uniform", "octaves"]
BIASES: tuple[Biases, ...] = ("redrawn", "fixed")
TIME_SCALES: tuple[TimeScales, ...] = ("uniform", "octaves")


@dataclass(frozen=True)
class Condition:
    """One thing asked of a critical point: what was wanted, what was found, and whether it holds."""

    name: str
    wanted: str
    found: str
    met: bool


@dataclass(frozen=True)
class Critical:
    """A spec that sees ``length`` steps: what it achieves, which conditions hold, and the line that applies it."""

    spec: Spec
    length: float
    analysis: Analysis
    conditions: tuple[Condition, ...]
    python: str


def shown(quantity: Quantity) -> str:
    value, error = quantity.number(), quantity.error()
    if value is None:
        return f"none ({quantity.reason()})"
    return f"{value:.6g}" + (f" +- {error:.1g}" if error else "")
