"""Where a layer's gates stand, and how long its units remember."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.cells import Cell, Values
from isornn.cells.gated import GatedCell
from isornn.diagnosis.numbers import listed, quantity_json, single
from isornn.diagnosis.replay import Replay, spans
from isornn.theory import Quantity

EDGE = 0.01
NO_REMEMBER_GATE = "the cell has no gate that multiplies its old state"


@dataclass(frozen=True)
class GateActivity:
    """A gate's values ``sigma(u)`` over all units, steps and sequences of the batch; exact for this batch.

    Args:
        mean: E[sigma(u)].
        closed, open: share of values below 0.01 and above 0.99: saturated. There the slope of the logistic function
            is below 4 % of its largest, so hardly any gradient reaches the gate's weights.
        pre_activation_mean, pre_activation_std: of u.
        unit_means: (N,), E[sigma(u)] over steps and sequences for each unit.
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
    """How long units remember by their gate alone: ``tau = -1 / ln f`` steps, f the unit's mean remember gate.

    Args:
        gate: its name; ``None`` where the cell has none.
        length: the number of steps to bridge.
        time_constants: (N,), infinite where the gate is 1 at every step; ``None`` without a gate.
        under, near, beyond: share of units with tau below length / 2, up to 2 length, and above.
    """

    gate: str | None
    length: int
    time_constants: Tensor | None
    under: Quantity
    near: Quantity
    beyond: Quantity

    def to_json(self) -> dict[str, object]:
        """One JSON object; an infinite time constant is null."""
        return {
            "gate": self.gate,
            "length": self.length,
            "time_constants": None if self.time_constants is None else listed(self.time_constants),
            **{name: quantity_json(getattr(self, name)) for name in ("under", "near", "beyond")},
        }


def gate_names(cell: Cell) -> tuple[str, ...]:
    """The pre-activations that go through the cell's gate function.

    >>> from isornn.cells import GRU, LSTM, Vanilla
    >>> gate_names(LSTM()), gate_names(GRU()), gate_names(Vanilla())
    (('i', 'f', 'o'), ('r', 'z'), ())
    """
    if not isinstance(cell, GatedCell):
        return ()
    names = list(cell.gates)
    marks = {gate: torch.tensor(0.5 + number, dtype=torch.float64) for number, gate in enumerate(names)}
    seen: list[float] = []

    def watched(u: Tensor) -> Tensor:
        seen.append(float(u))
        return torch.sigmoid(u)

    # The update of a copy of the cell is run once on numbers that tell the gates apart; own parameters are 0 there.
    watcher = type(cell)(**vars(cell))
    object.__setattr__(watcher, "sigma", watched)
    s = Values(**{name: torch.zeros((), dtype=torch.float64) for name in cell.states})
    u = Values(**marks, **{name: torch.zeros((), dtype=torch.float64) for name in cell.parameters})
    new = Values(**watcher.update(s, u, torch.zeros((), dtype=torch.float64)))
    watcher.output(new, u)
    for gate in names:
        watcher.read(gate, s, u)
    return tuple(gate for gate in names if float(marks[gate]) in seen)


@torch.no_grad()
def gate_activities(replay: Replay) -> dict[str, GateActivity]:
    """By the name of every gate that `gate_names` finds."""
    step, cell = replay.step, replay.step.cell
    sums = {gate: _Sums() for gate in gate_names(cell)}
    if not sums:
        return {}
    assert isinstance(cell, GatedCell)
    for start, stop in spans(replay.steps, 64):
        x = replay.inputs[start:stop].double()
        _, u = step(step.drive(x), tuple(values[start:stop] for values in replay.states), step.pointwise(x))
        inside = replay.inside[start:stop]
        for gate, collected in sums.items():
            own = getattr(u, gate)[inside]
            collected.add(own, cell.sigma(own))
    return {gate: collected.activity() for gate, collected in sums.items()}


def memory(cell: Cell, activities: dict[str, GateActivity], length: int) -> Memory:
    """Time constants of the remember gate beside ``length``."""
    if cell.remember not in activities:
        nothing = single(0.0, reasons={NO_REMEMBER_GATE: True})
        return Memory(None, length, None, nothing, nothing, nothing)
    scales = -1 / activities[cell.remember].unit_means.log()
    scales = torch.where(scales < 0, torch.inf, scales)  # -1/ln 1 is -inf
    under, beyond = scales < length / 2, scales > 2 * length
    shares = (single(float(part.double().mean())) for part in (under, ~under & ~beyond, beyond))
    return Memory(cell.remember, length, scales, *shares)


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
