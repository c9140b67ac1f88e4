"""What each unit's slow state keeps of itself in one step: the part of the response that weights have no share in."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.cells.polynomial import Polynomial
from isornn.cells.spec import detached
from isornn.cells.structure import NotPolynomial, structure_of
from isornn.modes import usual_modes
from isornn.theory.inputs import AUTOCORRELATED, centred, reads_memory
from isornn.theory.quadrature.bias_nodes import bias_nodes
from isornn.theory.quadrature.gate_law import GateLaw
from isornn.theory.quadrature.roots import brent
from isornn.theory.quadrature.smoothness import smoothness_of

LONGEST = 1e12  # steps


@dataclass(frozen=True)
class Carry:
    """``rates_b = E[A_a A_b | unit b]`` for the slow state ``s' = A s + ..``, and the units' weights (sum 1)."""

    state: str
    rates: Tensor
    weight: Tensor

    @property
    def mean(self) -> float:
        """Average over units: what Gilboa et al. 2019 call E[a_0], the whole of m1 without weights."""
        return float((self.rates * self.weight).sum())

    def reach(self) -> float:
        """Steps after the first until ``sum_b weight_b rates_b^t`` has fallen to 1/e of its first; at most 1e12."""
        log_rates = self._log_rates()
        first = self.weight * self.rates
        if float(first.sum()) <= 0:
            return 0.0

        def excess(log_time: float) -> float:
            left = (first * (log_rates * 10**log_time).exp()).sum() / first.sum()
            return float(left) - 1 / torch.e

        if excess(math.log10(LONGEST)) >= 0:
            return LONGEST
        return 10 ** brent(excess, -6.0, math.log10(LONGEST), xtol=1e-12)

    def share_of(self, lag: float, length: float) -> float:
        """``sum_b weight_b (1 - rates_b) rates_b^lag / (1 - rates_b^length)``: of what ``length`` steps of independent
        input have left in a unit, the share that came in ``lag`` steps before the last; mean over units.

        An accumulating unit, rate 1, has the same share of all steps, 1/length.
        """
        return float(self._shares(self.rates.new_tensor([lag]), length)[:, 0] @ self.weight)

    def memory(self, length: int) -> Tensor:
        """``sum_b weight_b phi_b(k) phi_b(l)`` for lags k and l below ``length``, with ``phi_b(k)^2`` the share that
        lag k has in unit b: the kernel of a linear readout, trace 1."""
        roots = self._shares(torch.arange(length, dtype=torch.float64, device=self.rates.device), length).sqrt()
        return roots.T @ (roots * self.weight[:, None])

    def _log_rates(self) -> Tensor:
        """Rates of 0 and of 1 as those next to them, whose powers are as good as theirs up to `LONGEST` steps."""
        return self.rates.clamp(1e-300, 1 - 1e-16).log()

    def _shares(self, lags: Tensor, length: float) -> Tensor:
        log_rates = self._log_rates()[:, None]
        return log_rates.expm1() / (log_rates * length).expm1() * (log_rates * lags).exp()


@usual_modes()
def carry_of(spec: Spec, second_moment: float = 0.0) -> Carry:
    """The carry of the first state whose own part depends on a gate, or of the first with any where none does; its
    gates' weights are fed by a state of the given second moment.

    Raises:
        NotPolynomial: no state enters its own update affinely with one-gate factors, or its gates read an input that is
            correlated over time, so that what a unit keeps is no product of independent factors.
    """
    spec = centred(detached(spec))
    state, polynomial = _slow(spec)
    if reads_memory(spec, polynomial.gates):
        raise NotPolynomial(AUTOCORRELATED)
    numbers = {
        g: torch.tensor(float(law.bias_var), dtype=torch.float64).reshape(1, 1, 1) for g, law in spec.gates.items()
    }
    nodes = bias_nodes(spec, numbers)
    laws: dict[str, tuple[GateLaw, Tensor]] = {}
    for gate in sorted(polynomial.gates):
        law = spec.gates[gate]
        variance = float(law.input_var + law.previous_input_var) * float(spec.input.variance)
        shared = variance * float(spec.input.correlation) + float(law.recurrent_var) * second_moment
        variance += float(law.recurrent_var) * second_moment
        if spec.biases == "redrawn":
            variance, shared = variance + float(law.bias_var), shared + float(law.bias_var)
        mean = float(law.bias_mean) + nodes.offset[gate]
        correlation = torch.full_like(mean, shared / variance if variance > 0 else 1.0)
        laws[gate] = (
            GateLaw(mean, torch.full_like(mean, variance), smoothness_of(polynomial.functions(gate))),
            correlation,
        )
    rates = torch.zeros_like(nodes.weight)[None, None]  # units may differ though no gate retains their state
    for a in polynomial.terms:
        for b in polynomial.terms:
            value = torch.as_tensor(a.coefficient * b.coefficient, dtype=torch.float64)
            for gate, (law_of_gate, correlation) in laws.items():
                left, right = a.factors.get(gate, ()), b.factors.get(gate, ())
                value = value * law_of_gate.pair_expectation(left, right, correlation)
            rates = rates + value
    weight = nodes.weight.expand(rates.shape) / rates.shape[0]
    if spec.biases == "redrawn":
        rates, weight = (rates * weight).sum().reshape(1), torch.ones(1, dtype=torch.float64)
    return Carry(state, rates.reshape(-1), weight.reshape(-1))


def _slow(spec: Spec) -> tuple[str, Polynomial]:
    found = []
    for state, polynomial in structure_of(spec.cell).update.items():
        carry = polynomial.part(state, 1)
        if carry.terms and not carry.obstacle() and not polynomial.obstacle(state) and polynomial.degree(state) == 1:
            found.append((state, carry))
    if not found:
        raise NotPolynomial(f"no state of {spec.cell.name} enters its own update affinely with one-gate factors")
    return next((slow for slow in found if slow[1].gates), found[0])
