"""Optimisers on matrix manifolds: they see tensors alone, parametrisations are in `isornn.nn`."""

from isornn.optim.cayley import polished, rotated
from isornn.optim.geodesic import GeodesicSGD

__all__ = ["GeodesicSGD", "polished", "rotated"]
