"""The spectrum of a spec: by the law of one gate where no random matrix is left, else by the Dyson equation."""

from __future__ import annotations

import torch
from torch import Tensor

from isornn.cells import Spec, Values, initial_parameters
from isornn.theory.analysis import analyze
from isornn.theory.errors import TheoryMissing
from isornn.theory.population.units import Laws, Units
from isornn.theory.reasons import IDENTITY, NOT_POINTWISE
from isornn.theory.records import Analysis
from isornn.theory.spectra.blocks import blocks_of, joined, row_energy, sampled_blocks
from isornn.theory.spectra.dyson import Blocks, NotSolved
from isornn.theory.spectra.one_gate import one_gate_law
from isornn.theory.spectra.records import Atom, SpectralDensity, integrals
from isornn.theory.spectra.scan import ANGLES, Scan, moments, scan, upper_edge

SEED = 0
_CALIBRATIONS, _STRONGEST = 3, 3.0
_ACCURATE, _TOO_FAR = 2e-3, 0.05  # residuals
_PROBED, _LAST_DRAWS = 4000, 16
_DRIVES = ((3.0, 60), (30.0, 600))  # widths and steps
_WALL = 1e-3


def spectrum(spec: Spec, *, generator: torch.Generator | None = None) -> SpectralDensity:
    """The density of the squared singular values of the untied state-to-state Jacobian at infinite width.

    At the fixed point of the state's moments, on one trajectory; for a cell of several states the Jacobian is that of
    all of them, (M N) x (M N): for the LSTM d(h', c')/d(h, c). Given the units J = A + sum_k D_k W_k has a
    deterministic part and Gaussian rows of given covariances, so the resolvent solves a matrix Dyson equation with
    one block per unit (`isornn.theory.spectra.dyson`); a gated read (Cho's GRU) is linearised. Cells without
    recurrent weights, and a single orthogonal matrix without a carried state, have the law of a function of one gate.

    Args:
        spec: of plain numbers, not a batch; gaussian matrices (orthogonal: a single matrix, J = D W, only).
        generator: randomness of the sampled units; seeded with 0 by default, so that equal calls agree.

    Returns:
        Density, edges, atoms, mean and variance. Sampled units are reweighted by less than a percent or so so that m1
        and m2 are those of `analyze` where it has them; ``stderr`` is then that of `analyze`.

    Raises:
        TheoryMissing: a batch of specs; no fixed point; identity, margin or orthogonal matrices beyond the
            case above; a cell that is not pointwise.
        NotSolved: the equation's residual stays above its tolerance, or the density's mass or moments are off by more
            than 5 %, as where gates are so steep that singular values spread over hundreds of orders of magnitude.

    Source: information-plus-noise matrices, Hachem, Loubaton & Najim 2007; Gilboa et al. 2019 have the first
    two moments (eqs. 12-15).

    >>> from isornn.cells import Gate, Vanilla
    >>> found = spectrum(Spec(Vanilla("identity"), {"h": Gate(weight_var=0.5, input_var=1.0)}))  # Marchenko & Pastur
    >>> [round(float(edge), 1) for edge in found.edges], round(found.mean, 3), round(found.variance, 3)
    ([0.0, 2.0], 0.5, 0.25)
    """
    if spec.batch_shape:
        raise TheoryMissing(f"spec: a batch of shape {tuple(spec.batch_shape)} is not allowed; ask for one at a time")
    if not spec.cell.pointwise:
        raise TheoryMissing(NOT_POINTWISE)
    known = analyze(spec, length=1)
    if not bool(known.fixed_point.converged) or any(gate.ensemble == "identity" for gate in spec.gates.values()):
        raise TheoryMissing(known.fixed_point.second_moment.reason() or IDENTITY)
    law = one_gate_law(spec)
    if law is not None:
        return _exact(spec, *law)
    _need_gaussian(spec)
    generator = torch.Generator().manual_seed(SEED) if generator is None else generator
    blocks = _calibrated(sampled_blocks(spec, generator), known)
    if not blocks.births:
        raise TheoryMissing(
            f"{spec.cell.name}: without recurrent weights the Jacobian is diagonal in units, and its law is known "
            "for one state with one gate only"
        )
    return _by_dyson(spec, blocks, known)


def _need_gaussian(spec: Spec) -> None:
    for name, gate in spec.gates.items():
        if gate.ensemble != "gaussian" and float(gate.weight_var) > 0:
            raise TheoryMissing(
                f"gates.{name}.ensemble: the spectrum is known for gaussian matrices, and for an orthogonal one where "
                f"nothing is added to it; found {gate.ensemble!r}"
            )


def _exact(spec: Spec, x: Tensor, density: Tensor, atoms: tuple[Atom, ...]) -> SpectralDensity:
    mass, first, second = integrals(x, density, atoms)
    edges = (float(x[0]), float(x[-1])) if len(x) else (None, None)
    zero = {"mean": 0.0, "variance": 0.0}
    return SpectralDensity(spec, x, density, edges, atoms, first, second - first**2, zero, abs(mass - 1))


def _by_dyson(spec: Spec, blocks: Blocks, known: Analysis) -> SpectralDensity:
    bounded, singular = _extremes(spec)
    end = upper_edge(blocks) if bounded else None
    exact = moments(blocks, upper_edge(blocks, 0.05) if end is None else end)
    tries = []
    for angle in ANGLES if bounded else ANGLES[1:]:
        tries.append(_integrated(scan(blocks, angle, end), exact))
        if tries[-1][1] < _ACCURATE:
            break
    (found, atoms, first, second), residual = min(tries, key=lambda one: one[1])
    if residual > _TOO_FAR:
        raise NotSolved(f"the spectrum's density was not resolved: its mass or moments are off by {residual:.2g}")
    edges = (0.0 if singular else float(found.x[found.density > 0][0]), end)
    errors = {"mean": known.jacobian.mean.error(), "variance": known.jacobian.variance.error()}
    stderr = {name: error for name, error in errors.items() if error is not None}
    return SpectralDensity(spec, found.x, found.density, edges, atoms, first, second - first**2, stderr, residual)


def _integrated(found: Scan, exact: tuple[float, float]) -> tuple[tuple[Scan, tuple[Atom, ...], float, float], float]:
    """The scan with its atoms and moments, and how far these are from mass 1 and the exact moments."""
    atoms = (Atom(0.0, found.at_zero),) if found.at_zero else ()
    mass, first, second = integrals(found.x, found.density, atoms)
    residual = max(abs(mass - 1), abs(first / exact[0] - 1), abs(second / exact[1] - 1), found.residual)
    return (found, atoms, first, second), residual


def _calibrated(blocks: Blocks, known: Analysis) -> Blocks:
    """Units reweighted by exp(a f + b f^2), f = E/(E + mean E) of row energy E, so that m1 and m2 are those known.

    Source: calibration estimators, Deville & Sarndal 1992.
    """
    wanted = known.jacobian.mean.number(), known.jacobian.second_moment.number()
    energy = row_energy(blocks)
    f = energy / (energy + (energy * blocks.weight).sum()).clamp(min=1e-300)
    if wanted[0] is None or wanted[1] is None or not blocks.births or float(f.max() - f.min()) < 1e-6:
        return blocks
    target = torch.tensor(wanted, dtype=torch.float64)
    index = torch.arange(len(f))

    def tilted(by: Tensor) -> Blocks:
        return blocks.taken(index, blocks.weight * (by[0] * f + by[1] * f.square()).exp())

    end = upper_edge(blocks, 0.05)

    def gap(by: Tensor) -> Tensor:
        return torch.tensor(moments(tilted(by), end), dtype=torch.float64) / target - 1

    by, small = torch.zeros(2, dtype=torch.float64), 1e-3 * torch.eye(2, dtype=torch.float64)
    for _ in range(_CALIBRATIONS):
        now = gap(by)
        slopes = torch.stack([(gap(by + step) - now) / 1e-3 for step in small], -1)
        by = by - torch.linalg.lstsq(slopes, now).solution
        if not float(by.abs().max()) < _STRONGEST:
            return blocks  # not for so slight a correction: the deviation stays and shows in the moments
    return tilted(by)


def _extremes(spec: Spec) -> tuple[bool, bool]:
    """Whether rows of J stay bounded over units, and whether det A comes near 0: then the support begins at 0, for a
    square matrix with rows that the random part alone can make dependent.

    Found by driving units with pre-activations of standard deviation 3 over 60 steps and 30 over 600, half of the units
    by the same ones at all steps but the last, which finds states that can grow.
    """
    largest, nearest = [], []
    for scale, steps in _DRIVES:
        blocks = _driven(spec, scale, steps)
        births = [float(torch.einsum("ssn->n", v).max()) for v in blocks.births.values()]
        largest.append(torch.tensor([float(blocks.mean.square().sum((0, 1)).max()), *births]))
        a = blocks.mean[: blocks.states, : blocks.states]
        size = torch.linalg.matrix_norm(a.movedim(-1, 0), ord=2)
        smallest = torch.linalg.svdvals(a.movedim(-1, 0))[:, -1]
        nearest.append(float(smallest.min()) <= _WALL * float(size.max()))
    return bool((largest[1] <= 1.5 * largest[0]).all()), any(nearest)


def _driven(spec: Spec, scale: float, steps: int) -> Blocks:
    generator, laws = torch.Generator().manual_seed(SEED), Laws.of(spec)
    gates = [gate for gate in spec.cell.gates if _moves(laws, gate)]
    kept = torch.arange(_PROBED) % 2 == 0

    def drive() -> tuple[dict[str, Tensor], Tensor]:
        draws = scale * torch.randn(len(spec.cell.gates) + 1, _PROBED, dtype=torch.float64, generator=generator)
        values = {
            gate: laws.bias_mean[gate] + (value if gate in gates else torch.zeros_like(value)).expand(1, 1, 1, -1)
            for gate, value in zip(spec.cell.gates, draws, strict=False)
        }
        return values, laws.input_variance.sqrt() * draws[-1].expand(1, 1, 1, -1)

    states = {name: torch.zeros(1, 1, 1, _PROBED, dtype=torch.float64) for name in spec.cell.states}
    (same, same_x), parameters = drive(), initial_parameters(spec.cell)
    for _ in range(steps):
        values, x = drive()
        mixed = {gate: torch.where(kept, same[gate], value) for gate, value in values.items()}
        u, mixed_x = Values(**mixed, **parameters), torch.where(kept, same_x, x)
        new = spec.cell.update(Values(**states), u, mixed_x)
        states = {name: value.expand(states[name].shape) for name, value in new.items()}
    found = []
    for _ in range(_LAST_DRAWS):
        values, x = drive()
        found.append(blocks_of(laws, Units(states, {}, None), Values(**values, **parameters), x))
    return joined(found)


def _moves(laws: Laws, gate: str) -> bool:
    """Whether the gate's pre-activation varies over units."""
    spread = float(laws.weight[gate] + laws.drive[gate] + laws.bias_var[gate])
    return laws.bias_law[gate] is not None or spread > 0
