"""Optimisers on matrix manifolds, which work on tensors (parametrisations are in `isornn.nn`); rates by width."""

from isornn.optim.by_width import rates_by_width
from isornn.optim.cayley import polished, rotated
from isornn.optim.geodesic import GeodesicSGD

__all__ = ["GeodesicSGD", "polished", "rates_by_width", "rotated"]
