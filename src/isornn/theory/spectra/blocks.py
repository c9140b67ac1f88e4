"""The Jacobian's blocks at sampled units of a stationary population."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isornn.cells import Spec, Values
from isornn.theory.errors import TheoryMissing
from isornn.theory.population.engine import Population
from isornn.theory.population.probing import linearise, linearise_read
from isornn.theory.population.units import Laws, Units, reader, stand_ins
from isornn.theory.reasons import NOT_CONVERGED
from isornn.theory.spectra.dyson import Blocks

UNITS = 1024
STEPS = 16
KEPT = 2048  # units of the bulk; of the tail as many again
_GROUPS = 64


def sampled_blocks(spec: Spec, generator: torch.Generator) -> Blocks:
    """Blocks of some 8000 units: of half a million sampled, the hundredth with the largest rows and an even choice
    of the others, each weighted by how many it stands for.

    Raises:
        TheoryMissing: the population does not settle.
    """
    population = Population(spec, generator=generator, units=UNITS)
    stationary = population.settle("identical")
    if not bool(stationary.converged.all()):
        raise TheoryMissing(NOT_CONVERGED)
    found = [blocks_of(population.laws, *moment) for moment in population.snapshots(stationary, STEPS)]
    return _thinned(joined(found))


def blocks_of(laws: Laws, units: Units, u: Values, x: Tensor | None) -> Blocks:
    """A~ and V_q of every unit at given pre-activations; rows and columns as in `isornn.theory.spectra.dyson`."""
    cell, names = laws.cell, laws.cell.states
    stood = stand_ins(laws, units)
    gated = [gate for gate in laws.weighted if reader(laws, gate, Values(**units.states), stood)[0]]
    column = {gate: len(names) + gated.index(gate) if gate in gated else 0 for gate in laws.weighted}
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
    births = {q: torch.zeros_like(mean) for q in column.values()}
    for gate, by_row in slopes.items():
        for s, left in by_row.items():
            for r, right in by_row.items():
                births[column[gate]][s, r] += laws.weight[gate][0] * left[0] * right[0]
    weight = torch.ones(shape, dtype=torch.float64) if units.weights is None else units.weights.expand(shape)
    flat = {q: v.reshape(size, size, -1) for q, v in births.items()}
    return Blocks(len(names), mean.reshape(size, size, -1), flat, weight.reshape(-1) / weight.sum())


def joined(parts: list[Blocks]) -> Blocks:
    """All units of several populations of one kind, without columns that are zero in all."""
    births = {q: torch.cat([part.births[q] for part in parts], -1) for q in parts[0].births}
    kept = {q: v for q, v in births.items() if bool((v != 0).any())}
    mean = torch.cat([part.mean for part in parts], -1)
    return Blocks(parts[0].states, mean, kept, torch.cat([part.weight for part in parts]) / len(parts))


def row_energy(blocks: Blocks) -> Tensor:
    """|A|^2 + tr V of each unit's rows: what large singular values come from."""
    states = blocks.states
    energy = blocks.mean[:states].square().sum((0, 1))
    for v in blocks.births.values():
        energy = energy + torch.einsum("ssn->n", v[:states, :states])
    return energy


def _thinned(blocks: Blocks) -> Blocks:
    """The tail whole, the bulk evenly: sorted by row energy into groups, and by the mean part within each."""
    total = blocks.weight.numel()
    if total <= 2 * KEPT:
        return blocks
    order = row_energy(blocks).argsort()
    bulk, tail = order[: total - KEPT], order[total - KEPT :]
    carried = blocks.mean[: blocks.states].square().sum((0, 1))
    groups = [group[carried[group].argsort()] for group in bulk.tensor_split(_GROUPS)]
    stride = math.ceil(bulk.numel() / KEPT)
    chosen, weight = [tail], [blocks.weight[tail]]
    for group in groups:
        for part in group.split(stride):
            chosen.append(part[len(part) // 2 : len(part) // 2 + 1])
            weight.append(blocks.weight[part].sum(0, keepdim=True))
    return blocks.taken(torch.cat(chosen), torch.cat(weight))
