"""How a small displacement of all states at step 0 grows in a tied network of infinite width.

Tangents are a second Gaussian process beside the paths',

    Cov(du_k^t, du_k^t') = weight_var_k E[dr^(t-1) dr^(t'-1)],

independent of the first because the displacement has no sign that it prefers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isornn.cells import Values
from isornn.theory.population.probing import Derivatives, linearise, linearise_read
from isornn.theory.tied.paths import Paths
from isornn.theory.tied.process import GaussianProcess, Reads

_TINY = 1e-280


class Tangents:
    """Tangents along ``paths``; both copies are displaced alike.

    At step 0 every state is displaced in each unit independently, N(0, 1) (as in ``simulate``). Tangents are kept of
    size 1; ``log_scale`` ``(G, R)`` is the logarithm of what they were divided by, squared.
    """

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        cell = paths.laws.units.cell
        one = paths.normals(len(cell.states))[:: paths.input.copies]
        shape = (paths.input.copies, *paths.draws.shape)
        self.values = {name: normal.expand(shape) for name, normal in zip(cell.states, one, strict=True)}
        self.log_scale = torch.zeros(paths.draws.shape[:2], dtype=torch.float64)
        self._reads: dict[str, Reads] = {}
        self._processes = {gate: GaussianProcess() for gate in paths.laws.units.weighted}

    def log_moments(self) -> Tensor:
        """ln E|dh|^2 of either copy and ln E[dh_a dh_b], ``(G, R, 2)``; -inf where that is not above 0."""
        h = self.values[self._paths.laws.units.cell.states[0]]
        own = h.square().mean(0)
        pair = own if len(h) == 1 else h[0] * h[1]
        moments = torch.cat([self._paths.units.mean(value) for value in (own, pair)], -1)
        return moments.clamp(min=0.0).log() + self.log_scale[..., None]

    def energy(self) -> Tensor:
        """Mean square of each unit's tangents over its states and copies, ``(G, R, n)``."""
        return torch.stack([value.square().mean(0) for value in self.values.values()]).mean(0)

    def push(self, u: Values, x: Tensor | None) -> Derivatives:
        """One step on, along the paths' next step; returns the update's pointwise derivatives by the states."""
        paths, laws = self._paths, self._paths.laws.units
        states = paths.units.states
        _, carry, push = linearise(laws.cell, states, u, x, laws.weighted)
        moved = self._moved_gates(u)
        values = {}
        for name in laws.cell.states:
            total = torch.zeros_like(states[name])
            for source, tangent in self.values.items():
                if (name, source) in carry:
                    total = total + carry[name, source] * tangent
            for gate, tangent in moved.items():
                if (name, gate) in push:
                    total = total + push[name, gate] * tangent
            values[name] = total
        self.values = values
        self._rescale()
        return carry

    def _moved_gates(self, u: Values) -> dict[str, Tensor]:
        """Tangents of the weighted pre-activations."""
        paths, laws = self._paths, self._paths.laws.units
        fresh = iter(paths.normals(len(laws.weighted)).split(paths.input.copies)) if laws.weighted else iter(())
        read: dict[str, tuple[Tensor, Tensor]] = {}
        moved: dict[str, Tensor] = {}
        for gate in laws.weighted:
            name = laws.read_name(gate)
            if name not in read:
                value = self._moved_read(gate, u, moved)
                read[name] = self._reads.setdefault(name, Reads()).met(value, paths.units.weights)
            weight = laws.weight[gate][..., None]
            past, now = (weight * part for part in read[name])
            moved[gate] = self._processes[gate].drawn(past, now, next(fresh))
        return moved

    def _moved_read(self, gate: str, u: Values, moved: dict[str, Tensor]) -> Tensor:
        """The tangent of what ``gate`` reads."""
        states = self._paths.units.states
        by_state, by_gate = linearise_read(self._paths.laws.units.cell, gate, states, u)
        total = torch.zeros_like(states[self._paths.laws.units.cell.states[0]])
        for source, slope in by_state.items():
            total = total + slope * self.values[source]
        for source, slope in by_gate.items():
            if source in moved:
                total = total + slope * moved[source]
        return total

    def take(self, order: Tensor) -> None:
        """Keep the units ``order`` ``(G, R, n)``."""
        self.values = {name: value.gather(-1, order.expand(value.shape)) for name, value in self.values.items()}
        histories: list[GaussianProcess | Reads] = [*self._processes.values(), *self._reads.values()]
        for history in histories:
            history.take(order)

    def _rescale(self) -> None:
        size = self._paths.units.mean(self.energy()).clamp(min=_TINY)
        self.values = {name: value / size.sqrt() for name, value in self.values.items()}
        self.log_scale = self.log_scale + size[..., 0].log()
