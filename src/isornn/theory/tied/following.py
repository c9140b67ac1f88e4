"""Tied populations followed over time with a displacement beside them: tangents, resampling, growth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.cells import Values
from isornn.theory.population.jacobian import Derivatives, StateStructure, linearise, linearise_read
from isornn.theory.population.units import HUGE, Draws
from isornn.theory.tied.paths import GaussianProcess, InputMoments, Paths, ReadHistory, TiedLaws

# Paths are drawn afresh once what counts rests on a smaller share of them.
_FEW = 0.1


def effective_share(paths: Paths, energy: Tensor) -> Tensor:
    """The share of units that the mean of ``energy`` ``(G, R, n)``, not negative, rests on: ``(G, R)``, 1 for none."""
    product = energy if paths.units.weights is None else paths.units.weights * energy
    square = product.square().mean(-1)
    return torch.where(square > 0, product.mean(-1).square() / square.clamp(min=1e-300), 1.0)


def rebalance(paths: Paths, energy: Tensor) -> Tensor | None:
    """Where ``energy`` rests on few, draw paths by their weight and by their energy, half and half.

    No new weight exceeds 2, nor does a weight times its share of the energy, so both averages are good. Systematic
    resampling. Source: Doucet & Johansen 2009, section 3.4.

    Returns:
        Which units are kept, ``(G, R, n)``, for other things that belong to them; ``None`` where nothing was done.
    """
    few = (effective_share(paths, energy) < _FEW)[..., None]
    if not bool(few.any()):
        return None
    weights = torch.ones_like(energy) if paths.units.weights is None else paths.units.weights
    tilt = (1 + energy / (weights * energy).mean(-1, keepdim=True).clamp(min=1e-300)) / 2
    order, fresh = _resampled(weights, tilt, paths.draws.generator)
    order = torch.where(few, order, torch.arange(energy.shape[-1]))
    paths.take(order, torch.where(few, fresh, weights))
    return order


def _resampled(weights: Tensor, tilt: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Units drawn in proportion to ``weights * tilt``, and their new weights, in proportion to ``1 / tilt``."""
    count = weights.shape[-1]
    ladder = (weights * tilt).cumsum(-1)
    shift = torch.rand(*weights.shape[:-1], 1, dtype=torch.float64, generator=generator)
    places = (torch.arange(count, dtype=torch.float64) + shift) / count * ladder[..., -1:]
    order = torch.searchsorted(ladder, places).clamp(max=count - 1)
    new = 1 / tilt.gather(-1, order)
    return order, new / new.mean(-1, keepdim=True)


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
        self._reads: dict[str, ReadHistory] = {}
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
                read[name] = self._reads.setdefault(name, ReadHistory()).met(value, paths.units.weights)
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
        histories: list[GaussianProcess | ReadHistory] = [*self._processes.values(), *self._reads.values()]
        for history in histories:
            history.take(order)

    def _rescale(self) -> None:
        size = self._paths.units.mean(self.energy()).clamp(min=_TINY)
        self.values = {name: value / size.sqrt() for name, value in self.values.items()}
        self.log_scale = self.log_scale + size[..., 0].log()


@dataclass(frozen=True)
class Followed:
    """A tied population over T steps, of G specs and R replicates of n units.

    Args:
        start: growth is taken from this step on, which is half of all.
        means: of h, h^2 and h_a h_b at times 1 .. T, ``(G, R, T, 3)``.
        log_response: ln E|dh_t|^2 and ln E[dh_a dh_b] at times 0 .. T, ``(G, R, T + 1, 2)``; -inf where that
            is not above 0.
        effective_share: the smallest effective share of units that tangents rested on, ``(G, R)``.
        keeping: ln |d s'/d s| per step of each unit, the mean over the later half, ``(G, R, n)``, by state that carries
            itself.
        unbounded: where a state grew beyond what is followed, ``(G,)``.
    """

    start: int
    means: Tensor
    log_response: Tensor
    effective_share: Tensor
    keeping: Mapping[str, Tensor]
    unbounded: Tensor

    def growth(self, log_response: Tensor) -> Tensor:
        """Growth per step over the later half of log responses ``(..., T + 1, 2)``: ``(..., 2)``."""
        return (log_response[..., -1, :] - log_response[..., self.start, :]) / (log_response.shape[-2] - 1 - self.start)


def follow_tied(laws: TiedLaws, input: InputMoments, draws: Draws, steps: int, *, tilted: bool) -> Followed:
    """Follow a population from state 0, with a small displacement of all states at step 0 beside it.

    Where few units carry the displacement, infinite width and long times do not commute: in E|dh|^2 at infinite width
    units count that a network of finite width does not have. ``tilted`` finds them, by drawing paths afresh in
    proportion to their tangents; without it each replicate is like a network of as many units, and its units keep their
    equal weights.
    """
    with torch.no_grad():
        followed = _Following(laws, input, draws, steps // 2, tilted)
        for _ in range(steps):
            followed.step()
        return followed.so_far()


class _Following:
    """Paths, tangents, and what is read off them."""

    def __init__(self, laws: TiedLaws, input: InputMoments, draws: Draws, start: int, tilted: bool) -> None:
        structure = StateStructure.of(laws.units.cell)
        self._paths = Paths(laws, input, draws, structure.persistent)
        self._tangents = Tangents(self._paths)
        self._start, self._tilted = start, tilted
        self._means: list[Tensor] = []
        self._responses = [self._tangents.log_moments()]
        self._keeping = dict.fromkeys(structure.self_coupled, torch.zeros(draws.shape, dtype=torch.float64))
        self._share = torch.ones(draws.shape[:2], dtype=torch.float64)
        self._unbounded = torch.zeros(draws.shape[0], dtype=torch.bool)

    def step(self) -> None:
        paths = self._paths
        u, x = paths.drawn()
        carry = self._tangents.push(u, x)
        if paths.time >= self._start:
            self._keep(carry)
        paths.move(u, x)
        self._means.append(paths.units.moments(paths.laws.units.cell.states[0]))
        self._responses.append(self._tangents.log_moments())
        largest = torch.stack([value.abs().amax((0, 2, 3)) for value in paths.units.states.values()]).amax(0)
        self._unbounded |= largest >= HUGE
        self._watch()

    def so_far(self) -> Followed:
        return Followed(
            start=self._start,
            means=torch.stack(self._means, 2),
            log_response=torch.stack(self._responses, 2),
            effective_share=self._share,
            keeping={name: total / (self._paths.time - self._start) for name, total in self._keeping.items()},
            unbounded=self._unbounded,
        )

    def _keep(self, carry: Derivatives) -> None:
        for name, total in self._keeping.items():
            self._keeping[name] = total + carry[name, name].abs().clamp(min=1e-300).log().mean(0)

    def _watch(self) -> None:
        """See how many units carry the tangents; where few, have more of them."""
        energy = self._tangents.energy()
        self._share = torch.minimum(self._share, effective_share(self._paths, energy))
        order = rebalance(self._paths, energy) if self._tilted else None
        if order is not None:
            self._tangents.take(order)
            self._keeping = {name: total.gather(-1, order) for name, total in self._keeping.items()}
