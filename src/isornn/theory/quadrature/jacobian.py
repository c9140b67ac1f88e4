"""Moments of the squared singular values of the state-to-state Jacobian, by the affine theory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.theory.errors import TheoryMissing
from isornn.theory.quadrature.affine import AffineTheory, Laws, Moments
from isornn.theory.quadrature.structure import Polynomial

Mean = Callable[[Polynomial], Tensor]


def jacobian_moments(theory: AffineTheory, laws: Laws, state: Moments) -> tuple[Tensor, Tensor]:
    """``m_n = lim (1/N) tr (J J^T)^n`` for n = 1, 2, of shape (replicates, batch).

    J = A + sum_k D_k W_k (plain reads) + sum_k D_k W_k B_k (gated reads, B_k = diag(g) + diag(w) W_j) has Gaussian
    rows given the units; with v and x the rows' variances from plain and gated reads
      m1 = E a^2 + E v + E x
      m2 = E a^4 + 2 E[a^2 (v+x)] + 2 E[a^2] E[v+x] + E[(v+x)^2] + (E v)^2 + 2 E[v] E[x] + second moment of the product
    Source: Gilboa et al. 2019 eqs. 12-13; eq. 15 printed there drops Var(v) and Cov(a^2, v) (see docs).

    Args:
        state: moments up to the fourth.

    Raises:
        TheoryMissing: matrices that are not Gaussian beside a carried state; several gated reads, or a gate that acts
            both in a gated read and directly.
    """

    def mean(polynomial: Polynomial) -> Tensor:
        return theory.over_units(theory.expect(polynomial, laws, state))[..., 0]

    if not theory.A.terms and len(theory.reads) == 1 and not any(r.gates for r in theory.reads.values()):
        return _one_matrix(theory, mean)
    _need_gaussian(theory.spec)
    a2 = theory.A * theory.A
    plain, gated = Polynomial([]), Polynomial([])
    product = torch.zeros(())
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
    total = plain + gated
    m1 = mean(a2) + mean(total)
    rows = mean(a2 * a2) + 2 * mean(a2 * total) + 2 * mean(a2) * mean(total) + mean(total * total)
    return m1, rows + mean(plain) ** 2 + 2 * mean(plain) * mean(gated) + product


def _one_matrix(theory: AffineTheory, mean: Mean) -> tuple[Tensor, Tensor]:
    """J = D W: D^2 and W W^T are free, so tr (D W W^T D)^2 = E d^2 w1^2 + (E d)^2 (w2 - w1^2), d = weight_var D^2.

    With d scaled to w1 = 1, w2 is 2 for Gaussian matrices, 1 for orthogonal ones, and
    (1 + 2 m^2 + m^4/5) / (1 + m^2/3)^2 for singular values uniform in [1-m, 1+m].
    """
    (gate,) = theory.reads
    ensemble = theory.spec.gates[gate].ensemble
    if isinstance(ensemble, str):
        w2 = {"gaussian": 2.0, "orthogonal": 1.0}[ensemble]
    else:
        w2 = (1 + 2 * ensemble**2 + ensemble**4 / 5) / (1 + ensemble**2 / 3) ** 2
    d = theory.D[gate] * theory.D[gate] * theory.number[gate]["recurrent_var"]
    return mean(d), mean(d * d) + mean(d) ** 2 * (w2 - 1)


def _need_gaussian(spec: Spec) -> None:
    for gate, law in spec.gates.items():
        if law.ensemble != "gaussian" and bool((torch.as_tensor(law.weight_var) != 0).any()):
            raise TheoryMissing(
                f"the Jacobian's spectrum is known for gaussian matrices here; {gate}'s ensemble is {law.ensemble}"
            )


def _right_factor(theory: AffineTheory, read: Polynomial, mean: Mean) -> tuple[Tensor, Tensor]:
    """First two moments of B B^T, B = diag(dr/ds) + sum_j diag(dr/du_j) W_j."""
    for gate in read.gates:
        if theory.D[gate].terms:
            raise TheoryMissing(f"the Jacobian of a cell whose gate {gate} acts directly and in a gated read")
    g = read.part(theory.state, 1)
    w = Polynomial([])
    for gate in read.gates:
        w = w + read.derivative(gate) ** 2 * theory.number[gate]["recurrent_var"]
    b1 = mean(g * g) + mean(w)
    b2 = mean(g**4) + 2 * mean(g * g * w) + 2 * mean(g * g) * mean(w) + mean(w * w) + mean(w) ** 2
    return b1, b2
