"""Jacobians that no random matrix is part of: units keep to themselves, and the law is that of sampled ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from isornn.theory.spectra.blocks import REPLICATES, UNITS
from isornn.theory.spectra.chain import Step, product
from isornn.theory.spectra.push import Law, pushed_forward
from isornn.theory.spectra.records import KnownMoments


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
    order = flat.argsort()
    ladder = flat[order]
    # a cell between neighbours has half of the mass of each, the outer ones all of it
    shared = mass[order] / 2
    shared[[0, -1]] *= 2
    law = pushed_forward(ladder, shared[1:] + shared[:-1], lambda at: at).law
    stderr = {name: float(part.std()) / math.sqrt(REPLICATES) for name, part in errors.items()}
    return law, KnownMoments(float((mass * flat).sum()), float((mass * flat.square()).sum()), stderr)
