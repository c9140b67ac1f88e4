"""Singular values of drawn networks of finite width, where the equation's law is not resolved."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from isornn.theory.spectra.blocks import Source, Step, random_parts
from isornn.theory.spectra.laws import Law, law_of_samples

NETWORKS, WIDTH = 32, 512
_BINS = 48  # of some 340 values each
_LEVELS = 199


def network_law(path: Sequence[Step], generator: torch.Generator) -> tuple[Law, float]:
    """x, density and atoms of the squared singular values of ``NETWORKS`` products of Jacobians of ``WIDTH`` units, and
    by how much their distribution function is uncertain: two standard errors where they are largest.

    Units are drawn from those of the path, matrices anew for every network and step.
    """
    values = torch.stack([_squares(_drawn(path, generator), generator) for _ in range(NETWORKS)])
    flat = values.flatten()
    law = law_of_samples(flat, torch.full_like(flat, 1 / len(flat)), bins=_BINS).histogram
    levels = flat.quantile(torch.linspace(0, 1, _LEVELS + 2, dtype=torch.float64)[1:-1])
    below = (values[:, :, None] <= levels).double().mean(1)
    return law, 2 * float(below.std(0).max()) / math.sqrt(NETWORKS)


def _drawn(path: Sequence[Step], generator: torch.Generator) -> list[Step]:
    units = torch.multinomial(path[0].weight, WIDTH, replacement=True, generator=generator)
    return [step.taken(units, torch.ones(WIDTH, dtype=torch.float64)) for step in path]


def _squares(path: Sequence[Step], generator: torch.Generator) -> Tensor:
    whole = torch.eye(path[0].states * WIDTH, dtype=torch.float64)
    for step in path:
        whole = jacobian(step, generator) @ whole
    return torch.linalg.svdvals(whole).square()


def jacobian(step: Step, generator: torch.Generator) -> Tensor:
    """The Jacobian (M n, M n) of a network of the step's n units, whatever their weight, with matrices drawn for it.

    >>> one = torch.ones(1, 1, 300, dtype=torch.float64)
    >>> drawn = jacobian(Step(1, 0.5 * one, {Source(0): one}, one.reshape(-1) / 300), torch.Generator())
    >>> drawn.shape, abs(float(drawn.square().sum() / 300) - (0.5**2 + 1)) < 0.05
    (torch.Size([300, 300]), True)
    """
    states, units = step.states, step.mean.shape[-1]
    old = torch.eye(states * units, dtype=torch.float64).reshape(states, units, -1)
    new = torch.einsum("srn,rnk->snk", step.mean[:, :states], old)
    for source, v in sorted(step.source_terms.items()):
        # a gated read may only read what comes before it
        multiplied = old[source.column] if source.column < states else new[source.column]
        for part in random_parts(v):
            if bool((part != 0).any()):
                new = new + part[..., None] * (_matrix(source, units, generator) @ multiplied)
    return new[:states].reshape(states * units, -1)


def _matrix(source: Source, units: int, generator: torch.Generator) -> Tensor:
    """(n, n), of elements of variance 1/n."""
    normal = torch.randn(units, units, dtype=torch.float64, generator=generator)
    if source.margin is None:
        return normal / math.sqrt(units)
    left, right = (_orthogonal(matrix) for matrix in (normal, torch.randn_like(normal, generator=generator)))
    s = 1 + source.margin * (2 * torch.rand(units, dtype=torch.float64, generator=generator) - 1)
    return left * (s / math.sqrt(1 + source.margin**2 / 3)) @ right


def _orthogonal(normal: Tensor) -> Tensor:
    """Of Haar's law: Q of the QR decomposition with a positive diagonal of R (Mezzadri 2007)."""
    q, r = torch.linalg.qr(normal)
    return q * r.diagonal().sign()
