"""How a small change of the state is carried on, by the affine theory: chi, the response profile, the reach."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.cells.polynomial import Polynomial
from isornn.theory.quadrature.affine import AffineTheory, Laws, Moments

ROUNDING = 1e-10  # of quadrature at kinks
LONGEST = 2.0**50  # steps; a response that has not fallen by then is called unending


@dataclass(frozen=True)
class Propagator:
    """One step of the unit-resolved response ``m_b = E[ds_a ds_b | unit b]``.

    ``m' = carry m + sum_k birth_k P_k`` with ``P_k = E_b[read_k m]``; tangents that enter a pre-activation are mixed
    over units by its random matrix, what the state carries stays in the unit.

    Shapes: carry (replicates, batch, nodes); birth and read (replicates, batch, nodes) by gate; weight (nodes,).
    """

    carry: Tensor
    birth: dict[str, Tensor]
    read: dict[str, Tensor]
    weight: Tensor

    def step(self, response: Tensor) -> Tensor:
        total = self.carry * response
        for gate, birth in self.birth.items():
            total = total + birth * (self.read[gate] * response * self.weight).sum(-1, keepdim=True)
        return total

    def matrix(self) -> Tensor:
        """The step as a matrix over units, (replicates, batch, nodes, nodes)."""
        total = torch.diag_embed(self.carry)
        for gate, birth in self.birth.items():
            total = total + birth[..., :, None] * (self.read[gate] * self.weight)[..., None, :]
        return total


def propagator(theory: AffineTheory, laws: Laws, state: Moments, pair: Tensor, input_correlation: Tensor) -> Propagator:
    """The response at two copies with ``E[s_a s_b] = pair``.

    Price's theorem: the linear response of E[s_a s_b] is the second moment of tangents that both copies share,
    ``E[A_a A_b] m + sum_k weight_var_k P_k E[D_k,a D_k,b]`` with D_k = ds'/du_k. With identical copies this is the
    growth of E|ds|^2 and, for one state, Gilboa et al.'s m_1 (Lemma 1).
    """
    c = theory.correlations(laws, state, pair, input_correlation)

    def expect(a: Polynomial) -> Tensor:
        return theory.expect_pair(a, a, laws, c, state, pair, input_correlation)

    carry = expect(theory.A)
    read: dict[str, Tensor] = {}
    birth: dict[str, Tensor] = {}
    for gate, polynomial in theory.reads.items():
        value = expect(polynomial.part(theory.state, 1))
        for earlier in polynomial.gates & read.keys():
            through = theory.over_units(expect(polynomial.derivative(earlier)))
            value = value + theory.number[earlier]["recurrent_var"] * through * read[earlier]
        read[gate] = value
        birth[gate] = theory.number[gate]["recurrent_var"] * expect(theory.D[gate])
    weight = theory.nodes.weight if theory.fixed else torch.ones(1, dtype=torch.float64)
    return Propagator(carry, birth, read, weight)


def profile(prop: Propagator, steps: int) -> Tensor:
    """``P_t``, t = 0..steps, after every unit's state was displaced by the same small variance (P_0 = 1)."""
    response = torch.ones_like(prop.carry)
    values = [torch.ones_like(response[..., 0])]
    for _ in range(steps):
        response = prop.step(response)
        values.append((response * prop.weight).sum(-1))
    return torch.stack(values, -1)


def reach(prop: Propagator) -> Tensor:
    """Steps, after the first, until the response has fallen to 1/e of its value after the first step.

    Log-linear between whole steps; infinite where it grows, or does not fall within 2^50 steps. (replicates, batch).
    """
    grows = ~stays_together(prop)[..., 0]
    step = prop.matrix()
    ones = torch.ones_like(prop.carry)
    first = (step @ ones[..., None])[..., 0]
    level = (first * prop.weight).sum(-1) / torch.e
    powers = [step]
    while 2.0 ** len(powers) <= LONGEST and bool((~grows & (_size(prop, powers[-1], first) > level)).any()):
        powers.append(powers[-1] @ powers[-1])
    # binary search for the last whole step at which the response is above the level
    now, time = first, torch.zeros_like(level)
    for j in reversed(range(len(powers))):
        ahead = (powers[j] @ now[..., None])[..., 0]
        above = (ahead * prop.weight).sum(-1) > level
        now, time = torch.where(above[..., None], ahead, now), torch.where(above, time + 2.0**j, time)
    here, there = (now * prop.weight).sum(-1), (prop.step(now) * prop.weight).sum(-1)
    fraction = (here / level).log() / (here / there).log()
    unending = grows | (level <= 0) | (time >= 2.0 ** len(powers) - 1)
    return torch.where(unending, torch.where(level > 0, torch.inf, 0.0), time + fraction)


def _size(prop: Propagator, power: Tensor, response: Tensor) -> Tensor:
    return ((power @ response[..., None])[..., 0] * prop.weight).sum(-1)


def stays_together(prop: Propagator) -> Tensor:
    """Whether copies that are nearly alike stay so: the step's spectral radius is at most 1, (replicates, batch, 1).

    By the renewal equation: with every unit's carry below 1, the step has an eigenvalue above 1 exactly if
    ``K_kl = E_b[read_k birth_l / (1 - carry)]``, what one unit of P_l gives back to P_k in all later steps, does.
    """
    if not prop.birth:
        return (prop.carry < 1).all(-1, keepdim=True)
    room = 1 - prop.carry
    later = torch.where(room > 0, 1 / torch.where(room > 0, room, 1.0), torch.inf)
    kernel = torch.stack(
        [
            torch.stack([(read * birth * later * prop.weight).sum(-1) for birth in prop.birth.values()], -1)
            for read in prop.read.values()
        ],
        -2,
    )
    finite = torch.isfinite(kernel).flatten(2).all(-1, keepdim=True)
    radius = torch.linalg.eigvals(torch.nan_to_num(kernel, posinf=0.0)).abs().amax(-1, keepdim=True)
    return finite & (radius <= 1 + ROUNDING)
