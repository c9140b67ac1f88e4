"""Stacks of layers with one draw of weights for all time: each layer hears the output process of the one below.

    Cov(u_k^t, u_k^t') = weight_var_k E[r^(t-1) r^(t'-1)] + input_var_k E[o^t o^t'] + bias_var_k

with o the output of the layer below. Two directions side by side have matrices of their own, so the layer above hears
the mean of their second moments; a backward layer hears its input in reverse. Each replicate is a stack of its own from
the bottom to the top, so the spread of replicates holds the errors of the layers below.

Source: Yang 2019 (Tensor Programs I).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isornn.cells import Spec, Values
from isornn.theory.depth.records import TiedLayer
from isornn.theory.depth.stack import Directions
from isornn.theory.population.moments import Moments
from isornn.theory.population.probing import StateStructure
from isornn.theory.population.units import Draws
from isornn.theory.tied.inputs import GivenInput, InputMoments
from isornn.theory.tied.paths import Paths, TiedLaws
from isornn.theory.tied.trajectory import certain, input_moments, lines_of

REPLICATES = 8
# Units in each replicate: more where fewer leave some E[h^2] less certain than it should be.
UNITS = (2048, 16384)


def tied_stack(
    stack: Sequence[Directions], steps: int, generator: torch.Generator
) -> tuple[tuple[TiedLayer, ...], ...]:
    """Moments of every layer and direction over ``steps`` steps from state 0."""
    shape = torch.broadcast_shapes(*(spec.batch_shape for directions in stack for spec in directions))
    # the bottom layer has one sequence or two of it, and all above what it has
    whole = [tuple(_expanded(spec, shape) for spec in directions) for directions in stack]
    for units in UNITS:
        moments = _followed(whole, shape, steps, units, generator)
        if all(certain(layer) for directions in moments for layer in directions):
            break
    return tuple(tuple(TiedLayer(**lines_of(layer)) for layer in directions) for directions in moments)


def _expanded(spec: Spec, shape: torch.Size) -> Spec:
    """``spec`` with the whole stack's batch."""
    variance = torch.as_tensor(spec.input.variance, dtype=torch.float64).expand(shape)
    return spec.replace("input.variance", variance)


def _followed(
    stack: Sequence[Directions], shape: torch.Size, steps: int, units: int, generator: torch.Generator
) -> list[list[Moments]]:
    """Layer after layer."""
    found: list[list[Moments]] = []
    heard: Tensor | None = None
    for directions in stack:
        moments, outputs = [], []
        for turn, spec in enumerate(directions):
            laws = TiedLaws.of(spec)
            draws = Draws(laws.units.batch, REPLICATES, units, generator)
            input = input_moments(laws, [laws.units.input_correlation]) if heard is None else GivenInput(heard)
            means, output = _run(laws, _reversed(input) if turn else input, draws, steps)
            moments.append(Moments.of(means, shape))
            outputs.append(_in_reverse(output) if turn else output)
        found.append(moments)
        heard = torch.stack(outputs).mean(0)
    return found


def _run(laws: TiedLaws, input: InputMoments, draws: Draws, steps: int) -> tuple[Tensor, Tensor]:
    """Means of h, h^2, h_a h_b at times 0 .. steps ``(G, R, T + 1, 3)``; the output's ``(G, R, T, S, T, S)``."""
    cell = laws.units.cell
    with torch.no_grad():
        paths = Paths(laws, input, draws, StateStructure.of(cell).persistent)
        means, outputs = [paths.units.moments(cell.states[0])], []
        for _ in range(steps):
            u, x = paths.drawn()
            paths.move(u, x)
            means.append(paths.units.moments(cell.states[0]))
            outputs.append(cell.output(Values(**paths.units.states), u).expand(input.copies, *draws.shape))
        over_time = torch.stack(outputs).permute(2, 3, 0, 1, 4).flatten(2, 3)
        covariance = over_time @ over_time.mT / over_time.shape[-1]
    times = (steps, input.copies)
    return torch.stack(means, 2), covariance.unflatten(-1, times).unflatten(2, times)


def _reversed(input: InputMoments) -> InputMoments:
    """The input as a backward layer hears it: white noise is the same in reverse."""
    return GivenInput(_in_reverse(input.covariance)) if isinstance(input, GivenInput) else input


def _in_reverse(covariance: Tensor) -> Tensor:
    return covariance.flip(-4, -2)
