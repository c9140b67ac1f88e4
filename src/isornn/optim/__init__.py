"""Optimisers on matrix manifolds: they work on tensors; parametrisations are in `isornn.nn`."""

from isornn.optim.cayley import polished, rotated
from isornn.optim.geodesic import GeodesicSGD

__all__ = ["GeodesicSGD", "polished", "rotated"]
