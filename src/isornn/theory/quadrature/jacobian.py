"""Moments of the squared singular values of the state-to-state Jacobian, by the affine theory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from isornn.cells.polynomial import Polynomial
from isornn.theory.errors import TheoryMissing
from isornn.theory.matrix_law import fourth_cumulant
from isornn.theory.quadrature.affine import AffineTheory, Laws, Moments

Mean = Callable[[Polynomial], Tensor]


def jacobian_moments(theory: AffineTheory, laws: Laws, state: Moments) -> tuple[Tensor, Tensor]:
    """``m_n = lim (1/N) tr (J J^T)^n`` for n = 1, 2, of shape (replicates, batch).

    J = A + sum_k D_k W_k (plain reads) + sum_k D_k W_k B_k (gated reads, B_k = diag(g) + diag(w) W_j); with v and x the
    variances of a row from plain and gated reads
      m1 = E a^2 + E v + E x
      m2 = E a^4 + 2 E[a^2 (v+x)] + 2 E[a^2] E[v+x] + E[(v+x)^2] + (E v)^2 + 2 E[v] E[x] + second moment of the product
           + sum_k k_4(W_k) (E v_k)^2
    The last sum is over all matrices, v_k the share of each in v or x; it is what matrices that are not Gaussian add.
    Source: Gilboa et al. 2019 eqs. 12-13; eq. 15 printed there drops Var(v) and Cov(a^2, v) (see docs). The last sum:
    `isornn.theory.matrix_law`.

    Args:
        state: moments up to the fourth.

    Raises:
        TheoryMissing: several gated reads, or a gate that acts both in a gated read and directly.
    """

    def mean(polynomial: Polynomial) -> Tensor:
        return theory.over_units(theory.expect(polynomial, laws, state))[..., 0]

    a2 = theory.A * theory.A
    plain, gated = Polynomial([]), Polynomial([])
    product = cumulants = torch.zeros(())
    for gate, read in theory.reads.items():
        row = theory.D[gate] * theory.D[gate] * theory.number[gate]["recurrent_var"]
        if read.gates:
            if gated.terms:
                raise TheoryMissing("the Jacobian of a cell with several gated reads")
            b1, b2 = _right_factor(theory, read, mean)
            gated = row * b1[..., None]
            product = mean(row) ** 2 * b2
        else:
            plain = plain + row
        cumulants = (
            cumulants + fourth_cumulant(theory.spec.gates[gate].ensemble) * mean(gated if read.gates else row) ** 2
        )
    total = plain + gated
    m1 = mean(a2) + mean(total)
    rows = mean(a2 * a2) + 2 * mean(a2 * total) + 2 * mean(a2) * mean(total) + mean(total * total)
    return m1, rows + mean(plain) ** 2 + 2 * mean(plain) * mean(gated) + product + cumulants


def _right_factor(theory: AffineTheory, read: Polynomial, mean: Mean) -> tuple[Tensor, Tensor]:
    """First two moments of B B^T, B = diag(dr/ds) + sum_j diag(dr/du_j) W_j."""
    for gate in read.gates:
        if theory.D[gate].terms:
            raise TheoryMissing(f"the Jacobian of a cell whose gate {gate} acts directly and in a gated read")
    g = read.part(theory.state, 1)
    w, cumulants = Polynomial([]), torch.zeros(())
    for gate in read.gates:
        own = read.derivative(gate) ** 2 * theory.number[gate]["recurrent_var"]
        w, cumulants = w + own, cumulants + fourth_cumulant(theory.spec.gates[gate].ensemble) * mean(own) ** 2
    b1 = mean(g * g) + mean(w)
    b2 = mean(g**4) + 2 * mean(g * g * w) + 2 * mean(g * g) * mean(w) + mean(w * w) + mean(w) ** 2 + cumulants
    return b1, b2
