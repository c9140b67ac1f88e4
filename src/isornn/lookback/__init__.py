"""How much of a target the last steps of the inputs predict, measured on data alone: how long a memory must be."""

from isornn.lookback.measure import memory
from isornn.lookback.record import Memory

__all__ = ["Memory", "memory"]
