"""Average over units that keep their bias, and over bias laws that are not normal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.cells.bias_laws import SPREAD
from isornn.cells.openings import bias_of

SCRAMBLES = 8
SCRAMBLED_NODES = 128
# the ends of a law of uniform variates matter most: that is where the slow units are; a capped law bends at SPREAD
_EDGES = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, SPREAD, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 1.0)


@dataclass(frozen=True)
class BiasNodes:
    """Representative units: ``offset[gate]`` is what is added to the gate's mean, ``weight`` sums to 1.

    Shapes: offsets (replicates, batch or 1, nodes), weight (nodes,). One random number per unit is integrated by a
    deterministic rule (one replicate); several by scrambled Sobol points, whose scrambles give the standard error.
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
    dimensions = bool(laws) + len(kept)
    zero = torch.zeros(1, 1, 1, dtype=torch.float64)
    if dimensions == 0:
        return BiasNodes(dict.fromkeys(spec.gates, zero), torch.ones(1, dtype=torch.float64))
    if dimensions == 1 and laws:
        v, weight = _uniform_rule(units=max(len(law.values) for law in laws.values()))
        columns = [v]
    elif dimensions == 1:
        z, weight = _normal_rule()
        columns = [z]
    else:
        v, weight = _sobol(dimensions)
        columns = list(v.unbind(-1))
        first = 1 if laws else 0
        columns[first:] = [torch.special.ndtri(c) for c in columns[first:]]
    offset = {}
    for gate in spec.gates:
        total = zero.expand(columns[0].shape[0], 1, weight.numel())
        if gate in laws:
            total = total + bias_of(spec.cell, gate, laws[gate], columns[0])[:, None]
        if gate in kept:
            total = total + bias_var[gate].sqrt() * columns[bool(laws) + kept.index(gate)][:, None]
        offset[gate] = total
    return BiasNodes(offset, weight)


def _uniform_rule(units: int) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre in panels that shrink towards 0 and 1; of an empirical law the units themselves, if any."""
    if units:
        return (torch.arange(units, dtype=torch.float64) + 0.5)[None] / units, torch.full((units,), 1 / units).double()
    x, w = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(16))
    low, high = torch.tensor(_EDGES[:-1]).double()[:, None], torch.tensor(_EDGES[1:]).double()[:, None]
    return (low + (high - low) * (x + 1) / 2).reshape(1, -1), ((high - low) * w / 2).reshape(-1)


def _normal_rule() -> tuple[Tensor, Tensor]:
    """Trapezoid rule, exponentially convergent for a Gaussian weight."""
    z = torch.linspace(-8.5, 8.5, 137, dtype=torch.float64)
    weight = torch.exp(-(z**2) / 2)
    return z[None], weight / weight.sum()


def _sobol(dimensions: int) -> tuple[Tensor, Tensor]:
    points = [
        torch.quasirandom.SobolEngine(dimensions, scramble=True, seed=seed).draw(SCRAMBLED_NODES, dtype=torch.float64)
        for seed in range(SCRAMBLES)
    ]
    inside = torch.stack(points).clamp(1e-12, 1 - 1e-12)
    return inside, torch.full((SCRAMBLED_NODES,), 1 / SCRAMBLED_NODES, dtype=torch.float64)
