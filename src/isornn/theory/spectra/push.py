"""The law of a function of one variable: a change of variables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.theory.spectra.records import Atom, interpolated

_BINS = 1200
_LEAST = 1e-9  # share of all that counts as an atom
Law = tuple[Tensor, Tensor, tuple[Atom, ...]]


@dataclass(frozen=True)
class Cells:
    """A law by its distribution.

    Args:
        points: rising, (points,).
        below: the mass up to each, atoms left out, (points,).
        atoms: places with mass.
    """

    points: Tensor
    below: Tensor
    atoms: tuple[Atom, ...]

    @staticmethod
    def at(place: float) -> Cells:
        """One atom alone."""
        nothing = torch.zeros(0, dtype=torch.float64)
        return Cells(nothing, nothing, (Atom(place, 1.0),))

    @property
    def constant(self) -> float | None:
        """The place of all mass, if it is one."""
        return self.atoms[0].place if not len(self.points) and len(self.atoms) == 1 else None

    @property
    def law(self) -> Law:
        """x, density and atoms: the distribution's slope between points."""
        middles = (self.points[1:] + self.points[:-1]) / 2
        return middles, self.below.diff() / self.points.diff(), self.atoms


def pushed_forward(u: Tensor, mass: Tensor, square: Callable[[Tensor], Tensor]) -> Cells:
    """The law of ``square(u)``, given the mass of each cell between neighbouring ``u``.

    Where the function is flat over cells, to rounding, their mass is an atom. Elsewhere the distribution is known at
    the cells' ends, and given at points of even shares of mass and of x.

    >>> u = torch.linspace(0, 1, 10001, dtype=torch.float64)
    >>> x, density, atoms = pushed_forward(u, torch.full((10000,), 1e-4, dtype=torch.float64), lambda u: u**2).law
    >>> round(float(density[(x - 0.25).abs().argmin()]), 2), atoms  # 1 / (2 sqrt x)
    (1.0, ())
    """
    value = square(u)
    left, right = torch.minimum(value[1:], value[:-1]), torch.maximum(value[1:], value[:-1])
    flat = right - left <= 1e-15 * right
    atoms = _atoms(right[flat], mass[flat])
    left, right, mass = left[~flat], right[~flat], mass[~flat]
    if float(mass.sum()) < _LEAST or len(mass) < 2:  # one cell alone is a jump between two atoms
        whole = sum(atom.mass for atom in atoms)
        nothing = torch.zeros(0, dtype=torch.float64)
        return Cells(nothing, nothing, tuple(Atom(atom.place, atom.mass / whole) for atom in atoms))
    places, below = _ladder((left + right) / 2, mass)
    points = _points(places, below, float(left.min()), float(right.max()))
    known = interpolated(points, places, below)
    known[0], known[-1] = 0.0, float(mass.sum())
    return Cells(points, known, atoms)


def _atoms(places: Tensor, mass: Tensor) -> tuple[Atom, ...]:
    found: dict[float, float] = {}
    for place, share in zip(places.tolist(), mass.tolist(), strict=True):
        key = next((known for known in found if abs(known - place) <= 1e-12 * max(known, place)), place)
        found[key] = found.get(key, 0.0) + share
    return tuple(Atom(place, share) for place, share in sorted(found.items()) if share > _LEAST)


def _ladder(value: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Places, rising, and the mass up to each: half of a cell's mass lies below its middle."""
    order = value.argsort()
    return value[order], mass[order].cumsum(0) - mass[order] / 2


def _points(places: Tensor, below: Tensor, low: float, high: float) -> Tensor:
    """Even shares of mass and of x together, so that no interval is short in both."""
    both = below / below[-1] + (places - low) / (high - low)
    shares = torch.linspace(float(both[0]), float(both[-1]), 2 * _BINS, dtype=torch.float64)
    points = interpolated(shares, both, places)
    points[0], points[-1] = low, high
    return points[torch.cat([torch.ones(1, dtype=torch.bool), points.diff() > 1e-12 * high])]
