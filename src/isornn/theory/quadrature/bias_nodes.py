"""Representative units of a law of biases that are drawn once: what integrals over units are sums over."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.cells.bias_laws import SPREAD
from isornn.cells.openings import bias_of, retention_signs

SCRAMBLES = 8
SCRAMBLED_NODES = 128
_MOST_NODES = 8000  # of a product rule
_ROUNDING = 1e-16
_WIDTH, _FINEST = 8.5, 0.125  # of a normal variate: the range of nodes and their step
_MOST_OF_HERMITE = 28
_WIDE = 1.0  # standard deviation of biases beyond which drawn units miss those on which moments rest
# the ends of a law of uniform variates matter most: that is where the slow units are; a capped law bends at SPREAD
_EDGES = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, SPREAD, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 1.0)


@dataclass(frozen=True)
class BiasNodes:
    """Representative units: ``offset[gate]`` is what is added to the gate's mean, ``weight`` sums to 1.

    Shapes: offsets (replicates, batch or 1, nodes), weight (nodes,). Few random numbers per unit are integrated by a
    deterministic rule (one replicate), many by scrambled Sobol points, whose scrambles give the standard error.
    """

    offset: dict[str, Tensor]
    weight: Tensor

    @property
    def replicates(self) -> int:
        return max((o.shape[0] for o in self.offset.values()), default=1)

    def mean(self, values: Tensor) -> Tensor:
        """Average over units, the axis of nodes kept with length 1."""
        if values.shape[-1] == 1:
            return values
        return (values * self.weight).sum(-1, keepdim=True)


def bias_nodes(spec: Spec, bias_var: dict[str, Tensor]) -> BiasNodes:
    """Nodes for the random parts of the biases that are not already in the pre-activations' Gaussian.

    Args:
        bias_var: normal variance by gate, shapes (1, batch, 1).
    """
    laws = {name: gate.bias_law for name, gate in spec.gates.items() if gate.bias_law is not None}
    kept = [g for g in spec.gates if spec.biases == "fixed" and bool((bias_var[g] > 0).any())]
    zero = torch.zeros(1, 1, 1, dtype=torch.float64)
    uniform = [_uniform_rule(units=max(len(law.values) for law in laws.values()))] if laws else []
    retain, alone = retention_signs(spec.cell), len(uniform) + len(kept) == 1
    rules = [*uniform, *(_normal_rule(bias_var[gate], gate in retain, alone) for gate in kept)]
    if not rules:
        return BiasNodes(dict.fromkeys(spec.gates, zero), torch.ones(1, dtype=torch.float64))
    if math.prod(len(weight) for _, weight in rules) <= _MOST_NODES:
        columns, weight = _product_rule(rules)
    else:
        columns, weight = _sobol(len(uniform), len(kept), _widest(kept, retain, bias_var))
    offset = {}
    for gate in spec.gates:
        total = zero.expand(columns[0].shape[0], 1, weight.numel())
        if gate in laws:
            total = total + bias_of(spec.cell, gate, laws[gate], columns[0])[:, None]
        if gate in kept:
            total = total + bias_var[gate].sqrt() * columns[bool(laws) + kept.index(gate)][:, None]
        offset[gate] = total
    return BiasNodes(offset, weight)


Rule = tuple[Tensor, Tensor]  # nodes and weights


def _uniform_rule(units: int) -> Rule:
    """Gauss-Legendre in panels that shrink towards 0 and 1; of an empirical law the units themselves, if any."""
    if units:
        return (torch.arange(units, dtype=torch.float64) + 0.5) / units, torch.full((units,), 1 / units).double()
    x, w = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(16))
    low, high = torch.tensor(_EDGES[:-1]).double()[:, None], torch.tensor(_EDGES[1:]).double()[:, None]
    return (low + (high - low) * (x + 1) / 2).reshape(-1), ((high - low) * w / 2).reshape(-1)


def _normal_rule(bias_var: Tensor, retains: bool, alone: bool) -> Rule:
    """The trapezoid rule, or where gates are near to polynomials of their bias Gauss and Hermite's, of fewer nodes.

    Both converge exponentially. In a product of rules errors are 1e-7 of a gate, a function of width 1 of its bias, and
    1e-5 of high powers of one that retains; where the standard deviation is 3 to 6 up to 1e-3, so that there are not
    too many nodes.
    """
    spread = float(bias_var.detach().max()) ** 0.5
    few = 3 + math.ceil(11 * spread**2)
    if not (retains or alone) and few < _MOST_OF_HERMITE:
        z, weight = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(few))
        return z, weight / weight.sum()
    step = _FINEST if alone else _step(spread)
    z = torch.linspace(-_WIDTH, _WIDTH, 1 + 2 * round(_WIDTH / step), dtype=torch.float64)
    weight = torch.exp(-(z**2) / 2)
    return z, weight / weight.sum()


def _step(spread: float) -> float:
    fine = 0.75 / max(spread, 1e-9)
    if fine < 0.12:  # a coarser one would not do: so many nodes that scrambled points take their place
        return fine
    return min(max(fine, 0.25), 0.57)


def _product_rule(rules: Sequence[Rule]) -> tuple[list[Tensor], Tensor]:
    """Columns ``(1, nodes)``, without the nodes that have next to no weight."""
    nodes = torch.cartesian_prod(*(nodes for nodes, _ in rules)).reshape(-1, len(rules))
    weight = functools.reduce(lambda a, b: (a[:, None] * b).flatten(), (weight for _, weight in rules))
    matters = weight > _ROUNDING * weight.max()
    return [column[None] for column in nodes[matters].unbind(-1)], weight[matters] / weight[matters].sum()


def _widest(kept: Sequence[str], retain: Mapping[str, int], bias_var: Mapping[str, Tensor]) -> int | None:
    """The place of the retaining gate whose biases are widest, if so wide that moments rest on rare units."""
    spreads = {place: float(bias_var[gate].detach().max()) ** 0.5 for place, gate in enumerate(kept) if gate in retain}
    wide = {place: spread for place, spread in spreads.items() if spread > _WIDE}
    return max(wide, key=wide.__getitem__, default=None)


def _sobol(uniform: int, normal: int, widest: int | None) -> tuple[list[Tensor], Tensor]:
    """Columns ``(scrambles, nodes)``: uniform variates, then normal ones.

    Moments may rest on units whose biases of a retaining gate are 4 standard deviations out, which points drawn by
    their law would miss, and standard errors with them: the ``widest`` has nodes that are common to all scrambles, half
    of them by its law and half evenly spread, and weighted back.
    """
    points = [
        torch.quasirandom.SobolEngine(uniform + normal, scramble=True, seed=seed).draw(
            SCRAMBLED_NODES, dtype=torch.float64
        )
        for seed in range(SCRAMBLES)
    ]
    columns = list(torch.stack(points).clamp(1e-12, 1 - 1e-12).unbind(-1))
    columns[uniform:] = map(torch.special.ndtri, columns[uniform:])
    if widest is None:
        return columns, torch.full((SCRAMBLED_NODES,), 1 / SCRAMBLED_NODES, dtype=torch.float64)
    order = columns[uniform + widest].argsort(-1)
    columns = [column.gather(-1, order) for column in columns]
    nodes, weight = _widened_rule(SCRAMBLED_NODES)
    columns[uniform + widest] = nodes.expand(SCRAMBLES, -1)
    return columns, weight


def _widened_rule(count: int) -> Rule:
    """The midpoint rule over the shares of a normal and of a uniform law in equal parts: smooth, and nothing at its
    ends, so that errors fall exponentially until those of the table of shares, 1e-7, are left."""
    z = torch.linspace(-_WIDTH, _WIDTH, 2**14 + 1, dtype=torch.float64)
    share = (torch.special.ndtr(z) + (z + _WIDTH) / (2 * _WIDTH)) / 2
    middles = (np.arange(count) + 0.5) / count
    nodes = torch.from_numpy(np.interp(middles, share.numpy(), z.numpy()))
    normal = torch.exp(-(nodes**2) / 2) / math.sqrt(2 * math.pi)
    weight = normal / (normal + 1 / (2 * _WIDTH))
    return nodes, weight / weight.sum()
