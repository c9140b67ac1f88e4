"""Gate statistics of a layer, and the time constants of its units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isornn.cells.roles import LeafValues, RetainedState, roles_of
from isornn.cells.trace import INPUT, Leaf
from isornn.diagnosis.numbers import listed, quantity_json, single
from isornn.diagnosis.replay import Replay, spans
from isornn.theory import Quantity

EDGE = 0.01
NO_REMEMBER_GATE = "the cell has no gate that multiplies its old state"


@dataclass(frozen=True)
class GateActivity:
    """A gate's values over all units, steps and sequences of the batch, peepholes included; exact for this batch.

    Args:
        mean: of the values.
        closed, open: share of values below 0.01 and above 0.99: saturated. There the slope of the logistic function
            is below 4 % of its largest, so hardly any gradient reaches the gate's weights.
        pre_activation_mean, pre_activation_std: of u.
        unit_means: (N,), of the values over steps and sequences for each unit.
    """

    mean: float
    closed: float
    open: float
    pre_activation_mean: float
    pre_activation_std: float
    unit_means: Tensor

    @property
    def saturated(self) -> float:
        """Share of values that are closed or open."""
        return self.closed + self.open

    def to_json(self) -> dict[str, object]:
        """One JSON object."""
        return {
            "mean": self.mean,
            "saturated": self.saturated,
            "closed": self.closed,
            "open": self.open,
            "pre_activation_mean": self.pre_activation_mean,
            "pre_activation_std": self.pre_activation_std,
            "unit_means": listed(self.unit_means),
        }


@dataclass(frozen=True)
class Memory:
    """How long units retain a state by their gates alone: ``tau = -1 / ln A`` steps, ``s' = A s + B``, A its mean.

    Args:
        gate: the first gate that A depends on; ``None`` where no retained state is gated.
        length: the number of steps to bridge.
        time_constants: (N,), from A's mean over steps and sequences for each unit, infinite where that is 1; ``None``
            without a gate.
        under, near, beyond: share of units with tau below length / 2, up to 2 length, and above.
        state: the state's name.
        sign: +1 where A rises with the gate's pre-activation, -1 where it falls.
        others: the same for further retained states, each by its own gates.
    """

    gate: str | None
    length: int
    time_constants: Tensor | None
    under: Quantity
    near: Quantity
    beyond: Quantity
    state: str | None = None
    sign: int = 1
    others: tuple[Memory, ...] = ()

    def to_json(self) -> dict[str, object]:
        """One JSON object; an infinite time constant is null."""
        return {
            "state": self.state,
            "gate": self.gate,
            "length": self.length,
            "time_constants": None if self.time_constants is None else listed(self.time_constants),
            **{name: quantity_json(getattr(self, name)) for name in ("under", "near", "beyond")},
            "others": [other.to_json() for other in self.others],
        }


@torch.no_grad()
def gate_activities(replay: Replay) -> dict[str, GateActivity]:
    """By the name of every gate: a pre-activation that is squashed to (0, 1) and multiplies something."""
    gates = roles_of(replay.step.cell).gates
    sums = {gate: _Sums() for gate in gates}
    for leaves, inside in _leaves(replay) if gates else ():
        for gate, collected in sums.items():
            u = leaves(Leaf("gate", gate))
            collected.add(u[inside], gates[gate].value(leaves)[inside])
    return {gate: collected.activity() for gate, collected in sums.items()}


@torch.no_grad()
def memory(replay: Replay, length: int) -> Memory:
    """Time constants of the retained states beside ``length``."""
    states = roles_of(replay.step.cell).gated
    if not states:
        nothing = single(0.0, reasons={NO_REMEMBER_GATE: True})
        return Memory(None, length, None, nothing, nothing, nothing)
    totals: list[Tensor | float] = [0.0] * len(states)
    count = 0
    for leaves, inside in _leaves(replay):
        count += int(inside.sum())
        for number, state in enumerate(states):
            totals[number] = totals[number] + state.coefficient(leaves)[inside].sum(0).cpu()
    means = [torch.as_tensor(total) / count for total in totals]
    first, *others = (_memory(state, mean, length) for state, mean in zip(states, means, strict=True))
    return replace(first, others=tuple(others))


def _memory(state: RetainedState, mean: Tensor, length: int) -> Memory:
    scales = -1 / mean.abs().log()
    scales = torch.where(scales < 0, torch.inf, scales)  # -1/ln 1 is -inf
    under, beyond = scales < length / 2, scales > 2 * length
    shares = [single(float(part.double().mean())) for part in (under, ~under & ~beyond, beyond)]
    gate, sign = next(iter(state.retention.items()))
    return Memory(gate, length, scales, shares[0], shares[1], shares[2], state.state, sign)


def _leaves(replay: Replay) -> Iterator[tuple[LeafValues, Tensor]]:
    """The leaves of the cell's graph on the replay, some steps at a time, and which of these are of a sequence."""
    step = replay.step
    for start, stop in spans(replay.steps, 64):
        x = replay.inputs[start:stop].double()
        states = tuple(values[start:stop] for values in replay.states)
        _, u = step(step.drive(x), states, step.pointwise(x))
        new = tuple(values[start + 1 : stop + 1] for values in replay.states)
        known: dict[Leaf, Tensor] = {Leaf("input", INPUT): x}
        for kind, values in (("state", states), ("new state", new)):
            known |= {Leaf(kind, name): value for name, value in zip(step.cell.states, values, strict=True)}
        known |= {Leaf("gate", name): getattr(u, name) for name in step.cell.gates}
        known |= {Leaf("parameter", name): getattr(u, name) for name in step.cell.parameters}
        yield known.__getitem__, replay.inside[start:stop]


class _Sums:
    """What a gate's statistics are made of, chunk by chunk: rows are steps of sequences, columns units."""

    def __init__(self) -> None:
        self.count = 0
        self.closed = self.open = 0
        self.values = self.u = self.squares = torch.zeros((), dtype=torch.float64)

    def add(self, u: Tensor, values: Tensor) -> None:
        self.count += len(u)
        self.closed += int((values < EDGE).sum())
        self.open += int((values > 1 - EDGE).sum())
        self.values = self.values + values.sum(0).cpu()
        self.u = self.u + u.sum(0).cpu()
        self.squares = self.squares + u.square().sum(0).cpu()

    def activity(self) -> GateActivity:
        means = self.values / self.count
        total = self.count * len(means)
        mean = float(self.u.sum() / total)
        variance = float(self.squares.sum() / total) - mean**2
        return GateActivity(
            float(means.mean()), self.closed / total, self.open / total, mean, max(variance, 0.0) ** 0.5, means
        )
