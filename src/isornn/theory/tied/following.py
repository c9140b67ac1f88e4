"""A tied population followed over time with a displacement beside it, replicate by replicate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.theory.population.probing import Derivatives, StateStructure
from isornn.theory.population.units import HUGE, Draws
from isornn.theory.tied.inputs import InputMoments
from isornn.theory.tied.paths import Paths, TiedLaws
from isornn.theory.tied.tangents import Tangents
from isornn.theory.tied.tilting import effective_share, rebalance


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


def follow(laws: TiedLaws, input: InputMoments, draws: Draws, steps: int, *, tilted: bool) -> Followed:
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
