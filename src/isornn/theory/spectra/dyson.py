"""The matrix Dyson equation of the untied Jacobian, one small block per unit.

What the Jacobian does at one unit fits into K x K matrices, K = states + gated reads. Rows are the unit's new states
and then its gated reads r_n; columns are its old states and then again the reads, now as what the matrices W_n
multiply. J is the Schur complement of

    J~ = [[ A + sum_k D_k W_k ,  D_n W_n ],      (new states)
          [ G + sum_k w_k W_k ,    -1    ]]      (reads: dr_n = G ds + sum_k w_k du_k)

which is linear in the Gaussian matrices. Given the unit it has the mean A~ (K x K) and, for each column q that is
multiplied by random matrices, rows of covariance V_q / N (K x K). With Pi = 1 on states and 0 on reads, and E over
units, the resolvent at z has per unit the row block G and, by q, the scalars e_q, d_q:

    T_q = 1 / (Pi_q + d_q)
    G   = [ -z Pi - sum_q e_q V_q + sum_q T_q A~_q A~_q^T ]^-1          (A~_q: column q of A~)
    d_q = E tr V_q G,     e_q = -T_q + T_q^2 E[A~_q^T G A~_q],          m(z) = (1/M) E tr Pi G,

m(z) = int rho(x) dx / (x - z) over the squared singular values. With one state and no gated read these are the two
scalar equations of information-plus-noise matrices with a variance profile.

Source: Hachem, Loubaton & Najim 2007 (theorem 2.4) for one state; Helton, Rashidi Far & Speicher 2007 for operator
valued semicircular elements and why there is exactly one solution with positive imaginary parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

TOLERANCE = 1e-7
ACCEPTED = 1e-5  # where rounding keeps it from its tolerance, as very weak weights do
_ROUNDS = 60
Entries = list[list[Tensor]]
Sparse = list[list[Tensor | None]]  # None for zeros


class NotSolved(ArithmeticError):
    """The equation was not solved to its tolerance."""


@dataclass(frozen=True)
class Blocks:
    """What the Jacobian does at sampled units.

    Args:
        states: M, the first M rows and columns.
        mean: A~ ``(K, K, n)``.
        births: V_q ``(K, K, n)`` by column q, those that are not zero.
        weight: share of each unit ``(n,)``, summing to 1.
    """

    states: int
    mean: Tensor
    births: Mapping[int, Tensor]
    weight: Tensor

    @property
    def size(self) -> int:
        """K."""
        return self.mean.shape[0]

    def taken(self, index: Tensor, weight: Tensor) -> Blocks:
        """The units ``index`` with new weights."""
        births = {q: v[..., index] for q, v in self.births.items()}
        return replace(self, mean=self.mean[..., index], births=births, weight=weight / weight.sum())

    def bound(self) -> float:
        """A number that no squared singular value of a state-to-state block of these units exceeds."""
        rows = self.mean.square().sum((0, 1))
        size = float(rows.max())
        for v in self.births.values():
            trace = torch.einsum("ssn->n", v)
            size += 4 * float(trace.max())
        # a product through a read is bounded by the product of its two factors
        return (1 + size) ** (1 + self.size - self.states)


@dataclass(frozen=True)
class Solution:
    """``unknowns`` (e, then d) ``(Z, 2 Q)`` at ``z`` (Z,), the transform ``m`` (Z,), and the largest residual."""

    z: Tensor
    unknowns: Tensor
    m: Tensor
    residual: float


class Dyson:
    """The equation for one population.

    >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
    >>> square = Dyson(Blocks(1, 0 * one, {0: one}, one.reshape(1)))  # J = W: the quarter circle law
    >>> z = torch.tensor([2 + 1e-9j], dtype=torch.complex128)
    >>> density = square.solved(z, square.guess(z)).m.imag / torch.pi
    >>> round(float(density), 6), round(1 / (2 * torch.pi), 6)  # sqrt((4 - x) / x) / (2 pi) at x = 2
    (0.159155, 0.159155)
    """

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.columns = sorted(blocks.births)
        # reads have no -z of their own: their columns are there for the random matrices only
        self.pi = [1.0 if q < blocks.states else 0.0 for q in range(blocks.size)]
        grams = {q: blocks.mean[:, None, q] * blocks.mean[None, :, q] for q in range(blocks.size)}
        still = sum((grams[q] for q in grams if q not in self.columns), torch.zeros_like(blocks.mean))
        self.births = [_entries(blocks.births[q]) for q in self.columns]
        self.grams = [_entries(grams[q]) for q in self.columns]
        self.still = _entries(still)

    def guess(self, z: Tensor) -> Tensor:
        """A start for large ``|z|``: e = -1 on states; small d."""
        e = torch.stack([-torch.ones_like(z) for _ in self.columns], -1)
        d = torch.stack(
            [torch.einsum("ssn,n->", self.blocks.births[q], self.blocks.weight) / -z for q in self.columns], -1
        )
        reads = torch.tensor([q >= self.blocks.states for q in self.columns])
        return torch.cat([torch.where(reads, -1 / d, e), d], -1)

    def solved(self, z: Tensor, start: Tensor) -> Solution:
        """Newton's method from ``start`` (Z, 2 Q), with the averaged fixed point iteration wherever it leaves the
        half plane of the solution.

        Raises:
            NotSolved: some residual stays above `ACCEPTED`.
        """
        x = start
        for _ in range(_ROUNDS):
            new, jacobian, m = self._map(z, x)
            # relative changes: unknowns span many orders of magnitude as z goes to 0
            gap = (new / x).log()
            size = gap.abs().amax(-1)
            if bool((size < TOLERANCE).all()):
                return Solution(z, x, m, float(size.max()))
            slope = jacobian * x[:, None] / new[..., None]
            step = torch.linalg.solve(torch.eye(x.shape[-1], dtype=x.dtype) - slope, gap[..., None])[..., 0]
            step = step / step.abs().amax(-1, keepdim=True).clamp(min=1.0)
            x = self._moved(x, step, new)
        if bool((size < ACCEPTED).all()):
            return Solution(z, x, m, float(size.max()))
        raise NotSolved(f"the Dyson equation of the spectrum was not solved: residual {float(size.max()):.1g}")

    def slope(self, found: Solution) -> float:
        """Largest spectral radius of the map's derivative at a solution; below 1 outside the support."""
        _, jacobian, _ = self._map(found.z, found.unknowns)
        return float(torch.linalg.eigvals(jacobian).abs().max())

    def _moved(self, x: Tensor, step: Tensor, new: Tensor) -> Tensor:
        """By Newton's step, a quarter of it, or half way to the map's value: the first that is admissible."""
        moved = x + (new - x) / 2
        for share in (0.25, 1.0):
            there = x * (share * step).exp()
            moved = torch.where(self._admissible(there)[:, None], there, moved)
        return moved

    def _admissible(self, x: Tensor) -> Tensor:
        """Imaginary parts above 0 over the upper half plane; on the real axis the start's signs are kept anyway."""
        whole = x.isfinite().all(-1)
        return (x.imag > 0).all(-1) & whole if x.is_complex() else whole

    def _map(self, z: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The right-hand sides at ``x``, their derivatives ``(Z, 2 Q, 2 Q)``, and m."""
        e, d = x.chunk(2, -1)
        t = 1 / (d + torch.tensor([self.pi[q] for q in self.columns], dtype=torch.float64))
        g = self._resolvent(z, e, t)
        pushed = [_times(p, g) for p in (*self.births, *self.grams)]
        y = torch.stack([self._mean(z, _trace(w)) for w in pushed], -1)
        count = len(self.columns)
        h = x.new_zeros(len(z), 2 * count, 2 * count)
        for a in range(2 * count):
            for b in range(a, 2 * count):
                h[:, a, b] = h[:, b, a] = self._mean(z, _trace_of_product(pushed[a], pushed[b]))
        # R moves by -V de - T^2 A A^T dd, and G by -G dR G
        by_unknown = torch.cat([h[:, :, :count], h[:, :, count:] * t.square()[:, None]], -1)
        jacobian = torch.cat([by_unknown[:, count:] * t.square()[..., None], by_unknown[:, :count]], 1)
        own = t.square() - 2 * t**3 * y[:, count:]
        jacobian[:, :count, count:] += torch.diag_embed(own)
        new = torch.cat([-t + t.square() * y[:, count:], y[:, :count]], -1)
        m = sum((self._mean(z, g[s][s]) for s in range(self.blocks.states)), torch.zeros_like(z)) / self.blocks.states
        return new, jacobian, m

    def _resolvent(self, z: Tensor, e: Tensor, t: Tensor) -> Entries:
        """G as entries ``(Z, n)``."""
        size = self.blocks.size

        def entry(s: int, r: int) -> Tensor:
            total = torch.zeros(len(z), self.blocks.weight.numel(), dtype=z.dtype)
            if s == r:
                total = total - self.pi[s] * z[:, None]
            parts = [(torch.ones(1, 1, dtype=torch.float64), self.still[s][r])]
            parts += [(-e[:, j, None], v[s][r]) for j, v in enumerate(self.births)]
            parts += [(t[:, j, None], gram[s][r]) for j, gram in enumerate(self.grams)]
            for factor, value in parts:
                if value is not None:
                    total = total + factor * value
            return total

        return _inverse([[entry(s, r) for r in range(size)] for s in range(size)])

    def _mean(self, z: Tensor, values: Tensor | None) -> Tensor:
        if values is None:
            return torch.zeros_like(z)
        return values @ self.blocks.weight.to(values.dtype)


def _inverse(r: Entries) -> Entries:
    """Of symmetric matrices; the inverse by cofactors up to size 2."""
    if len(r) == 1:
        return [[1 / r[0][0]]]
    if len(r) == 2:
        scale = 1 / (r[0][0] * r[1][1] - r[0][1] * r[1][0])
        off = -r[0][1] * scale
        return [[r[1][1] * scale, off], [off, r[0][0] * scale]]
    whole = torch.linalg.inv(torch.stack([torch.stack(row, -1) for row in r], -2))
    return [[whole[..., s, q] for q in range(len(r))] for s in range(len(r))]


def _entries(p: Tensor) -> Sparse:
    """Entries ``(n,)`` of a block ``(K, K, n)``; ``None`` for those that are zero in all units."""
    return [[entry if bool((entry != 0).any()) else None for entry in row] for row in p]


def _times(p: Sparse, g: Entries) -> Sparse:
    size = range(len(g))
    return [[_sum([_product(p[s][j], g[j][r]) for j in size]) for r in size] for s in size]


def _trace(w: Sparse) -> Tensor | None:
    return _sum([w[s][s] for s in range(len(w))])


def _trace_of_product(v: Sparse, w: Sparse) -> Tensor | None:
    size = range(len(v))
    return _sum([_product(v[s][j], w[j][s]) for s in size for j in size])


def _product(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return None if a is None or b is None else a * b


def _sum(terms: list[Tensor | None]) -> Tensor | None:
    there = [term for term in terms if term is not None]
    return sum(there[1:], there[0]) if there else None
