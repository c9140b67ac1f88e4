"""The spectrum of a spec: by the law of one gate where no random matrix is left, else by the Dyson equation."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.cells.arguments import seeded, whole_number
from isornn.cells.spec import check_spec, detached
from isornn.modes import usual_modes
from isornn.theory.analysis import analyze
from isornn.theory.assumptions import unmet_assumption
from isornn.theory.reasons import NOT_CONVERGED, TheoryMissing
from isornn.theory.records import JacobianMoments
from isornn.theory.spectra.blocks import (
    REPLICATES,
    UNITS,
    Step,
    carried,
    chained,
    row_energy,
    sampled_path,
    thinned,
    with_few,
)
from isornn.theory.spectra.dyson import Blocks, NotSolved
from isornn.theory.spectra.laws import Atom, KnownMoments, Law, PiecewiseLaw, SpectralDensity, integrals
from isornn.theory.spectra.networks import network_law
from isornn.theory.spectra.products import one_gate_law, unit_law
from isornn.theory.spectra.scan import SHARES, STILL, Scan, extremes, moments, scans, upper_edge

MOST_STEPS = 16
_CALIBRATIONS, _STRONGEST = 2, 0.2  # rounds, and the largest factors a and b
_ACCURATE, _ROUGH, _TOO_FAR = 2e-3, 0.02, 0.05  # residuals
_AT_ZERO = 1e-9  # of the highest point
_GROUPS = 8  # of replicates, whose moments give the standard errors


@usual_modes()
def spectrum(spec: Spec, *, steps: int = 1, generator: torch.Generator | None = None) -> SpectralDensity:
    """The density of the squared singular values of the untied state-to-state Jacobian at infinite width.

    At the fixed point of the state's moments, on one trajectory: of ``J_t`` itself, or of the product of several,
    ``J_(t+k-1) ... J_t``, which a gradient through k steps is multiplied by. For a cell of several states the Jacobian
    is that of all of them, (M N) x (M N): for the LSTM d(h', c')/d(h, c). Given the units J = A + sum_k D_k W_k has a
    deterministic part and random matrices that are free from it, so the resolvent solves a matrix Dyson equation with
    one block per unit (`isornn.theory.spectra.dyson`); a gated read (Cho's GRU) and a product are linearised. Cells
    without recurrent weights have the law of a product of their units' own gates, in one step of one gate, exactly;
    else of half a million sampled units. One step of a single matrix without a carried state, J = D W, that is
    orthogonal or has a margin, is exact too. Where the equation's density is off by more than 2 %, as with very weak
    weights and gates that vary over units, it is a histogram of the values of drawn networks
    (`isornn.theory.spectra.networks`).

    Args:
        spec: of plain numbers, not a batch.
        steps: k, from 1 to 16.
        generator: randomness of the sampled units; seeded with 0 by default, so that equal calls agree.

    Returns:
        Density, edges, atoms, mean and variance. Sampled units are reweighted slightly so that m1 and m2 of one step
        are those of `analyze` where it has them, and of several steps the means over eight groups of them. ``stderr``
        is that of these. Where reweighting or integration fall short of them the residual says by how much.

    Raises:
        SpecError: steps that are not from 1 to 16.
        TheoryMissing: a batch of specs; no fixed point; identity matrices; a cell that is not pointwise.
        NotSolved: the equation's residual stays above its tolerance, or the density's mass or moments, and those of
            drawn networks, are off by more than 5 %, as where gates are so steep that singular values spread over
            hundreds of orders of magnitude.

    Source: information-plus-noise matrices, Hachem, Loubaton & Najim 2007; Gilboa et al. 2019 have the first
    two moments (eqs. 12-15). Products of J = D W alone: Pennington, Schoenholz & Ganguli 2017.

    >>> from isornn.cells import Gate, Vanilla
    >>> found = spectrum(Spec(Vanilla("identity"), {"h": Gate(weight_var=0.5, input_var=1.0)}))  # Marchenko & Pastur
    >>> [round(float(edge), 1) for edge in found.edges], round(found.mean, 3), round(found.variance, 3)
    ([0.0, 2.0], 0.5, 0.25)
    """
    check_spec(spec)
    steps = whole_number("steps", steps, most=MOST_STEPS)
    if spec.batch_shape:
        raise TheoryMissing(f"spec: a batch of shape {tuple(spec.batch_shape)} is not allowed; ask for one at a time")
    unmet = unmet_assumption(spec)
    if unmet is not None:
        raise TheoryMissing(unmet)
    spec = detached(spec)
    known = analyze(spec, length=1)
    if not bool(known.fixed_point.converged):
        raise TheoryMissing(known.fixed_point.second_moment.reason() or NOT_CONVERGED)
    one_step = _of_analysis(known.jacobian)
    if one_step is not None and one_step.of_an_atom:
        place = one_step.first**steps
        return _of_law(spec, steps, PiecewiseLaw.at(place).law, KnownMoments(place, place**2, one_step.stderr))
    law = one_gate_law(spec) if steps == 1 else None
    if law is not None:
        found, weights = _of_law(spec, steps, law, one_step), [gate.weight_var for gate in spec.gates.values()]
        return found if any(float(weight) > 0 for weight in weights) else _with_ends_of_units(found)
    generator = seeded(generator)
    path = sampled_path(spec, steps, generator)
    if not path[0].source_terms:
        return _with_ends_of_units(_of_law(spec, steps, *unit_law(path)))
    wanted = one_step if steps == 1 else _of_groups(path)
    found = _by_dyson(spec, path, wanted)
    if found.residual > _ROUGH:
        found = min(found, _by_networks(spec, path, wanted, generator), key=lambda one: one.residual)
    if found.residual > _TOO_FAR:
        raise NotSolved(f"the spectrum's density was not resolved: its mass or moments are off by {found.residual:.2g}")
    return found


def _of_law(spec: Spec, steps: int, law: Law, known: KnownMoments | None) -> SpectralDensity:
    """Of a law that is exact, or of one of sampled units."""
    x, density, atoms = law
    mass, first, second = integrals(x, density, atoms)
    residual = abs(mass - 1)
    if known is not None:
        residual = max(residual, known.distance(first, second))
        if len(x):
            share, *moments_of_atoms = integrals(x[:0], density[:0], atoms)
            smooth = (known.first - moments_of_atoms[0], known.second - moments_of_atoms[1])
            density = _corrected(x, density, 1 - share, *smooth)
            _, first, second = integrals(x, density, atoms)
    lowest = float(x[0]) if len(x) and x[0] > _AT_ZERO * x[-1] else 0.0
    edges = (lowest, float(x[-1])) if len(x) else (None, None)
    stderr = {} if known is None else known.stderr
    return SpectralDensity(spec, steps, x, density, edges, atoms, 0.0, first, second - first**2, stderr, residual)


def _with_ends_of_units(found: SpectralDensity) -> SpectralDensity:
    """With the support's ends, which neither a grid nor a sample of units comes to, where no random matrix is left."""
    lowest, highest = found.edges
    if lowest is None or highest is None:
        return found
    limits = extremes(found.spec, found.steps)
    end = max(highest, float(carried(limits.path).max())) if limits.bounded else None
    return replace(found, edges=(0.0 if limits.singular else lowest, end))


def _of_analysis(known: JacobianMoments) -> KnownMoments | None:
    """The moments of one step's Jacobian that `analyze` gives."""
    first, second = known.mean.number(), known.second_moment.number()
    if first is None or second is None:
        return None
    errors = {"mean": known.mean.error(), "variance": known.variance.error()}
    return KnownMoments(first, second, {name: error for name, error in errors.items() if error is not None})


def _of_groups(path: list[Step]) -> KnownMoments:
    """The equation's moments for groups of replicates, each for itself."""
    replicate = torch.arange(path[0].weight.numel()) // UNITS % REPLICATES
    found = []
    for group in range(_GROUPS):
        index = (replicate % _GROUPS == group).nonzero()[:, 0]
        own = [step.taken(index, step.weight[index]) for step in path]
        blocks = chained(thinned(own))
        _, second = moments(blocks, upper_edge(blocks, 0.05))
        found.append((float((row_energy(own) * own[0].weight).sum()) / own[0].states, second))
    means, squares = torch.tensor(found, dtype=torch.float64).unbind(-1)
    spread = {"mean": means, "variance": squares - means.square()}
    errors = {name: float(value.std()) / math.sqrt(_GROUPS) for name, value in spread.items()}
    return KnownMoments(float(means.mean()), float(squares.mean()), errors)


def _by_dyson(spec: Spec, path: list[Step], wanted: KnownMoments | None) -> SpectralDensity:
    limits = extremes(spec, len(path))
    few = thinned(path)
    blocks = chained(with_few(few, limits.path) if limits.bounded else few)
    rough = upper_edge(blocks, 0.05)
    if wanted is None:
        wanted = KnownMoments(*moments(blocks, rough), {})
    else:
        blocks = _calibrated(blocks, wanted, rough)
    end = upper_edge(blocks) if limits.bounded else None
    tries = []
    for found in scans(blocks, SHARES if limits.bounded else SHARES[1:], rough, end):
        tries.append((_off(found, wanted), found))
        if tries[-1][0] < _ACCURATE:
            break
    residual, found = min(tries, key=lambda one: one[0])
    residual = max(residual, found.moved if found.moved > STILL else 0.0)
    atoms = (Atom(0.0, found.at_zero),) if found.at_zero else ()
    density = _corrected(found.x, found.density, 1 - found.at_zero - found.below, wanted.first, wanted.second)
    _, first, second = integrals(found.x, density, atoms)
    edges = (0.0 if limits.singular else float(found.x[density > 0][0]), end)
    return SpectralDensity(
        spec,
        len(path),
        found.x,
        density,
        edges,
        atoms,
        found.below,
        first,
        second - first**2,
        wanted.stderr,
        residual,
    )


def _by_networks(
    spec: Spec, path: list[Step], wanted: KnownMoments | None, generator: torch.Generator
) -> SpectralDensity:
    law, uncertain = network_law(path, generator)
    found = _of_law(spec, len(path), law, wanted)
    return replace(found, residual=max(found.residual, uncertain))


def _off(found: Scan, wanted: KnownMoments) -> float:
    """How far the scan's mass is from 1 and its moments, relatively, from those wanted."""
    mass, first, second = integrals(found.x, found.density, ())
    mass += found.at_zero + found.below
    return max(abs(mass - 1), wanted.distance(first, second), found.residual)


def _corrected(x: Tensor, density: Tensor, mass: float, first: float, second: float) -> Tensor:
    """The density times 1 + a + b y/(1 + |y|) + c y^2/(1 + y^2), with y = x less its mean, in standard deviations, that
    has this mass and these moments. What the residual says is undone where it can be without a negative density."""
    if not min(mass, first, second) > 0:  # rounding, of a density with next to no mass
        return density
    centre = first / mass
    y = (x - centre) / max(second / mass - centre**2, 1e-300) ** 0.5
    shapes = (torch.ones_like(y), y / (1 + y.abs()), y.square() / (1 + y.square()))
    parts = [integrals(x, density * shape, ()) for shape in shapes]
    wanted = torch.tensor([mass, first, second], dtype=torch.float64)
    columns = torch.tensor(parts, dtype=torch.float64).T / wanted[:, None]
    by = torch.linalg.lstsq(columns, 1 - columns[:, 0]).solution
    factor = 1 + sum(share * shape for share, shape in zip(by, shapes, strict=True))
    return density * factor if bool((factor > 0).all()) else density


def _calibrated(blocks: Blocks, wanted: KnownMoments, end: float) -> Blocks:
    """Units reweighted by exp(a f + b g) so that m1 and m2 are those wanted; f is E/(E + mean E) of row energy E and
    g what f^2 adds to it, both of mean 0 and variance 1.

    Where that takes weights far from those they have, units are left alone: the residual then says so.

    Source: calibration estimators, Deville & Sarndal 1992.
    """
    energy, weight = blocks.energy, blocks.weight
    f = energy / (energy + (energy * weight).sum()).clamp(min=1e-300)
    if float(f.max() - f.min()) < 1e-6:
        return blocks
    f = _standard(f, weight)
    g = f.square()
    g = _standard(g - (weight * f * g).sum() * f, weight)
    target = torch.tensor([wanted.first, wanted.second], dtype=torch.float64)
    index = torch.arange(len(f))

    def tilted(by: Tensor) -> Blocks:
        return blocks.taken(index, weight * (by[0] * f + by[1] * g).exp())

    def gap(by: Tensor) -> Tensor:
        return torch.tensor(moments(tilted(by), end), dtype=torch.float64) / target - 1

    by, small = torch.zeros(2, dtype=torch.float64), 1e-3 * torch.eye(2, dtype=torch.float64)
    for _ in range(_CALIBRATIONS):
        now = gap(by)
        slopes = torch.stack([(gap(by + step) - now) / 1e-3 for step in small], -1)
        by = by - torch.linalg.lstsq(slopes, now).solution
        if not float(by.abs().max()) < _STRONGEST:
            return blocks
    return tilted(by)


def _standard(values: Tensor, weight: Tensor) -> Tensor:
    centred = values - (weight * values).sum()
    return centred / (weight * centred.square()).sum().sqrt().clamp(min=1e-300)
