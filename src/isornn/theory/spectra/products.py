"""Spectra that follow from one-dimensional laws: of one gate, of units by themselves, times a matrix with a margin."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.cells.openings import bias_of
from isornn.cells.polynomial import Polynomial
from isornn.theory.inputs import centred
from isornn.theory.matrix_law import margin_of, tilted_mean
from isornn.theory.quadrature.affine import quadrature_refusal
from isornn.theory.quadrature.engine import QuadratureEngine
from isornn.theory.quadrature.roots import brent
from isornn.theory.spectra.blocks import REPLICATES, UNITS, Step, product
from isornn.theory.spectra.dyson import ACCEPTED, TOLERANCE, NotSolved
from isornn.theory.spectra.laws import KnownMoments, Law, PiecewiseLaw, law_of_samples, pushed_forward
from isornn.theory.spectra.scan import refined

_ANGLES = (2.0, 0.7, 0.2, 0.05, 0.01, 1e-3, 1e-5)
_ROUNDS = 100
_COARSE, _POINTS = 97, 500
_LOWEST = 1e-10  # of the largest v
_NARROW = 1e-6
_NEAREST, _FARTHEST, _LOOKED_AT = -30.0, 12.0, 61  # natural logarithms of distances from an end, relative to it
_BEFORE_END, _EVERY = 1e-5, 4


def product_law(cells: PiecewiseLaw, margin: float) -> Law:
    """x, density and atoms of v y, given the law of v; y has mean 1.

    Raises:
        NotSolved: the equation's residual stays above its tolerance.

    >>> ends = torch.tensor([0.999, 1.001], dtype=torch.float64)
    >>> v = PiecewiseLaw(ends, torch.tensor([0.0, 1.0], dtype=torch.float64), ())
    >>> x, density, _ = product_law(v, 0.5)  # next to s^2 / E s^2, s uniform in [.5, 1.5]
    >>> [round(float(end), 2) for end in x[[0, -1]]], round(float(density[(x - 1).abs().argmin()]), 2)
    ([0.23, 2.08], 0.52)
    """
    slopes = _Slopes(cells)
    low, high = _ends(slopes, margin)
    even = torch.linspace(0, 1, _COARSE, dtype=torch.float64)
    near = high - (high - low) * _BEFORE_END ** (1 - even[:-1])
    x = torch.cat([low + (high - low) * even[1:-1], low * (high / low) ** even, near]).sort()[0]
    for points in (_POINTS // 2, _POINTS):
        x = refined(x, x * _density(slopes, margin, x), points)
    x = torch.cat([x[(x > low) & (x < high)], near[::_EVERY]]).sort()[0]
    density = _density(slopes, margin, x)
    zero = torch.zeros(1, dtype=torch.float64)
    return (
        torch.cat([x.new_tensor([low]), x, x.new_tensor([high])]),
        torch.cat([zero, density, zero]),
        tuple(atom for atom in cells.atoms if atom.place == 0),
    )


class _Slopes:
    """Integrals over the law of v, whose density is constant between points."""

    def __init__(self, cells: PiecewiseLaw) -> None:
        density, none = cells.below.diff() / cells.points.diff(), torch.zeros(1, dtype=torch.float64)
        self.points = cells.points
        jumps = torch.cat([density, none]) - torch.cat([none, density])
        self.jumps = jumps[: len(cells.points)]  # none where there are atoms alone
        self.places = torch.tensor([atom.place for atom in cells.atoms], dtype=torch.float64)
        self.masses = torch.tensor([atom.mass for atom in cells.atoms], dtype=torch.float64)
        self.density = density
        positive = torch.cat([cells.points, self.places[self.places > 0]])
        self.lowest, self.highest = float(positive.min()), float(positive.max())

    def first(self, p: Tensor) -> Tensor:
        """E[1/(v - p)]; p in the upper half plane, or real and outside the law."""
        far = self.points - p.real[:, None]
        size = (far.square() + p.imag.square()[:, None]).log() @ self.jumps / 2
        turned = torch.atan2(p.imag[:, None], far) @ self.jumps
        return torch.complex(-size, turned) + (1 / (self.places - p[:, None])) @ self.masses.to(p.dtype)

    def share(self, p: float) -> float:
        """E[v/(v - p)]; p real and outside the law."""
        left, wide = self.points[:-1], self.points.diff()
        smooth = (wide + p * (wide / (left - p)).log1p()) @ self.density
        return float(smooth + (self.places / (self.places - p)) @ self.masses)

    def second(self, p: Tensor) -> Tensor:
        """E[1/(v - p)^2]."""
        smooth = (1 / (self.points - p[:, None])) @ self.jumps.to(p.dtype)
        return smooth + (1 / (self.places - p[:, None]).square()) @ self.masses.to(p.dtype)


def _density(slopes: _Slopes, margin: float, x: Tensor) -> Tensor:
    """At x, by turning rays onto the real axis."""
    z = torch.polar(x, torch.full_like(x, _ANGLES[0]))
    zeta = z.clone()
    for angle in _ANGLES:
        z = torch.polar(x, torch.full_like(x, angle))
        zeta = _solved(slopes, margin, z, zeta)
    q, _ = tilted_mean(margin, zeta)
    density = (slopes.first(z / q) / q).imag / math.pi
    return torch.where(density > 1e-6 * (x * density).max() / x, density, 0.0)


def _solved(slopes: _Slopes, margin: float, z: Tensor, start: Tensor) -> Tensor:
    """Newton's method, with the averaged fixed point iteration wherever it leaves the upper half plane."""
    zeta, size = start.clone(), torch.full(z.shape, torch.inf, dtype=torch.float64)
    for _ in range(_ROUNDS):
        left = (~(size < TOLERANCE)).nonzero()[:, 0]
        if not len(left):
            return zeta
        old = zeta[left]
        q, slope = tilted_mean(margin, old)
        p = z[left] / q
        first = slopes.first(p)
        d = (1 + p * first) / q
        gap = q - 1 / d - old
        size[left] = (gap / old).abs()
        by_q = -(1 + 2 * p * first + p.square() * slopes.second(p)) / q.square()
        newton = old + gap / (1 - slope * (1 + by_q / d.square()))
        good = (newton.imag > 0) & ((newton - old).abs() < old.abs())
        moved = torch.where(good, newton, old + gap / 2)
        zeta[left] = torch.where(size[left] < TOLERANCE, old, moved)
    if bool((size < ACCEPTED).all()):
        return zeta
    raise NotSolved(f"the equation of the free product was not solved: residual {float(size.max()):.1g}")


def _ends(slopes: _Slopes, margin: float) -> tuple[float, float]:
    """Where the support ends; the lower end is as low as is looked at where v or y comes near 0."""
    low = _LOWEST * slopes.highest
    if margin < 1 and slopes.lowest > _NARROW * slopes.highest:
        low = _end(slopes, margin, upper=False)
    return low, _end(slopes, margin, upper=True)


def _end(slopes: _Slopes, margin: float, *, upper: bool) -> float:
    """The least z over real zeta above the law of y, or the largest below it: there dz / dzeta = 0.

    To each zeta belongs the p = z / f(zeta) outside the law of v with E[v / (v - p)] = f / (f - zeta).
    """
    from scipy.optimize import minimize_scalar  # half a second to import

    of_y = (1 + margin if upper else 1 - margin) ** 2 / (1 + margin**2 / 3)
    of_v = slopes.highest if upper else slopes.lowest
    sign = 1.0 if upper else -1.0

    def beyond(end: float, log: float) -> float:
        return float(end * (1 + math.exp(log)) ** sign)

    def excess(log: float, wanted: float) -> float:
        return slopes.share(beyond(of_v, log)) - wanted

    def logarithm(log: float) -> float:
        zeta = beyond(of_y, log)
        q = float(tilted_mean(margin, torch.tensor([zeta], dtype=torch.float64))[0])
        wanted = q / (q - zeta)
        if excess(_NEAREST, wanted) * excess(_FARTHEST, wanted) > 0:
            return math.inf
        return sign * math.log(q * beyond(of_v, brent(lambda at: excess(at, wanted), _NEAREST, _FARTHEST, xtol=1e-10)))

    grid = torch.linspace(_NEAREST, _FARTHEST / 2, _LOOKED_AT, dtype=torch.float64).tolist()
    best = min(grid, key=logarithm)
    step = grid[1] - grid[0]
    found = minimize_scalar(logarithm, bounds=(best - step, best + step), method="bounded", options={"xatol": 1e-8})
    return math.exp(sign * found.fun)


def unit_law(path: Sequence[Step]) -> tuple[Law, KnownMoments]:
    """x, density and atoms of the squared singular values of each unit's own A_k ... A_1 (M x M), and their
    moments, with standard errors over replicates."""
    values = torch.linalg.svdvals(product(path).movedim(-1, 0)).square()
    weight = path[0].weight
    replicates = (values * weight[:, None]).reshape(-1, REPLICATES, UNITS, values.shape[1])
    shares = weight.reshape(-1, REPLICATES, UNITS).sum((0, 2)) * values.shape[1]
    squares = (values.square() * weight[:, None]).reshape(replicates.shape)
    first, second = (part.sum((0, 2, 3)) / shares for part in (replicates, squares))
    errors = {"mean": first, "variance": second - first.square()}
    flat, mass = values.flatten(), (weight[:, None] / values.shape[1]).expand(values.shape).flatten()
    law = law_of_samples(flat, mass).histogram
    stderr = {name: float(part.std()) / math.sqrt(REPLICATES) for name, part in errors.items()}
    return law, KnownMoments(float((mass * flat).sum()), float((mass * flat.square()).sum()), stderr)


_NODES = 40001
_SMOOTHED = 513  # nodes of a bias law under a normal part
_WIDE = 8.5  # standard deviations
_ROUNDING, _SMALLEST = 1e-15, 1e-300


def one_gate_law(spec: Spec) -> Law | None:
    """x, density and atoms where the spectrum of one step is the law of a function of one variable, else ``None``."""
    if quadrature_refusal(spec) is not None:
        return None
    spec = centred(spec)
    engine = QuadratureEngine(spec)
    theory = engine.theory
    weighted = [gate for gate in theory.reads if float(torch.as_tensor(spec.gates[gate].weight_var)) > 0]
    if not weighted:
        cells = _cells(spec, engine, theory.A, 1.0)
        return None if cells is None else cells.law
    if len(weighted) > 1 or theory.A.terms or theory.reads[weighted[0]].gates:
        return None
    gate = spec.gates[weighted[0]]
    margin = margin_of(gate.ensemble)
    if margin is None:
        return None
    cells = _cells(spec, engine, theory.D[weighted[0]], float(gate.recurrent_var))
    if cells is None:
        return None
    if margin == 0:
        return cells.law
    return _of_margin(margin, cells.constant) if cells.constant is not None else product_law(cells, margin)


def _of_margin(margin: float, mean: float) -> Law:
    """Of s^2 of that mean, s uniform in [1-m, 1+m]."""
    s = torch.linspace(1 - margin, 1 + margin, _NODES, dtype=torch.float64)
    mass = torch.full((_NODES - 1,), 1 / (_NODES - 1), dtype=torch.float64)
    return pushed_forward(s, mass, lambda at: mean / (1 + margin**2 / 3) * at.square()).law


def _cells(spec: Spec, engine: QuadratureEngine, factor: Polynomial, scale: float) -> PiecewiseLaw | None:
    if len(factor.gates) > 1 or any(term.powers for term in factor.terms):
        return None
    if not factor.gates:
        constant = float(sum(float(term.coefficient) for term in factor.terms))
        return PiecewiseLaw.at(scale * constant**2)
    (gate,) = factor.gates
    kinks = [kink for function in factor.functions(gate) for kink in function.kinks]
    u, mass = _preactivation(spec, gate, float(engine.settled.laws[gate].variance.reshape(-1)[0]), kinks)

    def square(at: Tensor) -> Tensor:
        total = torch.zeros_like(at)
        for term in factor.terms:
            product = torch.as_tensor(term.coefficient, dtype=torch.float64).reshape(-1)[:1] * torch.ones_like(at)
            for function in term.factors.get(gate, ()):
                product = product * function.call(at)
            total = total + product
        return scale * total.square()

    return pushed_forward(u, mass, square)


def _preactivation(spec: Spec, gate: str, variance: float, kinks: list[float]) -> tuple[Tensor, Tensor]:
    """Ends of fine cells in u, finest where gates change, and the share of units in each.

    Over units a bias is one more normal part of u whether it is kept or redrawn.
    """
    law = spec.gates[gate]
    width = math.sqrt(variance + (float(law.bias_var) if spec.biases == "fixed" else 0.0))
    if law.bias_law is None:
        means = torch.tensor([float(law.bias_mean)], dtype=torch.float64)
    else:
        count = _SMOOTHED if width > 0 else _NODES
        ranks = (torch.arange(count, dtype=torch.float64) + 0.5) / count
        means = (float(law.bias_mean) + bias_of(spec.cell, gate, law.bias_law, ranks)).sort()[0]
    if width == 0:
        ends = means if len(means) > 1 else means.repeat(2)
        return ends, torch.full((len(ends) - 1,), 1 / (len(ends) - 1), dtype=torch.float64)
    low, high = float(means[0]) - _WIDE * width, float(means[-1]) + _WIDE * width
    plain = torch.linspace(low, high, _NODES, dtype=torch.float64)
    curved = torch.linspace(math.asinh(low), math.asinh(high), _NODES, dtype=torch.float64).sinh()
    # Next to kinks: at one a slope is that of neither side.
    near = [kink + side * max(abs(kink) * _ROUNDING, _SMALLEST) for kink in kinks for side in (-1, 1)]
    ends = torch.cat([plain, curved, torch.tensor(near, dtype=torch.float64)]).clamp(low, high).sort()[0]
    below = torch.stack([torch.special.ndtr((ends - mean) / width) for mean in means]).mean(0)
    return ends, below.diff()
