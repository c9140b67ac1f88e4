"""The Jacobian's blocks at sampled units of a stationary population, over one or several steps."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from isornn.cells import Spec, Values
from isornn.cells.spec import Ensemble
from isornn.theory.errors import TheoryMissing
from isornn.theory.matrix_law import margin_of
from isornn.theory.population.engine import Population, Stationary
from isornn.theory.population.probing import linearise, linearise_read
from isornn.theory.population.units import Laws, Units, draw_gates, variates
from isornn.theory.reasons import NOT_CONVERGED
from isornn.theory.spectra.chain import Source, Step, carried, joined, product, row_energy

UNITS, REPLICATES = 1024, 32
SNAPSHOTS, SNAPSHOTS_OF_PATHS = 16, 4
KEPT = 2048  # units of the bulk; of the tail as many again
KEPT_PATHS = 512
_GROUPS = 64
_TOWARDS_ENDS = 0.95
_MATTERS = 0.01  # of row energy


def sampled_path(spec: Spec, steps: int, generator: torch.Generator) -> list[Step]:
    """The Jacobians of following steps at units of the fixed point: half a million units, for several steps an
    eighth of a million unless units keep to themselves. Units of a replicate lie side by side.

    Raises:
        TheoryMissing: the population does not settle.
    """
    population = Population(spec, generator=generator, units=UNITS, replicates=REPLICATES)
    stationary = population.settle("identical")
    if not bool(stationary.converged.all()):
        raise TheoryMissing(NOT_CONVERGED)
    found = []
    few = steps > 1 and population.laws.weighted
    for units, u, x in population.snapshots(stationary, SNAPSHOTS_OF_PATHS if few else SNAPSHOTS):
        path = [step_of(population.laws, units, u, x)]
        for _ in range(steps - 1):
            units = advanced(population.laws, units, u, x)
            u, x = _fresh(population.laws, units, stationary, generator)
            path.append(step_of(population.laws, units, u, x))
        found.append(path)
    return [joined(parts) for parts in zip(*found, strict=True)]


def advanced(laws: Laws, units: Units, u: Values, x: Tensor | None) -> Units:
    """The same units one step later, in the same order."""
    new = laws.cell.update(Values(**units.states), u, x)
    shape = next(iter(units.states.values())).shape
    return replace(units, states={name: value.expand(shape) for name, value in new.items()})


def _fresh(
    laws: Laws, units: Units, stationary: Stationary, generator: torch.Generator
) -> tuple[Values, Tensor | None]:
    """Pre-activations of the next step of the same units, each drawn by itself."""
    shape = next(iter(units.states.values())).shape[1:]
    uniform = torch.rand(variates(laws, 1), *shape, dtype=torch.float64, generator=generator)
    return draw_gates(laws, units, stationary.field, uniform.clamp(1e-15, 1 - 1e-15))


def step_of(laws: Laws, units: Units, u: Values, x: Tensor | None) -> Step:
    """A~ and V_k of every unit at given pre-activations; rows and columns as in `isornn.theory.spectra.dyson`."""
    cell, names = laws.cell, laws.cell.states
    gated = laws.gated
    column = {gate: len(names) + gated.index(gate) if gate in gated else 0 for gate in laws.weighted}
    sources = {gate: _source(column[gate], gate, laws.ensemble[gate]) for gate in laws.weighted}
    size, shape = len(names) + len(gated), next(iter(units.states.values()))[0].shape
    mean = torch.zeros(size, size, *shape, dtype=torch.float64)
    slopes: dict[str, dict[int, Tensor]] = {gate: {} for gate in laws.weighted}
    _, carry, push = linearise(cell, units.states, u, x, laws.weighted)
    for (row, source), value in carry.items():
        mean[names.index(row), names.index(source)] = value[0].detach()
    for (row, gate), value in push.items():
        slopes[gate][names.index(row)] = value[0].detach()
    for gate in gated:
        at = column[gate]
        by_state, by_gate = linearise_read(cell, gate, units.states, u)
        mean[at, at] = -1.0
        for source, value in by_state.items():
            mean[at, names.index(source)] = value[0].detach()
        for inner, value in by_gate.items():
            if inner in slopes:
                slopes[inner][at] = value[0].detach()
    births = {source: torch.zeros_like(mean) for source in sources.values()}
    for gate, by_row in slopes.items():
        for s, left in by_row.items():
            for r, right in by_row.items():
                births[sources[gate]][s, r] += laws.weight[gate][0] * left[0] * right[0]
    weight = torch.ones(shape, dtype=torch.float64) if units.weights is None else units.weights.expand(shape)
    flat = {source: v.reshape(size, size, -1) for source, v in births.items()}
    return Step(len(names), mean.reshape(size, size, -1), flat, weight.reshape(-1) / weight.sum())


def _source(column: int, gate: str, ensemble: Ensemble) -> Source:
    margin = margin_of(ensemble)
    return Source(column) if margin is None else Source(column, gate, margin)


def thinned(path: list[Step]) -> list[Step]:
    """Some units that stand for all: the tail of those with the largest rows whole, the bulk evenly, sorted by row
    energy into groups and by what is carried within each; weighted so that means of both, of their products and of
    what single steps do are those over all units."""
    total, kept = path[0].weight.numel(), KEPT if len(path) == 1 else KEPT_PATHS
    if total <= 2 * kept:
        return path
    energy, kept_part, every = row_energy(path), carried(path), path[0].weight
    order = energy.argsort()
    bulk, tail = order[: total - kept], order[total - kept :]
    # where matrices hardly matter the law is that of what is carried, and even parts resolve it best
    random = 1 - float((every * product(path).square().sum((0, 1))).sum() / (every * energy).sum())
    towards = _TOWARDS_ENDS if random > _MATTERS else 0.0
    groups = [group[kept_part[group].argsort()] for group in bulk.tensor_split(_GROUPS)]
    parts = [part for group in groups for part in _parted(group, kept // _GROUPS, towards)]
    chosen = torch.stack([part[len(part) // 2] for part in parts])
    weight = torch.stack([every[part].sum() for part in parts])
    features = torch.stack(
        [energy, kept_part, energy * energy, energy * kept_part, kept_part * kept_part, *_of_steps(path)]
    )
    weight = _balanced(weight, features[:, chosen], features[:, bulk] @ every[bulk])
    index, weights = torch.cat([tail, chosen]), torch.cat([every[tail], weight])
    return [step.taken(index, weights) for step in path]


def _parted(group: Tensor, count: int, towards: float) -> list[Tensor]:
    """Parts of a sorted group, smaller at its ends the nearer ``towards`` is to 1: what is extreme stands for few."""
    t = torch.arange(1, count, dtype=torch.float64) / count
    ends = len(group) * (t - towards * (2 * math.pi * t).sin() / (2 * math.pi))
    return [part for part in group.tensor_split(ends.long()) if len(part)]


def _balanced(weight: Tensor, features: Tensor, wanted: Tensor) -> Tensor:
    """Weights as near as may be to ``weight`` under which the features (p, n) have the sums wanted (p,).

    Left alone where that takes negative ones. Source: linear calibration, Deville & Sarndal 1992.
    """
    features = torch.cat([features, torch.ones_like(features[:1])])
    wanted = torch.cat([wanted, weight.sum()[None]])
    scale = (features.square() @ weight).sqrt().clamp(min=1e-300)
    scaled, gap = features / scale[:, None], (wanted - features @ weight) / scale
    by = torch.linalg.lstsq((scaled * weight) @ scaled.T, gap, rcond=1e-10, driver="gelsd").solution
    factor = 1 + by @ scaled
    return weight * factor if bool((factor > 0).all()) else weight


def _of_steps(path: list[Step]) -> list[Tensor]:
    """Squares of each step's gated reads, and of several steps what each carries and receives, and its square."""
    found = []
    for step in path:
        received = torch.stack([v.diagonal().T for v in step.births.values()]).sum(0)
        squares = step.mean[:, : step.states].square().sum(1) + received
        found += list(squares[step.states :])
        if len(path) > 1:
            whole = received[: step.states].sum(0)
            found += [whole, whole * whole, step.carried.square().sum((0, 1))]
    return found
