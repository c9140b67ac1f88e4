"""Laws of squared singular values: densities with atoms, and the law of a function of one variable."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isornn.cells import Spec


@dataclass(frozen=True)
class Atom:
    """A share ``mass`` of the squared singular values lies at ``place`` exactly.

    >>> Atom(place=0.5, mass=0.25)  # a quarter of the singular values are sqrt(.5)
    Atom(place=0.5, mass=0.25)
    """

    place: float
    mass: float


_EQUAL = 1e-13


@dataclass(frozen=True)
class KnownMoments:
    """m1 and m2 known apart from a density, and the standard errors of mean and variance."""

    first: float
    second: float
    stderr: dict[str, float]

    @property
    def of_an_atom(self) -> bool:
        """Whether the variance is 0 to rounding, and no estimate."""
        return abs(self.second - self.first**2) <= _EQUAL * self.first**2 and not any(self.stderr.values())

    def distance(self, first: float, second: float) -> float:
        """The larger relative deviation of other moments.

        >>> KnownMoments(1.0, 2.0, {}).distance(1.0, 2.5)
        0.25
        """
        pairs = ((first, self.first), (second, self.second))
        return max(abs(other / known - 1) if known else abs(other) for other, known in pairs)


@dataclass(frozen=True)
class SpectralDensity:
    """The limiting law of the squared singular values of the state-to-state Jacobian.

    Args:
        spec: whose.
        steps: k, of the product of k Jacobians.
        x, density: points, rising, and the density there, (points,) each, atoms left out. Between points it is meant
            to be integrated as x rho over ln x, which a density that falls like a power at 0 needs.
        edges: lowest and highest point of the support; ``None`` where the law has none: the upper one where rows of
            the Jacobian are unbounded over units (speak of quantiles then), both where there are atoms alone.
        atoms: places with mass.
        below: the share between 0 and the first of ``x``, which is not resolved: products have values that are smaller
            by tens of orders of magnitude than their mean.
        mean, variance: m1 and m2 - m1^2 by integrating the density and adding the atoms.
        stderr: of mean and variance, as they are known apart from the density: in one step those of `analyze`; 0 where
            they are deterministic; without entries where they are not known.
        residual: the largest of what is missing from or beyond mass 1, and the relative deviations of m1 and m2 from
            those known apart, or else from what the same equation has by Cauchy's formula; and, above 0.006, by how
            much the distribution function moves where the law is resolved four times as finely. Of drawn networks two
            standard errors of the distribution function, if they are larger.

    >>> from isornn.cells import Gate, Vanilla
    >>> from isornn.theory import spectrum
    >>> found = spectrum(Spec(Vanilla("identity"), {"h": Gate(0.5, 1.0, ensemble="orthogonal")}))
    >>> found.atoms, found.mean, found.variance
    ((Atom(place=0.5, mass=1.0),), 0.5, 0.0)
    """

    spec: Spec
    steps: int
    x: Tensor
    density: Tensor
    edges: tuple[float | None, float | None]
    atoms: tuple[Atom, ...]
    below: float
    mean: float
    variance: float
    stderr: dict[str, float]
    residual: float

    def distribution(self, at: float | Tensor) -> Tensor:
        """The share of squared singular values up to each of ``at``, the whole brought to 1.

        What lies below the first of ``x`` counts for every ``at`` above 0, so that under that point this is an upper
        bound. Of several steps it also depends on the units that were sampled: for an LSTM with variances 1 and forget
        bias 1 standard deviations over seeds are up to 0.003 from 0.01 on, and 0.007 where 0.1 of the values are below.
        """
        at = torch.as_tensor(at, dtype=torch.float64)
        known = self._ladder()
        place = at.clamp(min=1e-300).log()
        share = torch.zeros_like(place)
        if len(self.x) > 1:
            smooth = 1.0 - self.below - sum(atom.mass for atom in self.atoms)
            share = smooth / known[-1] * interpolated(place, self.x.log(), known) + self.below * (at > 0)
        for atom in self.atoms:
            share = share + atom.mass * (at >= atom.place)
        return share

    def quantile(self, share: float) -> float:
        """The squared singular value below which ``share`` of them lie.

        Raises:
            ValueError: a share outside (0, 1).
        """
        if not 0 < share < 1:
            raise ValueError(f"share: {share} is not allowed; it must lie between 0 and 1")
        places = torch.cat([self.x, torch.tensor([atom.place for atom in self.atoms], dtype=torch.float64)]).sort()[0]
        ladder = self.distribution(places)
        right = int(torch.searchsorted(ladder, torch.tensor(share, dtype=torch.float64)).clamp(max=len(places) - 1))
        if right == 0 or any(float(places[right]) == atom.place for atom in self.atoms):
            return float(places[right])
        low, high = float(ladder[right - 1]), float(ladder[right])
        part = (share - low) / (high - low) if high > low else 1.0
        return float(places[right - 1] + min(max(part, 0.0), 1.0) * (places[right] - places[right - 1]))

    def to_json(self) -> dict[str, Any]:
        """One JSON object."""
        return {
            "cell": self.spec.cell.name,
            "steps": self.steps,
            "x": self.x.tolist(),
            "density": self.density.tolist(),
            "edges": list(self.edges),
            "atoms": [{"place": atom.place, "mass": atom.mass} for atom in self.atoms],
            "below": self.below,
            "mean": self.mean,
            "variance": self.variance,
            "stderr": dict(self.stderr),
            "residual": self.residual,
            "spec": self.spec.to_json(strict=False),
        }

    def _ladder(self) -> Tensor:
        if len(self.x) < 2:
            return torch.zeros(len(self.x), dtype=torch.float64)
        pieces = torch.cumulative_trapezoid(self.density * self.x, self.x.log())
        return torch.cat([torch.zeros(1, dtype=torch.float64), pieces])


def integrals(x: Tensor, density: Tensor, atoms: tuple[Atom, ...]) -> tuple[float, float, float]:
    """Mass, first and second moment of a density with atoms.

    >>> x = torch.logspace(-6, 0, 1001, dtype=torch.float64)
    >>> [round(part, 3) for part in integrals(x, torch.ones_like(x) / 2, (Atom(2.0, 0.5),))]
    [1.0, 1.25, 2.167]
    """
    found = []
    for power in range(3):
        smooth = float(torch.trapezoid(x ** (power + 1) * density, x.log())) if len(x) > 1 else 0.0
        found.append(math.fsum([smooth, *(atom.mass * atom.place**power for atom in atoms)]))
    return found[0], found[1], found[2]


def interpolated(at: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Linearly between the points ``(x, y)``, constant beyond them."""
    right = torch.searchsorted(x, at.contiguous()).clamp(1, len(x) - 1)
    share = ((at - x[right - 1]) / (x[right] - x[right - 1])).clamp(0, 1)
    return y[right - 1] + share * (y[right] - y[right - 1])


_BINS, _FEWEST = 1200, 20
_NO_ACCIDENT = 1e-3  # share of equal samples; units are drawn on grids
_INNER, _GAP = 4, 1e-6  # points within a bar of a histogram; between bars, of their width in ln x
_NEXT_TO_0 = 1e-3  # of a bar's right end
_LEAST = 1e-9  # share of all that counts as an atom
Law = tuple[Tensor, Tensor, tuple[Atom, ...]]


@dataclass(frozen=True)
class PiecewiseLaw:
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
    def at(place: float) -> PiecewiseLaw:
        """One atom alone."""
        nothing = torch.zeros(0, dtype=torch.float64)
        return PiecewiseLaw(nothing, nothing, (Atom(place, 1.0),))

    @property
    def constant(self) -> float | None:
        """The place of all mass, if it is one."""
        return self.atoms[0].place if not len(self.points) and len(self.atoms) == 1 else None

    @property
    def law(self) -> Law:
        """x, density and atoms: the distribution's slope between points."""
        middles = (self.points[1:] + self.points[:-1]) / 2
        return middles, self.below.diff() / self.points.diff(), self.atoms

    @property
    def histogram(self) -> Law:
        """As `law`, constant between points, for few of them: their widths may differ by orders of magnitude."""
        right = self.points[1:, None]
        left = self.points[:-1, None].maximum(_NEXT_TO_0 * right)
        share = torch.arange(_INNER + 1, dtype=torch.float64) / _INNER * (1 - _GAP)
        x = left * (right / left) ** share  # integrals are over ln x
        return x.flatten(), (self.below.diff() / self.points.diff())[:, None].expand(x.shape).flatten(), self.atoms


def pushed_forward(u: Tensor, mass: Tensor, square: Callable[[Tensor], Tensor], bins: int = _BINS) -> PiecewiseLaw:
    """The law of ``square(u)``, given the mass of each cell between neighbouring ``u``.

    Where the function is flat over cells, to rounding, their mass is an atom. Elsewhere the distribution is known at
    the cells' ends, and given at twice ``bins`` points of even shares of mass and of x.

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
        return PiecewiseLaw(nothing, nothing, tuple(Atom(atom.place, atom.mass / whole) for atom in atoms))
    places, below = _ladder((left + right) / 2, mass)
    points = _points(places, below, float(left.min()), float(right.max()), 2 * bins)
    known = interpolated(points, places, below)
    known[0], known[-1] = 0.0, float(mass.sum())
    return PiecewiseLaw(points, known, atoms)


def law_of_samples(values: Tensor, mass: Tensor, least: float = _NO_ACCIDENT, bins: int = _BINS) -> PiecewiseLaw:
    """The law of sampled values of the masses ``mass``: those equal to rounding are an atom if ``least`` or more. The
    others' is given at twice ``bins`` points, or fewer, so that some 200 different values lie between two.

    >>> values = torch.tensor([4.0, 1.0, 2.0, 2.0, 3.0], dtype=torch.float64)
    >>> law = law_of_samples(values, torch.full((5,), 0.2, dtype=torch.float64), least=0.3)
    >>> [(atom.place, round(atom.mass, 12)) for atom in law.atoms], law.points[[0, -1]].tolist()
    ([(2.0, 0.4)], [1.0, 4.0])
    """
    places, mass = _merged(values, mass)
    alike = mass >= least
    if int((~alike).sum()) < 3:
        alike[:] = True
    atoms = tuple(map(Atom, places[alike].tolist(), mass[alike].tolist()))
    if bool(alike.all()):
        nothing = torch.zeros(0, dtype=torch.float64)
        return PiecewiseLaw(nothing, nothing, atoms)
    places, shared = places[~alike], mass[~alike] / 2
    shared[[0, -1]] *= 2  # a cell between neighbours has half of the mass of each, the outer ones all of it
    smooth = pushed_forward(
        places, shared[1:] + shared[:-1], lambda at: at, max(_FEWEST, min(bins, len(places) // 400))
    )
    return PiecewiseLaw(smooth.points, smooth.below, atoms)


def _atoms(places: Tensor, mass: Tensor) -> tuple[Atom, ...]:
    places, mass = _merged(places, mass)
    kept = mass > _LEAST
    return tuple(map(Atom, places[kept].tolist(), mass[kept].tolist()))


def _merged(places: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Places, rising, those that are equal to rounding as one, and their mass."""
    order = places.argsort()
    places = places[order]
    first = torch.ones_like(places, dtype=torch.bool)
    first[1:] = places.diff() > 1e-12 * places[1:]
    return places[first], torch.zeros_like(places[first]).index_add(0, first.cumsum(0) - 1, mass[order])


def _ladder(value: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Places, rising, and the mass up to each: half of a cell's mass lies below its middle."""
    order = value.argsort()
    return value[order], mass[order].cumsum(0) - mass[order] / 2


def _points(places: Tensor, below: Tensor, low: float, high: float, count: int) -> Tensor:
    """Even shares of mass and of x together, so that no interval is short in both."""
    both = below / below[-1] + (places - low) / (high - low)
    shares = torch.linspace(float(both[0]), float(both[-1]), count, dtype=torch.float64)
    points = interpolated(shares, both, places)
    points[0], points[-1] = low, high
    return points[torch.cat([torch.ones(1, dtype=torch.bool), points.diff() > 1e-12 * high])]
