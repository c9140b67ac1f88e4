"""Spectra that follow from the law of a function of one pre-activation.

A cell whose recurrent matrices are all zero, or that has none (strongly typed cells), has J = diag(f(u)), and
J = diag(phi'(u)) W with W orthogonal has J J^T = weight_var diag(phi'(u)^2): the squared singular values are f(u)^2, or
weight_var phi'(u)^2, with u Gaussian (mixed over bias laws), a change of variables. A W with a margin is free from
diag(phi'(u)), and the two laws are multiplied freely (`isornn.theory.spectra.free_product`).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.cells.openings import bias_of
from isornn.cells.polynomial import NotPolynomial, Polynomial, structure_of
from isornn.theory.matrix_law import margin_of
from isornn.theory.quadrature.engine import QuadratureEngine
from isornn.theory.spectra.free_product import product_law
from isornn.theory.spectra.push import Cells, Law, pushed_forward

_NODES = 40001
_SMOOTHED = 513  # nodes of a bias law under a normal part
_WIDE = 8.5  # standard deviations


def one_gate_law(spec: Spec, steps: int) -> Law | None:
    """x, density and atoms where the spectrum is the law of a function of one variable, else ``None``."""
    if len(spec.cell.states) != 1:
        return None
    try:
        engine = QuadratureEngine(spec, structure_of(spec.cell))
    except NotPolynomial:
        return None
    theory = engine.theory
    weighted = [gate for gate in theory.reads if float(torch.as_tensor(spec.gates[gate].weight_var)) > 0]
    if not weighted:
        cells = _cells(spec, engine, theory.A, 1.0) if steps == 1 else None
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
    if steps > 1:
        return Cells.at(cells.constant**steps).law if margin == 0 and cells.constant is not None else None
    if margin == 0:
        return cells.law
    return _of_margin(margin, cells.constant) if cells.constant is not None else product_law(cells, margin)


def _of_margin(margin: float, mean: float) -> Law:
    """Of s^2 of that mean, s uniform in [1-m, 1+m]."""
    s = torch.linspace(1 - margin, 1 + margin, _NODES, dtype=torch.float64)
    mass = torch.full((_NODES - 1,), 1 / (_NODES - 1), dtype=torch.float64)
    return pushed_forward(s, mass, lambda at: mean / (1 + margin**2 / 3) * at.square()).law


def _cells(spec: Spec, engine: QuadratureEngine, factor: Polynomial, scale: float) -> Cells | None:
    if len(factor.gates) > 1 or any(term.powers for term in factor.terms):
        return None
    if not factor.gates:
        constant = float(sum(float(term.coefficient) for term in factor.terms))
        return Cells.at(scale * constant**2)
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
        by_rank = replace(law.bias_law, values=tuple(sorted(law.bias_law.values)))
        means = (float(law.bias_mean) + bias_of(spec.cell, gate, by_rank, ranks)).sort()[0]
    if width == 0:
        ends = means if len(means) > 1 else means.repeat(2)
        return ends, torch.full((len(ends) - 1,), 1 / (len(ends) - 1), dtype=torch.float64)
    low, high = float(means[0]) - _WIDE * width, float(means[-1]) + _WIDE * width
    plain = torch.linspace(low, high, _NODES, dtype=torch.float64)
    curved = torch.linspace(math.asinh(low), math.asinh(high), _NODES, dtype=torch.float64).sinh()
    ends = torch.cat([plain, curved, torch.tensor(kinks, dtype=torch.float64)]).clamp(low, high).sort()[0]
    below = torch.stack([torch.special.ndtr((ends - mean) / width) for mean in means]).mean(0)
    return ends, below.diff()
