"""The costs of a start that follow from the law of its gates' pre-activations alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isornn.cells import Spec, spread_parameters
from isornn.cells.polynomial import GateFunction, Polynomial, structure_of
from isornn.cells.roles import Squash, roles_of
from isornn.cells.trace import graph_of
from isornn.theory.quadrature.affine import BiasNodes, bias_nodes
from isornn.theory.quadrature.gate_law import GateLaw
from isornn.theory.records import NOT_CONVERGED, Quantity

NO_UNIT_TIME = "the cell has no remember gate, so its units have no time scales of their own"
MIXED_RETENTION = "what the state keeps of itself is no sum of products of one-gate functions"
UNITS_DIFFER = "its units start with different parameters, so no one law holds for all of them"
GATED_READ = "what its gates read is gated itself, so their law does not follow from the state's moments"
UNBOUNDED = "some units' remember gate is entirely open or closed, so their time scale is infinite or 0"
CLOSED = "a gate's slope is 0 to rounding"


@dataclass(frozen=True)
class GateStatistics:
    """The two costs that follow from the law of the gates' pre-activations alone."""

    spec: Spec
    length: float
    nodes: BiasNodes

    @staticmethod
    def of(spec: Spec, length: float) -> GateStatistics:
        nodes = bias_nodes(spec, {name: _column(spec, gate.bias_var) for name, gate in spec.gates.items()})
        return GateStatistics(spec, length, nodes)

    def time_scales(self, second_moment: Quantity) -> Quantity:
        """See `costs`."""
        roles = roles_of(self.spec.cell)
        if not roles.gated:
            return self._nothing(NO_UNIT_TIME)
        state = roles.gated[0].state
        if self._spread(graph_of(self.spec.cell).update[state]):
            return self._nothing(UNITS_DIFFER)
        carry = structure_of(self.spec.cell).update[state].part(state, 1)
        if carry.obstacle():
            return self._nothing(MIXED_RETENTION)
        if self._reads_gated(carry.gates):
            return self._nothing(GATED_READ)
        return self._with_error(lambda second: self._distance(carry, second), second_moment, UNBOUNDED)

    def saturation(self, second_moment: Quantity) -> Quantity:
        """See `costs`."""
        roles = roles_of(self.spec.cell)
        gates = roles.gates
        if roles.no_gates is not None:
            return self._nothing(roles.no_gates)
        if any(self._spread(squash.node) for squash in gates.values()):
            return self._nothing(UNITS_DIFFER)
        if self._reads_gated(gates):
            return self._nothing(GATED_READ)
        return self._with_error(lambda second: self._flatness(gates, second), second_moment, CLOSED)

    def _nothing(self, reason: str) -> Quantity:
        return Quantity.of(torch.zeros(self.spec.batch_shape, dtype=torch.float64), reasons={reason: True})

    def _spread(self, node: Any) -> bool:
        """Whether a node of the cell's graph depends on parameters that units start with differently."""
        laws = spread_parameters(self.spec.cell)
        return any(leaf.kind == "parameter" and leaf.name in laws for leaf in graph_of(self.spec.cell).depends_on(node))

    def _reads_gated(self, gates: Iterable[str]) -> bool:
        """Whether one of the gates' matrices reads something else than the state itself."""
        return any(gate in graph_of(self.spec.cell).gated_reads for gate in gates)

    def _with_error(self, statistic: Callable[[Tensor], Tensor], second_moment: Quantity, reason: str) -> Quantity:
        """The statistic over replicates of the bias nodes, and what the error of E[h^2] adds."""
        second = torch.nan_to_num(second_moment.value, 0.0, 0.0, 0.0)
        spread = torch.nan_to_num(second_moment.stderr, 0.0, 0.0, 0.0)
        values, moved = statistic(second), statistic(second + spread)
        count = values.shape[0]
        error = values.std(0) / count**0.5 if count > 1 else torch.zeros_like(values[0])
        value, error = values.mean(0), (error.square() + (moved - values).mean(0).square()).sqrt()
        shape = self.spec.batch_shape
        value, error = value.reshape(shape), error.reshape(shape)
        reasons: dict[str, Tensor | bool] = {NOT_CONVERGED: ~second_moment.defined, reason: ~torch.isfinite(value)}
        return Quantity.of(torch.nan_to_num(value, 0.0, 0.0, 0.0), torch.nan_to_num(error, 0.0, 0.0, 0.0), reasons)

    def _law(self, gate: str, second_moment: Tensor) -> GateLaw:
        """The gate's pre-activation in every representative unit, (replicates, batch, nodes)."""
        law, spec = self.spec.gates[gate], self.spec
        drive = _column(spec, law.input_var) + _column(spec, law.previous_input_var)
        variance = drive * _column(spec, spec.input.variance)
        variance = variance + _column(spec, law.recurrent_var) * second_moment.reshape(1, -1, 1)
        if spec.biases == "redrawn":
            variance = variance + _column(spec, law.bias_var)
        mean = _column(spec, law.bias_mean) + self.nodes.offset[gate]
        mean, variance = torch.broadcast_tensors(mean, variance)
        squash = roles_of(spec.cell).gates.get(gate)
        return GateLaw(mean, variance, () if squash is None else squash.kinks)

    def _distance(self, carry: Polynomial, second_moment: Tensor) -> Tensor:
        """(replicates, batch)."""
        laws = {gate: self._law(gate, second_moment) for gate in carry.gates}
        kept = torch.zeros(1, 1, 1, dtype=torch.float64)
        for term in carry.terms:
            part = torch.as_tensor(term.coefficient, dtype=torch.float64)
            for gate, factors in term.factors.items():
                part = part * laws[gate].expectation(factors)
            kept = kept + part
        weight = self.nodes.weight.expand(kept.shape)
        if self.spec.biases == "redrawn":
            kept, weight = (kept * weight).sum(-1, keepdim=True), torch.ones(1, 1, 1, dtype=torch.float64)
        inside = (kept > 0) & (kept < 1)
        logs = -(-torch.where(inside, kept, 0.5).log()).log()
        return torch.where(inside.all(-1), distance_from_uniform(logs, weight, self.length), torch.inf)

    def _flatness(self, gates: Mapping[str, Squash], second_moment: Tensor) -> Tensor:
        """(replicates, batch)."""
        total = torch.zeros(1, 1, dtype=torch.float64)
        for gate, squash in gates.items():
            slope = GateFunction(gate, squash, squash.kinks).derivative
            squares = self._law(gate, second_moment).expectation((slope, slope))
            steepest = slope.call(torch.full((1,), squash.middle, dtype=torch.float64)).square()
            mean = (squares * self.nodes.weight).sum(-1) if squares.shape[-1] > 1 else squares[..., 0]
            total = total - (mean / steepest).log() / 2
        return total / len(gates)


def distance_from_uniform(log_times: Tensor, weight: Tensor, length: float) -> Tensor:
    """Wasserstein distance ``int_0^1 |F^-1(q) - ln(1 + (T-1) q)| dq`` of ln tau over units from ln U(1, T).

    Units that are all alike are one point mass, whose distance is exact. Several are the nodes of a rule for a smooth
    law: each stands for its share of the quantiles, and is compared with the target's mean over the same.

    Args:
        log_times: ln tau of each unit, units last.
        weight: the units' shares, sum 1 along the last axis.
        length: T > 1.

    >>> alike = torch.zeros(1, dtype=torch.float64)  # all units forget within one step
    >>> round(float(distance_from_uniform(alike, torch.ones(1), 100.0)), 4)  # 100 ln 100 / 99 - 1
    3.6517
    """

    def below(q: Tensor) -> Tensor:
        """``int_0^q ln(1 + (T-1) p) dp``."""
        y = 1 + (length - 1) * q
        return (y * y.log() - y + 1) / (length - 1)

    ordered, place = log_times.sort(-1)
    share = weight.expand(log_times.shape).gather(-1, place)
    high = share.cumsum(-1).clamp(max=1.0)
    low = (high - share).clamp(min=0.0)
    if ordered.shape[-1] > 1:
        return (ordered * (high - low) - (below(high) - below(low))).abs().sum(-1)
    crossing = ((ordered.clamp(max=700.0).exp() - 1) / (length - 1)).clamp(0.0, 1.0)
    under = ordered * crossing - below(crossing)
    over = below(torch.ones_like(crossing)) - below(crossing) - ordered * (1 - crossing)
    return (under + over).sum(-1)


def _column(spec: Spec, number: float | Tensor) -> Tensor:
    """(1, batch, 1)."""
    return torch.as_tensor(number, dtype=torch.float64).expand(spec.batch_shape).reshape(1, -1, 1)
