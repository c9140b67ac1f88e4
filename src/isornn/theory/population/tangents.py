"""How long a population remembers a displacement: lag kernels of the response, chi and the reach.

Perturb both copies of the state alike at step 0. By Price's theorem the linear response of E[h_a h_b] is the second
moment of tangents shared by the copies; m = E[ds_a ds_b^T | path] obeys

    m' = J_a m J_b^T + sum_k weight_var_k P_k D_k,a D_k,b^T,   P_k = E[dr_k,a dr_k,b],

J = d update / d states and D_k = d update / d u_k pointwise. The source terms on the right are identical across
units and depend on the past through P alone, so one cohort determines the response: K(l), at lag l, to source terms of
unit P, and rho(t) to the displacement itself. Then P(t) = rho(t) + sum_l K(l) P(t-l), and chi solves
sum_l K(l) chi^-l = 1. Carrying cohorts apart keeps source terms from drowning in the few old paths that carry m.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isornn.cells import Values
from isornn.theory.population.cubic import NODES, shares
from isornn.theory.population.jacobian import Derivatives, StateStructure, formed_from, linearise, linearise_read
from isornn.theory.population.units import (
    Draws,
    Field,
    Laws,
    Units,
    arrangement,
    bounded,
    draw_gates,
    next_inputs,
    variates,
)

BURN = 64
WINDOW = 16
_COUNT = 384
_LEAST = 1e-9
_STEP = -math.log(_LEAST) / (_COUNT - 1)


def grid() -> Tensor:
    """Rates per step of the bins, evenly spread over the logarithm of what is lost, 1e-9 to all."""
    loss = (_LEAST * (_STEP * torch.arange(_COUNT, dtype=torch.float64)).exp()).clamp(max=1 - 1e-12)
    return 1 - loss


def binned(values: Tensor, loss: Tensor) -> Tensor:
    """Sums of ``values`` ``(..., G, R, n)`` over units, ``(..., G, R, bins)``, each shared by the four nearest bins.

    >>> loss = torch.full((1, 1, 1), 0.0301, dtype=torch.float64)
    >>> shares = binned(torch.ones_like(loss), loss)
    >>> round(float((shares * grid() ** 200).sum() / (1 - loss) ** 200), 4)
    1.0
    """
    place = ((loss.clamp(_LEAST, 1.0) / _LEAST).log() / _STEP).clamp(0, _COUNT - 1)
    left = place.floor().clamp(1, _COUNT - 3)
    total = torch.zeros(*values.shape[:-1], _COUNT, dtype=values.dtype)
    index = left.to(torch.int64).expand(values.shape)
    for node, share in zip(NODES, shares(place - left), strict=True):
        total.scatter_add_(-1, index + node, values * share)
    return total


def falls(loss: Tensor) -> bool:
    """Whether every unit's rate is between 0 and 1, as the bins need."""
    return bool(((loss > -1e-12) & (loss <= 1 + 1e-9)).all())


_HUGE = 1e200
_FORGOTTEN = 0.05
TangentMoments = dict[tuple[str, str], Tensor]


@dataclass(frozen=True)
class Curves:
    """What a cohort shows, per replicate; lags on the last axis.

    Args:
        displaced: rho, ``(G, R, rows, T)``, times 0 .. T-1.
        kernel: K, ``(G, R, rows, classes, T)``, lags 0 .. T-1 (zero at lag 0).
        within: same-step response of a gated read to the pre-activations it uses, ``(G, R, classes, classes)``.
        late: what goes on from lag ``BURN`` on, by rate: ``(G, R, rows, 1 + classes, bins)``, the displacement first.

    Rows are the classes of reads (the plain read first), then ``E[ds_j,a ds_j,b]`` of each state.
    """

    displaced: Tensor
    kernel: Tensor
    within: Tensor
    late: Tensor | None


class Cohort:
    """Stationary units with the tangents of a displacement and of source terms at their first step.

    Args:
        laws, units, field: the stationary population and its gate law.
        loss: ``1 - E[A_a A_b]`` of each unit ``(G, R, n)``, if late lags are wanted by rate.

    States that carry themselves are displaced at step 0, each independently with unit variance; the states formed
    from one in the same step (the LSTM's h from c) move along. A cell that carries nothing is displaced in every state.
    """

    def __init__(
        self,
        laws: Laws,
        structure: StateStructure,
        units: Units,
        field: Field,
        draws: Draws,
        loss: Tensor | None = None,
    ) -> None:
        self.laws, self.structure, self.field, self.draws = laws, structure, field, draws
        self.units = units
        self._loss, self._late = loss, torch.zeros(())
        self._proposal = torch.ones(draws.shape, dtype=torch.float64) if units.weights is None else units.weights
        self._class = {gate: laws.read_name(gate) for gate in laws.weighted}
        self.classes = ["", *laws.gated]
        self.effective_share = torch.ones(draws.shape[:2], dtype=torch.float64)
        self._m: TangentMoments = {}
        self._displace()
        self._time = 0
        self._readings: list[Tensor] = []
        self._within = torch.zeros(*draws.shape[:2], len(self.classes), len(self.classes), dtype=torch.float64)

    @property
    def by_rate(self) -> bool:
        """Whether late lags are known by rate."""
        return self._loss is not None

    def extend(self, steps: int) -> None:
        """Read and propagate until ``steps`` times have been read."""
        while self._time < steps:
            self._advance()

    def curves(self) -> Curves:
        """What has been read so far."""
        # What grows without bound is kept finite: a huge number, never NaN.
        readings = (
            torch.stack(self._readings, -1).nan_to_num(_HUGE, _HUGE, -_HUGE).clamp(-_HUGE, _HUGE)
        )  # types, rows, G, R, T
        late = None if self._loss is None else self._late.permute(2, 3, 1, 0, 4)
        return Curves(readings[0].permute(1, 2, 0, 3), readings[1:].permute(2, 3, 1, 0, 4), self._within, late)

    def _advance(self) -> None:
        laws, cell = self.laws, self.laws.cell
        first = self._time == 0
        if first or self._m:
            self._reorder()
            uniform = self.draws.uniform(variates(laws, self.units.copies))
            with torch.no_grad():
                u, x = draw_gates(laws, self.units, self.field, uniform)
        else:
            u, x = Values(), None
        shown = self._read(u)
        self._readings.append(self.units.mean(shown)[..., 0])
        if self._loss is not None and BURN - WINDOW <= self._time < BURN:
            self._keep_late(shown)
        self._time += 1
        if not (first or self._m):
            return
        new, carry, push = linearise(cell, self.units.states, u, x, laws.weighted if first else ())
        with torch.no_grad():
            m = self._carried(carry)
            if first:
                self._add_source_terms(m, push)
            self._m = m
            self.units = next_inputs(laws, replace(self.units, states=bounded(new)), uniform)
            self._resample()

    def _displace(self) -> None:
        """Take one step; then ``m_ab = (d s_a / d s_c)_a (d s_b / d s_c)_b`` summed over the coupled states c."""
        laws, cell, coupled = self.laws, self.laws.cell, self.structure.self_coupled
        self._reorder()
        uniform = self.draws.uniform(variates(laws, self.units.copies))
        with torch.no_grad():
            u, x = draw_gates(laws, self.units, self.field, uniform)
        old = self.units.states
        new, carry, _ = linearise(cell, old, u, x)
        self.units = next_inputs(laws, replace(self.units, states=bounded(new)), uniform)
        one = torch.ones_like(next(iter(new.values())))
        for c in coupled or cell.states:
            moving = formed_from(cell, c, old, u, x, carry) if coupled else {}
            along = {c: one} | {a: slope for a, slope in moving.items() if a not in coupled}
            for a, slope_a in along.items():
                for b, slope_b in along.items():
                    if self._is_wanted(a, b):
                        self._put(self._m, (a, b), 0, slope_a[0] * slope_b[-1])

    def _put(self, m: TangentMoments, pair: tuple[str, str], kind: int, value: Tensor) -> None:
        """Add ``value`` to the entries of one type: 0 is the displacement, then the source terms by class."""
        whole = torch.zeros(1 + len(self.classes), *self.draws.shape, dtype=torch.float64)
        whole[kind] = value
        _add(m, pair, whole)

    def _reorder(self) -> None:
        self._take(self.draws.order(arrangement(self.units, self.structure.persistent)))

    def _take(self, order: Tensor) -> None:
        self.units = self.units.taken(order)
        self._m = {pair: value.gather(-1, order.expand(value.shape)) for pair, value in self._m.items()}
        if self._loss is not None:
            self._loss, self._proposal = self._loss.gather(-1, order), self._proposal.gather(-1, order)

    def _keep_late(self, shown: Tensor) -> None:
        """Each step of the window shows the same late curve, at its own distance from ``BURN``."""
        assert self._loss is not None
        weights = self.units.weights
        share = shown if weights is None else shown * weights
        ahead = grid() ** (BURN - self._time)
        self._late = self._late + binned(share, self._loss) * ahead / (shown.shape[-1] * WINDOW)

    def _read(self, u: Values) -> Tensor:
        """``(types, rows, G, R, n)``: what each unit adds to the reads and to the states' own second moments now."""
        cell = self.laws.cell
        zero = torch.zeros(1 + len(self.classes), *self.draws.shape, dtype=torch.float64)
        own = {name: self._m.get((name, name), zero) for name in cell.states}
        gated = [self._read_gated(gate, u, zero) for gate in self.classes[1:]]
        return torch.stack([own[cell.states[0]], *gated, *own.values()], 1)

    def _read_gated(self, gate: str, u: Values, zero: Tensor) -> Tensor:
        if not vars(u):
            return zero
        by_state, by_gate = linearise_read(self.laws.cell, gate, self.units.states, u)
        if self._time == 0:
            row = self.classes.index(gate)
            for source, slope in by_gate.items():
                if source in self.laws.weighted:
                    column = self.classes.index(self._class[source])
                    response = self.laws.weight[source] * self.units.mean(slope[0] * slope[-1])
                    self._within[..., row, column] += response[..., 0]
        total = zero
        for (a, b), value in self._m.items():
            if a in by_state and b in by_state:
                total = total + by_state[a][0] * value * by_state[b][-1]
        return total

    def _carried(self, carry: Derivatives) -> TangentMoments:
        """``J_a m J_b^T``, entries that are zero by structure left out."""
        result: TangentMoments = {}
        for (a, source_a), slope_a in carry.items():
            for (b, source_b), slope_b in carry.items():
                value = self._m.get((source_a, source_b))
                if value is not None and self._is_wanted(a, b):
                    _add(result, (a, b), slope_a[0] * value * slope_b[-1])
        return result

    def _is_wanted(self, a: str, b: str) -> bool:
        return a == b or len(self.classes) > 1 or (a in self.structure.persistent and b in self.structure.persistent)

    def _add_source_terms(self, m: TangentMoments, push: Derivatives) -> None:
        """``sum_k weight_var_k D_k,a D_k,b^T`` into the type of the class that gate k reads."""
        for gate in self.laws.weighted:
            kind = 1 + self.classes.index(self._class[gate])
            slopes = {new: value for (new, source), value in push.items() if source == gate}
            for a, slope_a in slopes.items():
                for b, slope_b in slopes.items():
                    if self._is_wanted(a, b):
                        self._put(m, (a, b), kind, self.laws.weight[gate] * slope_a[0] * slope_b[-1])

    def _by_path(self, carried: Tensor) -> Tensor:
        """What a path carries against what its unit does on average: rare slow units are needed late, all of them.

        Units that have forgotten count less and less.
        """
        assert self._loss is not None
        expected = (1 - self._loss) ** self._time
        return carried / expected.clamp(min=_FORGOTTEN)

    def _resample(self) -> None:
        """Where few paths carry m, draw paths in proportion to it (systematic resampling) and weight them back."""
        traces = [value for (a, b), value in self._m.items() if a == b and a in self.structure.persistent]
        if not traces:
            return
        trace = torch.stack(traces).sum(0).abs()
        weights = self.units.weights if self.units.weights is not None else torch.ones_like(trace[0])
        if self._loss is None:
            load = _by_mass(trace, weights)
        else:
            load = self._by_path(trace.sum(0)) * weights / self._proposal  # as many rare units as there were
        total = load.mean(-1, keepdim=True)
        share = total[..., 0].square() / load.square().mean(-1).clamp(min=1e-300)
        share = torch.where(total[..., 0] > 0, share, 1.0)
        self.effective_share = torch.minimum(self.effective_share, share)
        if bool((share >= 0.5).all()):
            return
        ladder = load.cumsum(-1)
        count = load.shape[-1]
        start = torch.rand(*load.shape[:2], 1, dtype=torch.float64, generator=self.draws.generator)
        places = (torch.arange(count, dtype=torch.float64) + start) / count * ladder[..., -1:]
        order = torch.searchsorted(ladder, places).clamp(max=count - 1)
        same = torch.arange(count).expand(order.shape)
        needed = (share < 0.5)[..., None]
        order = torch.where(needed, order, same)
        weights = torch.where(needed, weights * total / load.clamp(min=1e-300), weights)
        self.units = replace(self.units, weights=weights)
        self._take(order)


def _by_mass(trace: Tensor, weights: Tensor) -> Tensor:
    """The part of m that each path carries, all types together."""
    mass = (trace * weights).mean(-1, keepdim=True)
    return torch.where(mass > 0, trace / mass.clamp(min=1e-300), 0.0).sum(0) * weights


def _add(sums: TangentMoments, pair: tuple[str, str], value: Tensor) -> None:
    sums[pair] = sums[pair] + value if pair in sums else value
