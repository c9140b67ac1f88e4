"""The deterministic engine: the response, the Jacobian's moments, and the answers for a spec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.cells.polynomial import Polynomial
from isornn.theory.matrix_law import fourth_cumulant
from isornn.theory.quadrature.affine import AffineTheory, GateLaws, PowerMoments, few_frozen, is_frozen
from isornn.theory.quadrature.fixed_pair import SettledPair, settle_pair
from isornn.theory.quadrature.fixed_point import Settled, left_unchanged, settle
from isornn.theory.quantity import Quantity, over_replicates
from isornn.theory.reasons import (
    FADING_UNSURE,
    FROZEN,
    FROZEN_UNITS,
    KEEPS_ANY,
    NEGATIVE,
    NO_SPREAD,
    NOT_CONVERGED,
    NOT_EXPONENTIAL,
    OSCILLATES,
    TOO_LARGE,
    UNENDING,
    TheoryMissing,
)
from isornn.theory.records import Analysis, FixedPoint, JacobianMoments

ROUNDING = 1e-10  # of quadrature at kinks
LONGEST = 2.0**50  # steps; a response that has not fallen by then is called unending
WALKED = 2048  # single steps; beyond, powers of the step, a matrix of units by units


@dataclass(frozen=True)
class Propagator:
    """One step of the unit-resolved response ``m_b = E[ds_a ds_b | unit b]``.

    ``m' = carry m + sum_k source_k P_k`` with ``P_k = E_b[read_k m]``; tangents that enter a pre-activation are mixed
    over units by its random matrix, what the state carries stays in the unit.

    Shapes: carry (replicates, batch, nodes); source term and read (replicates, batch, nodes) by gate; weight (nodes,).
    """

    carry: Tensor
    source: dict[str, Tensor]
    read: dict[str, Tensor]
    weight: Tensor

    def step(self, response: Tensor) -> Tensor:
        total = self.carry * response
        for gate, source in self.source.items():
            total = total + source * (self.read[gate] * response * self.weight).sum(-1, keepdim=True)
        return total

    def mean(self, response: Tensor) -> Tensor:
        """P, the mean over units, (replicates, batch)."""
        return (response * self.weight).sum(-1)

    def matrix(self) -> Tensor:
        """The step as a matrix over units, (replicates, batch, nodes, nodes)."""
        total = torch.diag_embed(self.carry)
        for gate, source in self.source.items():
            total = total + source[..., :, None] * (self.read[gate] * self.weight)[..., None, :]
        return total


def propagator(
    theory: AffineTheory, laws: GateLaws, state: PowerMoments, pair: Tensor, input_correlation: Tensor
) -> Propagator:
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
    source: dict[str, Tensor] = {}
    for gate, polynomial in theory.reads.items():
        value = expect(polynomial.part(theory.state, 1))
        for earlier in sorted(polynomial.gates & read.keys()):
            through = theory.over_units(expect(polynomial.derivative(earlier)))
            value = value + theory.number[earlier]["recurrent_var"] * through * read[earlier]
        read[gate] = value
        source[gate] = theory.number[gate]["recurrent_var"] * expect(theory.D[gate])
    weight = theory.nodes.weight if theory.fixed else torch.ones(1, dtype=torch.float64)
    return Propagator(carry, source, read, weight)


def profile(prop: Propagator, steps: int) -> Tensor:
    """``P_t``, t = 0..steps, after every unit's state was displaced by the same small variance (P_0 = 1)."""
    response = torch.ones_like(prop.carry)
    values = [torch.ones_like(response[..., 0])]
    for _ in range(steps):
        response = prop.step(response)
        values.append(prop.mean(response))
    return torch.stack(values, -1)


def reach(prop: Propagator) -> Tensor:
    """Steps, after the first, until the response has fallen to 1/e of its value after the first step.

    Log-linear between whole steps; infinite where it grows, or does not fall within 2^50 steps. (replicates, batch).
    """
    grows = ~stays_together(prop)[..., 0]
    first = prop.step(torch.ones_like(prop.carry))
    level = prop.mean(first) / torch.e
    # The last whole step at which the response is above the level: step by step, then by powers of the step.
    now, time, ahead = first, torch.zeros_like(level), prop.step(first)
    for _ in range(WALKED):
        above = (prop.mean(ahead) > level) & ~grows
        if not bool(above.any()):
            break
        now, time = torch.where(above[..., None], ahead, now), time + above
        ahead = torch.where(above[..., None], prop.step(ahead), ahead)
    powers = _powers_until(prop, now, level, grows | (prop.mean(ahead) <= level))
    for j in reversed(range(len(powers))):
        ahead = (powers[j] @ now[..., None])[..., 0]
        above = prop.mean(ahead) > level
        now, time = torch.where(above[..., None], ahead, now), torch.where(above, time + 2.0**j, time)
    here, there = prop.mean(now), prop.mean(prop.step(now))
    fraction = (here / level).log() / (here / there).log()
    unending = grows | (level <= 0) | (time >= LONGEST)
    return torch.where(unending, torch.where(level > 0, torch.inf, 0.0), time + fraction)


def unending_by_replicates(far: Tensor) -> tuple[Tensor, Tensor]:
    """Where reaches ``(replicates, batch)`` are infinite: in all replicates, and in some of them only.

    >>> unending_by_replicates(torch.tensor([[2.0, torch.inf, torch.inf], [2.1, torch.inf, 2.0]]))
    (tensor([False,  True, False]), tensor([False, False,  True]))
    """
    infinite = torch.isinf(far)
    return infinite.all(0), infinite.any(0) & ~infinite.all(0)


def _powers_until(prop: Propagator, now: Tensor, level: Tensor, done: Tensor) -> list[Tensor]:
    """The step to the powers 1, 2, 4, .. until the last takes ``now`` below ``level`` everywhere but where ``done``."""
    if bool(done.all()):
        return []
    powers = [prop.matrix()]
    while 2.0 ** len(powers) <= LONGEST:
        if not bool((~done & (prop.mean((powers[-1] @ now[..., None])[..., 0]) > level)).any()):
            break
        powers.append(powers[-1] @ powers[-1])
    return powers


def stays_together(prop: Propagator) -> Tensor:
    """Whether copies that are nearly alike stay so: the step's spectral radius is at most 1, (replicates, batch, 1).

    By the renewal equation: with every unit's carry below 1, the step has an eigenvalue above 1 exactly if
    ``K_kl = E_b[read_k source_l / (1 - carry)]``, what one unit of P_l gives back to P_k in all later steps, does.
    """
    few = few_frozen(prop.carry, prop.weight)  # nothing enters these
    if not prop.source:
        return ((prop.carry < 1) | few).all(-1, keepdim=True)
    room = 1 - prop.carry
    later = torch.where(room > 0, 1 / torch.where(room > 0, room, 1.0), torch.inf)
    later = torch.where(few, 0.0, later)
    kernel = torch.stack(
        [
            torch.stack([(read * source * later * prop.weight).sum(-1) for source in prop.source.values()], -1)
            for read in prop.read.values()
        ],
        -2,
    )
    finite = torch.isfinite(kernel).flatten(2).all(-1, keepdim=True)
    radius = torch.linalg.eigvals(torch.nan_to_num(kernel, posinf=0.0)).abs().amax(-1, keepdim=True)
    return finite & (radius <= 1 + ROUNDING)


Mean = Callable[[Polynomial], Tensor]


def jacobian_moments(theory: AffineTheory, laws: GateLaws, state: PowerMoments) -> tuple[Tensor, Tensor]:
    """``m_n = lim (1/N) tr (J J^T)^n`` for n = 1, 2, of shape (replicates, batch).

    J = A + sum_k g_k D_k W_k (plain reads, of s times a number g_k, mostly 1) + sum_k D_k W_k B_k (gated reads, B_k =
    diag(g) + diag(w) W_j); with v and x the variances of a row from plain and gated reads, y = weight_var_k D_k^2 of
    the gated one::

        m1 = E a^2 + E v + E x
        m2 = E a^4 + 2 E[a^2 (v+x)] + 2 E[a^2] E[v+x] + E[(v+x)^2] + (E v)^2 + 2 E[v] E[x]
             + 2 E[y] (Cov(a^2, g^2) + 2 E[a g t] + E[t^2]) + second moment of the product
             + sum_k k_4(W_k) (E v_k)^2 + 2 E[y] sum_j k_4(W_j) E[weight_var_j w_j^2] E[v_j]

    A and B_k multiply the same unit's old state, so a and g are correlated where one pre-activation, or one bias of the
    unit's own, moves both. Where W_j acts both directly and in B_k, as a minimal gated unit's, B_k^T B_k and the rest's
    J^T J have it in common: t = sum_j weight_var_j w_j D_j. The sums with k_4 are what matrices that are not Gaussian
    add, over all matrices with v_k the share of each in v or x, and over those that act twice.
    Source: Gilboa et al. 2019 eqs. 12-13; eq. 15 printed there drops Var(v) and Cov(a^2, v) (see docs). The last sum:
    `isornn.theory.matrix_law`.

    Args:
        state: moments up to the fourth.

    Raises:
        TheoryMissing: several gated reads.
    """

    def mean(polynomial: Polynomial) -> Tensor:
        return theory.over_units(theory.expect(polynomial, laws, state))[..., 0]

    a2 = theory.A * theory.A
    plain, gated = Polynomial([]), Polynomial([])
    product = together = cumulants = torch.zeros(())
    for gate, read in theory.reads.items():
        row = theory.D[gate] * theory.D[gate] * theory.number[gate]["recurrent_var"]
        by_state = read.part(theory.state, 1)
        is_plain = not read.gates and not by_state.gates | by_state.variables
        if is_plain:
            row = row * by_state * by_state
            plain = plain + row
        else:
            if gated.terms:
                raise TheoryMissing("the Jacobian of a cell with several gated reads")
            b1, b2 = _right_factor(theory, read, mean)
            gated = row * b1[..., None]
            product = mean(row) ** 2 * b2
            g2 = by_state * by_state
            shared = mean(a2 * g2) - mean(a2) * mean(g2) + _twice(theory, read, mean)
            together = mean(row) * shared
        own = row if is_plain else gated
        cumulants = cumulants + fourth_cumulant(theory.spec.gates[gate].ensemble) * mean(own) ** 2
    total = plain + gated
    m1 = mean(a2) + mean(total)
    rows = mean(a2 * a2) + 2 * mean(a2 * total) + 2 * mean(a2) * mean(total) + mean(total * total)
    return m1, rows + mean(plain) ** 2 + 2 * mean(plain) * mean(gated) + 2 * together + product + cumulants


def _right_factor(theory: AffineTheory, read: Polynomial, mean: Mean) -> tuple[Tensor, Tensor]:
    """First two moments of B B^T, B = diag(dr/ds) + sum_j diag(dr/du_j) W_j."""
    g = read.part(theory.state, 1)
    w, cumulants = Polynomial([]), torch.zeros(())
    for gate in sorted(read.gates):
        own = read.derivative(gate) ** 2 * theory.number[gate]["recurrent_var"]
        w, cumulants = w + own, cumulants + fourth_cumulant(theory.spec.gates[gate].ensemble) * mean(own) ** 2
    b1 = mean(g * g) + mean(w)
    b2 = mean(g**4) + 2 * mean(g * g * w) + 2 * mean(g * g) * mean(w) + mean(w * w) + mean(w) ** 2 + cumulants
    return b1, b2


def _twice(theory: AffineTheory, read: Polynomial, mean: Mean) -> Tensor:
    """What E tr B^T B J^T J / N has from the matrices that act both directly and in the gated read."""
    t, cumulants = Polynomial([]), torch.zeros(())
    for gate in sorted(read.gates):
        weight, inner, direct = theory.number[gate]["recurrent_var"], read.derivative(gate), theory.D[gate]
        t = t + inner * direct * weight
        fourth = fourth_cumulant(theory.spec.gates[gate].ensemble)
        cumulants = cumulants + fourth * mean(inner**2 * weight) * mean(direct**2 * weight)
    return 2 * mean(theory.A * read.part(theory.state, 1) * t) + mean(t * t) + cumulants


SAMPLES_PER_REACH = 16
REACHES = 3
EXPONENTIAL = 0.01  # largest relative spread of local rates that still counts as one exponential
TINY = 1e-300
_REPELS = 1e-6  # by so much above 1 a slope is not rounding
ACCURATE = 1e-8  # residual up to which a fixed point counts as found


class QuadratureEngine:
    """Everything the deterministic engine knows of a spec, each computed once.

    Raises:
        NotPolynomial: the engine does not cover the cell; `quadrature_refusal` says beforehand.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.theory = AffineTheory(spec)
        self.settled: Settled = settle(self.theory)
        identical = torch.ones_like(self.theory.input_correlation)
        self.together = self._propagator(self.settled.state.second, identical)
        self.pair: SettledPair = settle_pair(self.theory, self.settled, stays_together(self.together))
        self.apart = self._propagator(self.pair.pair, self.theory.input_correlation)

    def _propagator(self, pair: Tensor, input_correlation: Tensor) -> Propagator:
        return propagator(self.theory, self.settled.laws, self.settled.state, pair, input_correlation)

    def analysis(self, length: int) -> Analysis:
        """The record; ``length`` is how far the response profile is wanted."""
        far = reach(self.apart)
        curve, error = (
            torch.where(self._converged()[..., None], found.reshape(*self.spec.batch_shape, length + 1), torch.nan)
            for found in over_replicates(profile(self.apart, length))
        )
        return Analysis.of(
            self.spec,
            "quadrature",
            fixed_point=self._fixed_point(),
            chi=self._rate(self.apart),
            chi_1=self._rate(self.together),
            reach=self._reach(far, curve),
            jacobian=self._jacobian(),
            moment_rate=self._moment_rate(),
            profile=curve,
            profile_stderr=error,
            state_profiles={self.theory.state: curve},
            state_profiles_stderr={self.theory.state: error},
        )

    def _quantity(self, values: Tensor, reasons: dict[str, Tensor | bool] | None = None) -> Quantity:
        """From (replicates, batch[, 1]) to batch-shaped, with the replicates' standard error."""
        values = values.reshape(self.theory.nodes.replicates, *self.spec.batch_shape)
        value, error = over_replicates(values)
        beyond: dict[str, Tensor | bool] = {TOO_LARGE: ~value.isfinite()}
        return Quantity.of(value, error, self._missing() | (reasons or {}) | beyond)

    def _reach(self, far: Tensor, curve: Tensor) -> Quantity:
        unending, unsure = (found.reshape(self.spec.batch_shape) for found in unending_by_replicates(far))
        value = torch.where(unsure.reshape(far.shape[1:]), torch.nan, far)
        return self._quantity(value, {UNENDING: unending, FADING_UNSURE: unsure, NEGATIVE: curve[..., 1] < -ROUNDING})

    def _missing(self) -> dict[str, Tensor | bool]:
        exists, carry = self._all(self.settled.exists), self.settled.carry
        gated = bool(self.theory.A.gates)  # a factor that no gate opens or shuts is no memory
        frozen = ~exists & self._any(is_frozen(carry)) & gated
        return {
            FROZEN_UNITS: frozen & ~self._all(is_frozen(carry)),
            FROZEN: frozen,
            KEEPS_ANY: self._keeps_all & ~frozen,
            OSCILLATES: exists & self._unstable,
            NOT_CONVERGED: ~self._converged(),
        }

    def _converged(self) -> Tensor:
        accurate = torch.maximum(self.settled.residual, self.pair.residual) <= ACCURATE
        return self._all(self.settled.exists & accurate) & ~self._unstable

    @cached_property
    def _keeps_all(self) -> Tensor:
        """Where a unit keeps what it has and nothing is added, batch-shaped."""
        return ~self._all(self.settled.exists) & self._any(left_unchanged(self.theory))

    @cached_property
    def _unstable(self) -> Tensor:
        """Where the fixed point of mean and second moment repels, by one step's derivative, batch-shaped."""
        radius = self._moment_radius
        if radius is None:
            return torch.zeros(self.spec.batch_shape, dtype=torch.bool)
        repels = (radius.reshape(self.theory.nodes.replicates, *self.spec.batch_shape) > 1 + _REPELS).all(0)
        return repels & ~self._any(self.settled.keeps_any)

    @cached_property
    def _moment_radius(self) -> Tensor | None:
        """Spectral radius of the (mu, Q) map's Jacobian; ``None`` where units have different biases."""
        if self.theory.fixed and self.theory.nodes.weight.numel() > 1:
            return None
        return _moment_map_radius(self.theory, self.settled.state)

    def _all(self, mask: Tensor) -> Tensor:
        return mask.flatten(2).all(-1).all(0).reshape(self.spec.batch_shape)

    def _any(self, mask: Tensor) -> Tensor:
        return mask.flatten(2).any(-1).any(0).reshape(self.spec.batch_shape)

    def _fixed_point(self) -> FixedPoint:
        theory, state = self.theory, self.settled.state
        mean, second = theory.over_units(state.mean), theory.over_units(state.second)
        mean = torch.where(mean.abs() <= ROUNDING * second.sqrt(), 0.0, mean)  # of a symmetric law
        residual = torch.maximum(self.settled.residual, self.pair.residual).amax(0)
        any_size: dict[str, Tensor | bool] = {KEEPS_ANY: self._any(self.settled.keeps_any) | self._keeps_all}
        return FixedPoint(
            mean=self._quantity(mean, any_size),
            second_moment=self._quantity(second, any_size),
            correlation=self._quantity(
                self.pair.correlation,
                {KEEPS_ANY: self._any(self.pair.keeps_any) | self._keeps_all, NO_SPREAD: ~self._all(self.pair.defined)},
            ),
            residual=residual.reshape(self.spec.batch_shape),
            converged=self._converged(),
        )

    def _rate(self, prop: Propagator) -> Quantity:
        """chi: the factor per step where the response decays as one exponential."""
        if prop.carry.shape[-1] == 1:
            return self._quantity(prop.matrix()[..., 0, 0])
        rates, spread = _local_rates(prop)
        uneven = (spread.mean(0) > EXPONENTIAL).reshape(self.spec.batch_shape)
        return self._quantity(torch.exp(-rates), {NOT_EXPONENTIAL: uneven})

    def _jacobian(self) -> JacobianMoments:
        m1 = m2 = torch.zeros(self.theory.nodes.replicates, self.theory.batch, dtype=torch.float64)
        reasons: dict[str, Tensor | bool] = {}
        try:
            higher = self.theory.with_higher(self.settled.laws, self.settled.state)
            m1, m2 = jacobian_moments(self.theory, self.settled.laws, higher)
        except TheoryMissing as missing:
            reasons = {str(missing): True}
        return JacobianMoments(*(self._quantity(m, dict(reasons)) for m in (m1, m2, m2 - m1**2)))

    def _moment_rate(self) -> Quantity:
        """Spectral radius of the (mu, Q) map's Jacobian (Chen et al. 2018 eq. 38)."""
        blank = torch.zeros(self.theory.nodes.replicates, self.theory.batch, dtype=torch.float64)
        if self._moment_radius is None:
            return self._quantity(blank, {NOT_EXPONENTIAL: True})
        return self._quantity(self._moment_radius)


def _local_rates(prop: Propagator) -> tuple[Tensor, Tensor]:
    """Late decay rate per step, and the relative spread of local rates over three reaches; (replicates, batch)."""
    far = reach(prop)
    stride = torch.where(far.isinf(), 1.0, far.clamp(1, 2.0**40) / SAMPLES_PER_REACH).ceil().detach()
    advance = _strides(prop, stride)
    response = prop.step(torch.ones_like(prop.carry))
    rates = []
    for _ in range(REACHES * SAMPLES_PER_REACH):
        response = advance(response / prop.mean(response).clamp(min=TINY)[..., None])
        rates.append(-prop.mean(response).clamp(min=TINY).log() / stride)
    late = rates[-1]
    # what grows has no end to be judged up to: its early transient does not count
    growing = torch.stack(rates[len(rates) // 2 :], -1)
    judged = torch.where((late < 0)[..., None], growing.repeat_interleave(2, -1), torch.stack(rates, -1))
    return late, (judged.amax(-1) - judged.amin(-1)) / late.abs().clamp(min=1e-15)


def _strides(prop: Propagator, stride: Tensor) -> Callable[[Tensor], Tensor]:
    """What takes a response ``stride`` (replicates, batch) steps on: step by step, or by a power of the step."""
    if float(stride.max()) <= WALKED / (REACHES * SAMPLES_PER_REACH):

        def walk(response: Tensor) -> Tensor:
            for taken in range(int(stride.max())):
                response = torch.where((taken < stride)[..., None], prop.step(response), response)
            return response

        return walk
    matrix, power = prop.matrix(), torch.eye(prop.carry.shape[-1], dtype=torch.float64).expand(prop.matrix().shape)
    bits = stride.clone()
    while bool((bits > 0).any()):
        power = torch.where((bits % 2 == 1)[..., None, None], power @ matrix, power)
        matrix, bits = matrix @ matrix, (bits / 2).floor()
    return lambda response: (power @ response[..., None])[..., 0]


def _moment_map_radius(theory: AffineTheory, state: PowerMoments) -> Tensor:
    mean = state.mean.detach().clone().requires_grad_(True)
    second = state.second.detach().clone().requires_grad_(True)
    with torch.enable_grad():
        now = PowerMoments.of(mean, second)
        after = theory.step(theory.laws(now), now)
        rows = [
            torch.autograd.grad(theory.over_units(p).sum(), (mean, second), retain_graph=True, allow_unused=True)
            if p.requires_grad  # it does not depend on them where the cell ignores its gates
            else (None, None)
            for p in (after.mean, after.second)
        ]
    blank = torch.zeros_like(mean)
    matrix = torch.stack([torch.stack([blank if g is None else g for g in row], -1) for row in rows], -2)
    matrix = torch.nan_to_num(matrix).squeeze(-3)
    return torch.linalg.eigvals(matrix).abs().amax(-1)
