"""Spectra of orthogonal matrices and of margins against `isornn.simulate`, and what a margin does to the numbers.

    python benchmarks/orthogonal_spectrum.py [--width 2000] [--networks 2] [--many 12] [--cells vanilla minimal]
                                             [--keep FOLDER] [--table]

Five specs of vanilla and of minimal each, a checked one and random ones, over the ensembles orthogonal and margins of
0.1, 1 and 0.5. Networks are untied and run on from states of the fixed point's variance. Wanted:

- distance: at most 0.02 (Kolmogorov-Smirnov) between the theory's distribution and the values of networks of N = 2000;
- 99.9 % quantile: within 2 % where rows of the Jacobian are bounded (vanilla), as in `benchmarks/spectrum.py`;
- moments: the density's m1 and m2 within 1e-3 of the closed form of `analyze`, and networks' m1 and m2 (``--many`` of
  N = 500) within 3 standard errors of it.

With --table instead: `analyze` and `spectrum` by margin, and the growth of |dh|^2 in tied networks beside chi_1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from specs import CHECKED
from spectrum import distance, hazen, moments_off, of_networks, verdict
from table import heading, show
from torch import Tensor

from isornn import Gate, Spec, analyze, simulate, spectrum
from isornn.cells import Minimal, Vanilla
from isornn.cells.laws import Ensemble
from isornn.cells.random_specs import random_spec
from isornn.files import replacing

ENSEMBLES: tuple[Ensemble, ...] = ("orthogonal", 0.1, 1.0, 0.5, "orthogonal")
SHARE = 0.999
MOST_DISTANCE, MOST_OFF, MOST_MOMENT_OFF, MOST_ERRORS = 0.02, 0.02, 1e-3, 3.0
WARMUP = {"vanilla": 6, "minimal": 6}
SMALL = 500
MARGINS: tuple[Ensemble, ...] = ("orthogonal", 0.01, 0.1, 1.0, "gaussian")
TABLE = {
    "vanilla": Spec(Vanilla(), {"h": Gate(weight_var=1.2, input_var=0.1)}),
    "minimal": Spec(Minimal(), {"u": Gate(weight_var=1, input_var=1, bias_mean=3)}),
}


def with_ensemble(spec: Spec, ensemble: Ensemble) -> Spec:
    """The same spec with all recurrent matrices of one ensemble."""
    gates = {name: replace(gate, ensemble=ensemble) for name, gate in spec.gates.items()}
    return replace(spec, gates=gates)


def specs(cell: str) -> Iterator[Spec]:
    """Five of a cell that settle."""
    generator = torch.Generator().manual_seed(7)
    plain = CHECKED[cell]
    for ensemble in ENSEMBLES:
        while not bool(analyze(with_ensemble(plain, ensemble), length=1).fixed_point.converged):
            plain = random_spec(plain.cell, generator)
        yield with_ensemble(plain, ensemble)
        plain = random_spec(plain.cell, generator)


def network_values(spec: Spec, width: int, networks: int, seed: int) -> Tensor:
    """Squared singular values (networks, N), rising."""
    found = simulate(
        spec,
        width=width,
        steps=1,
        networks=networks,
        initial_variance=analyze(spec, length=1).fixed_point.second_moment.number(),
        warmup=WARMUP[spec.cell.name],
        tangents=1,
        singular_values=True,
        generator=torch.Generator().manual_seed(seed),
    )
    assert found.spectrum is not None
    return found.spectrum.singular_values.square().sort(-1)[0]


def measured(name: str, spec: Spec, width: int, networks: int, kept: Path | None) -> Tensor:
    """The same, one seed a network; those kept are not run again."""
    file = None if kept is None else kept / f"{name.replace(' ', '-')}-{width}.pt"
    rows: list[Tensor] = [] if file is None or not file.exists() else list(torch.load(file))
    for seed in range(len(rows) + 1, networks + 1):
        rows.append(network_values(spec, width, 1, seed)[0])
        if file is not None:
            with replacing(file) as new:
                torch.save(torch.stack(rows), new)
    return torch.stack(rows[:networks])


def row(name: str, spec: Spec, given: argparse.Namespace) -> tuple[list[object], bool]:
    """The row and whether all is met."""
    theory, known = spectrum(spec), analyze(spec, length=1).jacobian
    values = measured(name, spec, given.width, given.networks, given.keep)
    many = measured(name, spec, SMALL, given.many, given.keep)
    far, bounded = distance(theory, values), theory.edges[1] is not None
    quantile, error = (number / theory.quantile(SHARE) for number in of_networks(hazen(values, SHARE)))
    within = verdict(quantile - 1, error, MOST_OFF, given.networks)
    off = moments_off(theory)
    errors = []
    for power, exact in ((1, known.mean.number()), (2, known.second_moment.number())):
        mean, stderr = of_networks(many.pow(power).mean(-1))
        errors.append((mean - (exact or 0.0)) / stderr)
    good = far <= MOST_DISTANCE and off is not None and max(map(abs, off)) <= MOST_MOMENT_OFF
    good &= max(map(abs, errors)) <= MOST_ERRORS and (not bounded or within == "yes")
    return [
        name,
        str(next(iter(spec.gates.values())).ensemble),
        far,
        f"{100 * (quantile - 1):+.2f} +- {100 * error:.2f} %{'' if bounded else ' (unbounded)'}",
        "" if off is None else " ".join(f"{part:+.0e}" for part in off),
        " ".join(f"{part:+.1f}" for part in errors),
        theory.residual,
    ], good


def compare(given: argparse.Namespace) -> int:
    heading(f"Orthogonal matrices and margins against {given.networks} untied networks of N = {given.width}")
    rows, good = [], True
    for cell in given.cells:
        for place, spec in enumerate(specs(cell)):
            line, met = row(f"{cell} {place}", spec, given)
            print(*line, sep="  ", file=sys.stderr, flush=True)
            rows.append(line)
            good &= met
    columns = (
        "spec",
        "ensemble",
        "distance",
        f"{100 * SHARE:g} % quantile",
        "m1, m2",
        f"networks' m1, m2 (N = {SMALL})",
    )
    show((*columns, "residual"), rows)
    return 0 if good else 1


def table(given: argparse.Namespace) -> int:
    """What a margin does."""
    for cell in given.cells:
        heading(f"{cell}: {TABLE[cell].to_json()['gates']}, squared singular values by margin")
        rows = []
        for ensemble in MARGINS:
            spec = with_ensemble(TABLE[cell], ensemble)
            answer, density = analyze(spec, length=1), spectrum(spec)
            tied = simulate(
                spec,
                width=SMALL,
                steps=20,
                warmup=60,
                networks=given.many,
                tied=True,
                generator=torch.Generator().manual_seed(1),
            )
            moments = answer.jacobian
            largest = density.edges[1]
            rows.append(
                [
                    str(ensemble),
                    answer.xi.number() or answer.xi.reason(),
                    answer.chi.number(),
                    answer.chi_1.number(),
                    moments.mean.number(),
                    moments.variance.number(),
                    density.quantile(SHARE) if largest is None else largest,
                    f"{float(tied.chi_1.value):.4f} +- {float(tied.chi_1.stderr):.4f}",
                ]
            )
        largest_of = "largest" if cell == "vanilla" else f"{100 * SHARE:g} % quantile"
        show(("ensemble", "xi", "chi", "chi_1", "m1", "variance", largest_of, "tied chi_1"), rows)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--width", type=int, default=2000)
    parser.add_argument("--networks", type=int, default=2)
    parser.add_argument("--many", type=int, default=12, help=f"networks of N = {SMALL}, for the moments")
    parser.add_argument("--cells", nargs="*", choices=list(WARMUP), default=list(WARMUP))
    parser.add_argument("--keep", type=Path, help="a folder for the networks' values")
    parser.add_argument("--table", action="store_true", help="what a margin does, instead")
    given = parser.parse_args()
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    return table(given) if given.table else compare(given)


if __name__ == "__main__":
    sys.exit(main())
