"""The stationary law of several states that enter each other's updates affinely, given the unit: its moments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from isornn.theory.population.line import LinearSystem
from isornn.theory.population.means import RESOLVED, Rule, averages
from isornn.theory.population.slow_law import ROUNDING, SLOW, own_bias, spread_normals
from isornn.theory.population.units import Draws, Field, Laws, Units, bounded, ranks

# Values of a rule for each unit: a pair of one gate's pre-activations has 32 each. Steps in parts of the one that
# resolves, where errors are 1e-4: at half of it they are 1e-8.
_PER_UNIT = 1024
_FINE, _EXACT = 0.5, 0.7
_ISOTROPIC = 1e-12  # what rounding leaves of a matrix's eigenvalues


@dataclass(frozen=True)
class JointLaw:
    """Moments of ``s' = A s + B`` given the unit, s a vector of k states; all are ``(..., G, R, n)``.

    ``mean = (1 - E A)^-1 E B``, and ``E[s_a s_b^T]`` solves ``S = E[A_a S A_b^T + A_a mean B_b^T + B_a mean^T A_b^T +
    B_a B_b^T]``, for a copy with itself and for the pair of copies.

    Args:
        mean: ``(k, ...)``.
        covariance: of the states of all copies, ``(copies k, copies k, ...)``, the first copy's first.
        root: its root: ``root root^T`` is the covariance.
        loss: 1 less the spectral radius of ``E[A_a kron A_b]``, what a displacement loses per step in the long run.
        known, gaussian, frozen, exact: as for `SlowLaw`.
        isotropic: whether it loses that at every step, in whatever direction: ``E[A_a A_b^T] = (1 - loss) 1``.
    """

    mean: Tensor
    covariance: Tensor
    root: Tensor
    loss: Tensor
    known: Tensor
    gaussian: Tensor
    frozen: Tensor
    exact: bool
    isotropic: bool

    @staticmethod
    def of(laws: Laws, units: Units, held: Field, names: Sequence[str]) -> JointLaw:
        """The law of the states ``names`` under the gate law of the field ``held``.

        Units of different biases come in the order of their first bias, as for `SlowLaw`.
        """
        system = LinearSystem.of(laws.cell, names)
        steps = [Rule.of(laws, held, units.copies, group, _PER_UNIT, _FINE).step for group in system.groups]
        moments = torch.stack(averages(laws, units, held, system, _PER_UNIT, _FINE), -1)
        law = _law(moments, len(names), units.copies, exact=max(steps, default=0.0) <= _EXACT * RESOLVED)
        return law.taken(own_bias(units).argsort(-1)) if units.offsets else law

    @property
    def exact_pair(self) -> bool:
        """As ``exact``: all that is known comes from both copies."""
        return self.exact

    def of_units(self, units: Units) -> JointLaw:
        """The law of the same units, in the order in which they are now."""
        return self.taken(ranks(own_bias(units))) if units.offsets else self

    def taken(self, order: Tensor) -> JointLaw:
        """The units ``order`` ``(G, R, n)``, in that order."""
        tensors = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("exact", "isotropic")}
        picked = {
            name: value.gather(-1, order.expand(*value.shape[:-1], order.shape[-1])) for name, value in tensors.items()
        }
        return JointLaw(**picked, exact=self.exact, isotropic=self.isotropic)

    def moments(self) -> Tensor:
        """E s, E s^2 and E s_a s_b of each state, ``(k, 3, ...)``."""
        count, square = len(self.mean), self.mean.square()
        diagonal = self.covariance.diagonal(dim1=0, dim2=1).movedim(-1, 0)
        across = self.covariance[:count, -count:].diagonal(dim1=0, dim2=1).movedim(-1, 0)
        return torch.stack([self.mean, square + diagonal[:count], square + across], 1)

    def redrawn(self, draws: Draws, units: Units, names: Sequence[str], where: Tensor) -> Units:
        """The states ``names`` drawn afresh from the Gaussian with these moments in the units ``where``."""
        normal = spread_normals(draws, self.loss, units.copies * len(names))
        values = torch.einsum("ij...,j...->i...", self.root, normal).unflatten(0, (units.copies, len(names)))
        fresh = {name: values[:, k] + self.mean[k] for k, name in enumerate(names)}
        states = {name: torch.where(where, value, units.states[name]) for name, value in fresh.items()}
        return replace(units, states=bounded({**units.states, **states}))


def _law(moments: Tensor, count: int, copies: int, exact: bool) -> JointLaw:
    """From what `LinearSystem.moments` has, on the last axis."""
    finite = moments.isfinite().all(-1)
    moments = torch.where(finite[..., None], moments, 0.0)  # eigenvalues of anything else are refused
    places = count * (count + 1)
    one = moments[..., 2 * places**2 :].unflatten(-1, (count, count + 1))
    both = moments[..., : 2 * places**2].unflatten(-1, (2, count, count + 1, count, count + 1))
    # to (a copy with itself, with the other), rows, rows, places, places
    own, pair = both.transpose(-3, -2).unbind(-5)
    growth, retained = _radius(own[..., :count, :count]), torch.linalg.eigvals(one[..., :count]).abs().amax(-1)
    known = (growth < 1 - ROUNDING) & finite
    mean = _solved(torch.where(known[..., None, None], one[..., :count], 0.0), one[..., count])
    second, across = (
        _second_moment(torch.where(known[..., None, None, None, None], e, 0.0), mean) for e in (own, pair)
    )
    spread, shared = (value - mean[..., :, None] * mean[..., None, :] for value in (second, across))
    known = known & (spread.diagonal(dim1=-2, dim2=-1) >= 0).all(-1)
    known = known & (spread.isfinite() & shared.isfinite()).flatten(-2).all(-1)
    covariance = spread
    if copies == 2:
        covariance = torch.cat([torch.cat([spread, shared], -1), torch.cat([shared, spread], -1)], -2)
    covariance = torch.where(known[..., None, None], (covariance + covariance.mT) / 2, 0.0)
    scale, directions = torch.linalg.eigh(covariance)
    shrinking = _radius(pair[..., :count, :count])
    one_step = pair[..., :count, :count].diagonal(dim1=-2, dim2=-1).sum(-1)
    uneven = one_step - shrinking[..., None, None] * torch.eye(count, dtype=one_step.dtype)
    slow = known & (1 - growth < SLOW) & (1 - growth > 1.9 * (1 - retained))
    return JointLaw(
        mean=torch.where(known[..., None], mean, 0.0).movedim(-1, 0),
        covariance=covariance.movedim((-2, -1), (0, 1)),
        root=(directions * scale.clamp(min=0).sqrt()[..., None, :]).movedim((-2, -1), (0, 1)),
        loss=1 - shrinking,
        known=known,
        gaussian=slow,
        frozen=(1 - growth).abs() <= ROUNDING,
        exact=exact,
        isotropic=bool((uneven.abs() <= _ISOTROPIC).all()),
    )


def _solved(a: Tensor, b: Tensor) -> Tensor:
    """x of ``x = a x + b``."""
    return torch.linalg.solve(torch.eye(a.shape[-1], dtype=a.dtype) - a, b)


def _second_moment(e: Tensor, mean: Tensor) -> Tensor:
    """S of ``S_ij = sum_kl e_ijkl S_kl``, where beside the states a 1 with moments ``mean`` is the last place."""
    count = mean.shape[-1]
    constant = (
        torch.einsum("...ijk,...k->...ij", e[..., :count, count], mean)
        + torch.einsum("...ijk,...k->...ij", e[..., count, :count], mean)
        + e[..., count, count]
    )
    kept = e[..., :count, :count].flatten(-2).flatten(-3, -2)
    return _solved(kept, constant.flatten(-2)).unflatten(-1, (count, count))


def _radius(kept: Tensor) -> Tensor:
    """Spectral radius of the map ``S_kl -> sum_kl e_ijkl S_kl``."""
    return torch.linalg.eigvals(kept.flatten(-2).flatten(-3, -2)).abs().amax(-1)
