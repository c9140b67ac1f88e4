"""Spectra that are the law of a function of one pre-activation: no random matrix is left in them.

A cell whose recurrent matrices are all zero, or that has none (strongly typed cells), has J = diag(f(u)); and
J = diag(phi'(u)) W with W orthogonal has J J^T = weight_var diag(phi'(u)^2). So the squared singular values are
weight_var f(u)^2 with u Gaussian (mixed over bias laws): a change of variables.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.theory.quadrature.engine import QuadratureEngine
from isornn.theory.quadrature.structure import NotPolynomial, Polynomial, structure_of
from isornn.theory.spectra.records import Atom, interpolated

_NODES = 40001
_SMOOTHED = 513  # nodes of a bias law under a normal part
_WIDE = 8.5  # standard deviations
_BINS = 1200
_LEAST = 1e-9  # share of all units that counts as an atom
Law = tuple[Tensor, Tensor, tuple[Atom, ...]]


def one_gate_law(spec: Spec) -> Law | None:
    """x, density and atoms where the spectrum is the law of a function of one pre-activation, else ``None``."""
    if len(spec.cell.states) != 1:
        return None
    try:
        engine = QuadratureEngine(spec, structure_of(spec.cell))
    except NotPolynomial:
        return None
    theory = engine.theory
    weighted = [gate for gate in theory.reads if float(torch.as_tensor(spec.gates[gate].weight_var)) > 0]
    if not weighted:
        return _law(spec, engine, theory.A, 1.0)
    alone = len(weighted) == 1 and not theory.A.terms and not theory.reads[weighted[0]].gates
    if alone and spec.gates[weighted[0]].ensemble == "orthogonal":
        return _law(spec, engine, theory.D[weighted[0]], float(spec.gates[weighted[0]].weight_var))
    return None


def _law(spec: Spec, engine: QuadratureEngine, factor: Polynomial, scale: float) -> Law | None:
    if len(factor.gates) > 1 or any(term.powers for term in factor.terms):
        return None
    if not factor.gates:
        constant = float(sum(float(term.coefficient) for term in factor.terms))
        return _empty(scale * constant**2)
    (gate,) = factor.gates
    kinks = [kink for term in factor.terms for function in term.factors.get(gate, ()) for kink in function.kinks]
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


def _empty(place: float) -> Law:
    nothing = torch.zeros(0, dtype=torch.float64)
    return nothing, nothing, (Atom(place, 1.0),)


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
        means = (float(law.bias_mean) + law.bias_law.quantile(ranks)).sort()[0]
    if width == 0:
        ends = means if len(means) > 1 else means.repeat(2)
        return ends, torch.full((len(ends) - 1,), 1 / (len(ends) - 1), dtype=torch.float64)
    low, high = float(means[0]) - _WIDE * width, float(means[-1]) + _WIDE * width
    plain = torch.linspace(low, high, _NODES, dtype=torch.float64)
    curved = torch.linspace(math.asinh(low), math.asinh(high), _NODES, dtype=torch.float64).sinh()
    ends = torch.cat([plain, curved, torch.tensor(kinks, dtype=torch.float64)]).clamp(low, high).sort()[0]
    below = torch.stack([torch.special.ndtr((ends - mean) / width) for mean in means]).mean(0)
    return ends, below.diff()


def pushed_forward(u: Tensor, mass: Tensor, square: Callable[[Tensor], Tensor]) -> Law:
    """The law of ``square(u)``, given the mass of each cell between neighbouring ``u``.

    Where the function is flat over cells, to rounding, their mass is an atom. Elsewhere the distribution is known at
    the cells' ends and the density is its slope between points of even shares of mass and of x.

    >>> u = torch.linspace(0, 1, 10001, dtype=torch.float64)
    >>> x, density, atoms = pushed_forward(u, torch.full((10000,), 1e-4, dtype=torch.float64), lambda u: u**2)
    >>> round(float(density[(x - 0.25).abs().argmin()]), 2), atoms  # 1 / (2 sqrt x)
    (1.0, ())
    """
    value = square(u)
    left, right = torch.minimum(value[1:], value[:-1]), torch.maximum(value[1:], value[:-1])
    flat = right - left <= 1e-15 * right
    atoms = _atoms(right[flat], mass[flat])
    left, right, mass = left[~flat], right[~flat], mass[~flat]
    if float(mass.sum()) < _LEAST:
        whole = sum(atom.mass for atom in atoms)
        nothing = torch.zeros(0, dtype=torch.float64)
        return nothing, nothing, tuple(Atom(atom.place, atom.mass / whole) for atom in atoms)
    places, below = _ladder((left + right) / 2, mass)
    points = _points(places, below, float(left.min()), float(right.max()))
    known = interpolated(points, places, below)
    known[0], known[-1] = 0.0, float(mass.sum())
    return (points[1:] + points[:-1]) / 2, known.diff() / points.diff(), atoms


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
