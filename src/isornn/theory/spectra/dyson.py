"""The matrix Dyson equation of a product of untied Jacobians, one small block per unit.

What the Jacobian of one step does at one unit fits into B x B matrices, B = states + gated reads. Rows are the unit's
new states and then its gated reads r_n; columns are its old states and then again the reads, now as what the matrices
W_n multiply. J is the Schur complement of

    J~ = [[ A + sum_k D_k W_k ,  D_n W_n ],      (new states)
          [ G + sum_k w_k W_k ,    -1    ]]      (reads: dr_n = G ds + sum_k w_k du_k)

which is linear in the random matrices. A product J_k ... J_1 is the Schur complement of k such blocks with -1 where
the new states of one are the old states of the next (`isornn.theory.spectra.blocks`): still linear in the matrices,
which are independent between steps, while A, G, D and w of one unit at different steps have the joint law that its
states give them. Given the units J~ has the mean A~ (K x K) and, for each source k, random matrices that multiply its
column q(k), rows of covariance V_k / N (K x K). With Pi = 1 on the rows of the last new states, Pi' = 1 on the columns
of the first old states, 0 elsewhere, and E over units, the resolvent at z has per unit the row block G and the scalars
e_q by column, d_k by source:

    T_q = 1 / (Pi'_q + sum_k D_k)                                       (sources k of column q)
    G   = [ -z Pi - sum_k E_k V_k + sum_q T_q A~_q A~_q^T ]^-1          (A~_q: column q of A~)
    d_k = E tr V_k G,     e_q = -T_q + T_q^2 E[A~_q^T G A~_q],          m(z) = (1/M) E tr Pi G,

m(z) = int rho(x) dx / (x - z) over the squared singular values. Gaussian matrices have E_k = e_q and D_k = d_k; with
one step, one state and no gated read these are the two scalar equations of information-plus-noise matrices with a
variance profile. Matrices with Haar bases (`isornn.theory.matrix_law`) are R-diagonal and free from what acts on
single units:
E_k = e_q F(t) and D_k = d_k F(t) with t = e_q d_k and F(t) = sum_n k_2n t^(n-1). F has several branches, so both are
unknowns and solve, with the matrix's own resolvent at zeta in place of F,

    zeta = (1 + E_k d_k) (1 + D_k e_q) / (e_q d_k)
    E_k = f(zeta) e_q / (1 + D_k e_q),     D_k = f(zeta) d_k / (1 + E_k d_k)

with f = `isornn.theory.matrix_law.tilted_mean`, which is 1 for orthogonal matrices.

Source: Hachem, Loubaton & Najim 2007 (theorem 2.4) for one state; Helton, Rashidi Far & Speicher 2007 for operator
valued semicircular elements and why there is exactly one solution with positive imaginary parts; Belinschi, Mai &
Speicher 2017 for sums of free elements, whose subordination the last line is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isornn.theory.matrix_law import tilted_mean

TOLERANCE = 1e-6
ACCEPTED = 1e-5  # where rounding keeps it from its tolerance, as very weak weights do
_ROUNDS = 60
_ROUNDING = 1e-12

Array = np.ndarray[Any, Any]


class NotSolved(ArithmeticError):
    """The equation was not solved to its tolerance.

    >>> issubclass(NotSolved, ArithmeticError)
    True
    """


@dataclass(frozen=True)
class Blocks:
    """What the product does at sampled units.

    Args:
        states: M, as many last rows are outputs.
        starts: Pi' of the Q columns that random matrices multiply, (Q,).
        columns: q of each of the S sources, (S,).
        margins: of each source; ``None`` for Gaussian matrices.
        factors: vectors p ``(n, F, K)`` with V_k = sum p p^T, and the columns of A~.
        owners: of each factor (F,): k for one of V_k, S + q for A~_q, -1 for a column of A~ that no random
            matrix multiplies (Pi' = 1, d = 0).
        weight: share of each unit ``(n,)``, summing to 1.
        energy: expected squared norm of each unit's rows of the product ``(n,)``: large singular values come from it.
        floor: the largest squared singular value of a unit's own deterministic part, which the support reaches.
        forward, backward: what -E_k and -z D_k tend to for large |z|, (S,).
    """

    states: int
    starts: Tensor
    columns: Tensor
    margins: tuple[float | None, ...]
    factors: Tensor
    owners: Tensor
    weight: Tensor
    energy: Tensor
    floor: float
    forward: Tensor
    backward: Tensor

    def taken(self, index: Tensor, weight: Tensor) -> Blocks:
        """The units ``index`` with new weights."""
        return replace(
            self, factors=self.factors[index], energy=self.energy[index], weight=weight / float(weight.sum())
        )


@dataclass(frozen=True)
class Solution:
    """``unknowns`` (E, then D) ``(Z, 2 S)`` at ``z`` (Z,), the transform ``m`` (Z,), and the largest residual."""

    z: Tensor
    unknowns: Tensor
    m: Tensor
    residual: float


class Dyson:
    """The equation for one population.

    >>> from isornn.theory.spectra.blocks import Source, Step, chained
    >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
    >>> square = Dyson(chained([Step(1, 0 * one, {Source(0): one}, one.reshape(1))]))  # J = W: the quarter circle law
    >>> z = torch.tensor([2 + 1e-9j], dtype=torch.complex128)
    >>> density = square.solved(z, square.guess(z)).m.imag / torch.pi
    >>> round(float(density), 6), round(1 / (2 * torch.pi), 6)  # sqrt((4 - x) / x) / (2 pi) at x = 2
    (0.159155, 0.159155)
    """

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.count = len(blocks.margins)
        groups = torch.arange(self.count + len(blocks.starts))
        self._sources = torch.eye(len(blocks.starts), dtype=torch.float64)[blocks.columns]  # (S, Q)
        self._grouping = (blocks.owners[:, None] == groups).to(torch.complex128)
        self._factors = blocks.factors.movedim(0, -1).contiguous().numpy()
        self._of_columns = (blocks.owners >= self.count).nonzero()[:, 0]
        self._weight = blocks.weight.contiguous().numpy()
        self._pattern = _pattern(self._factors, blocks.states)

    def guess(self, z: Tensor) -> Tensor:
        """A start for large ``|z|``."""
        return torch.cat([-self.blocks.forward.expand(len(z), -1), self.blocks.backward / -z[:, None]], -1)

    def solved(self, z: Tensor, start: Tensor) -> Solution:
        """Newton's method from ``start`` (Z, 2 S), with the averaged fixed point iteration wherever it leaves the
        half plane of the solution.

        Raises:
            NotSolved: some residual stays above `ACCEPTED`.
        """
        x, m = start.clone(), z.clone()
        size = torch.full(z.shape, torch.inf, dtype=torch.float64)
        for _ in range(_ROUNDS):
            left = (~(size < TOLERANCE)).nonzero()[:, 0]
            if not len(left):
                return Solution(z, x, m, float(size.max()))
            old = x[left]
            new, jacobian, m[left] = self._map(z[left], old)
            # relative changes: unknowns span many orders of magnitude as z goes to 0
            gap = (new / old).log()
            size[left] = gap.abs().amax(-1)
            slope = jacobian * old[:, None] / new[..., None]
            matrix = torch.eye(old.shape[-1], dtype=old.dtype) - slope
            step = torch.linalg.solve_ex(matrix, gap[..., None]).result[..., 0]
            step = step / step.abs().amax(-1, keepdim=True).clamp(min=1.0)
            moved = self._moved(old, step, new)
            # what is solved stays as it was found
            x[left] = torch.where((size[left] < TOLERANCE)[:, None], old, moved)
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
        """Imaginary parts not below 0 over the upper half plane; on the real axis the start's signs are kept anyway."""
        whole = x.isfinite().all(-1)
        return (x.imag >= -_ROUNDING * x.abs()).all(-1) & whole if x.is_complex() else whole

    def _map(self, z: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The right-hand sides at ``x``, their derivatives ``(Z, 2 S, 2 S)``, and m."""
        count, columns = self.count, self.blocks.columns
        big_e, big_d = x.chunk(2, -1)
        sources = self._sources.to(x.dtype)
        t = 1 / (big_d @ sources + self.blocks.starts)
        y, e, h, m = self._expectations(z, torch.cat([-big_e, t], -1))
        # R moves by -V dE - T^2 A A^T dD, and G by -G dR G
        by_unknown = torch.cat([h[:, :, :count], h[:, :, count:][:, :, columns] * t.square()[:, None, columns]], -1)
        d = y[:, :count]
        of_e, of_d = by_unknown[:, count:] * t.square()[..., None], by_unknown[:, :count]
        of_e[:, :, count:] += (t.square() - 2 * t**3 * y[:, count:])[..., None] * sources.T
        return *self._made(x, torch.cat([e[:, columns], d], -1), torch.cat([of_e[:, columns], of_d], 1)), m

    def _made(self, x: Tensor, raw: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """E and D (Z, 2 S) that sources make of e and d, ``raw``, whose derivatives by x are ``slopes``."""
        new, jacobian = raw.clone(), slopes.clone()
        for k, margin in enumerate(self.blocks.margins):
            if margin is not None:
                pair = torch.tensor([k, self.count + k])
                new[:, pair], by_x, by_raw = _free(margin, x[:, pair], raw[:, pair])
                jacobian[:, pair] = by_raw @ slopes[:, pair]
                jacobian[:, pair[:, None], pair] += by_x
        return new, jacobian

    def _expectations(self, z: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """E tr P_a G ``(Z, S + Q)`` for the sums P of each owner's factors, e ``(Z, Q)``, E tr P_a G P_b G, and m."""
        from isornn.theory.spectra.compiled import sums_over_units  # numba, see there

        by_factor = coefficients.to(torch.complex128) @ self._grouping.T
        by_factor[:, self.blocks.owners < 0] = 1.0
        points, count = by_factor.shape
        y = torch.zeros(points, count, dtype=torch.complex128)
        e = torch.zeros(points, len(self._of_columns), dtype=torch.complex128)
        h = torch.zeros(points, count, count, dtype=torch.complex128)
        trace = torch.zeros(points, dtype=torch.complex128)
        sums_over_units(
            z.to(torch.complex128).numpy(),
            self.blocks.states,
            by_factor.numpy(),
            self._factors,
            *self._pattern,
            self._of_columns.numpy(),
            self._weight,
            *(total.numpy() for total in (y, e, h, trace)),
        )
        by_column = -coefficients[:, self.count :].to(torch.complex128)  # what is left where a column of A~ is 0
        by_column[:, self.blocks.owners[self._of_columns] - self.count] = e
        found = (y @ self._grouping, by_column, self._grouping.T @ h @ self._grouping, trace / self.blocks.states)
        return found if z.is_complex() else (found[0].real, found[1].real, found[2].real, found[3].real)


def _pattern(factors: Array, outputs: int) -> tuple[Array, Array]:
    """Where, for some unit, entries may differ from 0: those of L in R = L D L^T (K, K), below its diagonal, and those
    of L^-1 applied to each factor, ``factors`` (F, K, n), and to the columns of Pi, (F + outputs, K)."""
    used = (factors != 0).any(-1)
    filled = np.tril(used.T @ used, -1)
    reached = np.concatenate([used, np.eye(len(filled), dtype=bool)[len(filled) - outputs :]])
    for column in range(len(filled)):
        filled |= np.tril(np.outer(filled[:, column], filled[:, column]), -1)
        reached |= reached[:, column : column + 1] & filled[:, column]
    return filled, reached


def _free(margin: float, x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(E, D) anew (Z, 2) from (E, D) and (e, d), and the derivatives (Z, 2, 2) by both pairs."""
    (big_e, big_d), (e, d) = x.unbind(-1), raw.unbind(-1)
    by_row, by_column = 1 + big_e * d, 1 + big_d * e
    zeta = by_row * by_column / (e * d)
    q, slope = tilted_mean(margin, zeta)
    new = torch.stack([q * e / by_column, q * d / by_row], -1)
    # of the logarithms of zeta, 1 / (1 + D e) and 1 / (1 + E d), by (E, D, e, d)
    zero = torch.zeros_like(e)
    column = torch.stack([zero, -e / by_column, -big_d / by_column, zero], -1)
    row = torch.stack([-d / by_row, zero, zero, -big_e / by_row], -1)
    own = torch.stack([zero, zero, 1 / e, zero], -1), torch.stack([zero, zero, zero, 1 / d], -1)
    moved = (slope * zeta / q)[:, None] * (-row - column - own[0] - own[1])
    logs = torch.stack([moved + own[0] + column, moved + own[1] + row], 1)
    whole = logs * new[..., None]
    return new, whole[..., :2], whole[..., 2:]
