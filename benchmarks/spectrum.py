"""The theory's spectra against simulated networks: Kolmogorov-Smirnov distance and 99.9 % quantile.

    python benchmarks/spectrum.py [--width 2000] [--specs 5] [--networks 4] [--steps 1] [--cells lstm gru]
                                  [--only 0 4] [--keep FOLDER]
    python benchmarks/spectrum.py --tail 400 --cells minimal --only 0 4 [--wrong 1.1]

Specs of a cell are a checked one and then random ones; what the theory refuses is printed with the reason and the next
is drawn. Networks are untied, run to the fixed point, and the Jacobian of the steps after that is decomposed. Wanted at
N = 2000:

- distance: at most 0.02 between the theory's distribution and that of the values of all networks together;
- 99.9 % quantile: within 2 %. One network has two values above it and a Q of its own, off by some 1/sqrt(N), which
  moves all of its values alike. So each network's quantile (Hazen's: value i of n stands at share (i - 1/2)/n) is one
  measurement, and their mean with its standard error is compared: ``yes`` where the mean lies within 2 %, ``no`` where
  it lies beyond by more than the 99.7 % range of Student's t for so many networks, else ``open``: more networks are
  needed, and it is not counted as met.
- moments: m1 and m2 within 1e-3 of those of `analyze` (one step), and the networks' m1 not beyond 1e-3 of the theory's
  in the same sense.

--tail decides about the quantile where rows are unbounded over units (a law without an upper edge). The largest values
are then those of a few units and fluctuate as if drawn one by one: one network's quantile varies by some 10 %, and
its mean is not the law's quantile, as that of an order statistic is not (about 1 % beyond it at N = 2000). So many
networks are drawn of which only the largest values are found, and the quantile is that of the values of all of them
together; 16 groups, the values of each taken together, give the standard error, and the verdict is by these. Theory
samples units, so that its quantile has an error of its own, shown as the spread over 8 seeds; compared is the answer of
the default seed, which a user gets. --wrong is a control that has to fail: the theory is that of weight variances so
many times as large.

With --keep the networks' values are kept in a folder, so that an interrupted run goes on where it was, and more
networks can be added. A network of two thousand units takes some ten seconds, an LSTM of that width a minute. Typed
cells have a diagonal Jacobian, whose values are independent: ten of their networks together count as one.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from scipy.stats import t as student
from specs import CHECKED, gate
from spectrum_networks import LARGEST, is_diagonal, largest_values, network_values
from table import heading, show
from torch import Tensor

from isornn import Spec, analyze, spectrum
from isornn.cells import TGRU, TLSTM, TRNN
from isornn.cells.random_specs import random_spec
from isornn.files import replacing
from isornn.theory import SpectralDensity, TheoryMissing
from isornn.theory.spectra import NotSolved

MOST_DISTANCE, MOST_OFF, MOST_MOMENT_OFF = 0.02, 0.02, 1e-3
TOGETHER = 10  # networks of a typed cell that count as one
GROUPS = 16  # of networks with unbounded rows, each of which counts as one
SEEDS = 8
Draw = Callable[[Spec, int, int, int], Tensor]
SHARE = 0.999
COLUMNS = (
    "spec",
    "distance",
    f"{100 * SHARE:g} % quantile",
    "networks'",
    "within 2 %",
    "networks' m1",
    "m1, m2",
    "residual",
    "seconds",
)
TAIL_COLUMNS = (
    "spec",
    "99.9 % quantile",
    "over seeds",
    "networks'",
    "within 2 %",
    "mean of single ones'",
    "they vary by",
)

# Beside them cells without recurrent weights.
SPECS = CHECKED | {
    "t_rnn": Spec(TRNN(), {"f": gate(0, 2, 0.3, 1), "z": gate(0, 1)}),
    "t_lstm": Spec(TLSTM(), {"f": gate(0, 2, 0.3, 1), "z": gate(0, 1), "o": gate(0, 1)}),
    "t_gru": Spec(TGRU(), {"f": gate(0, 2, 0.3, 1), "z": gate(0, 1), "o": gate(0, 1)}),
}


def specs(cell: str) -> Iterator[Spec]:
    """The checked one and then random ones without end."""
    generator = torch.Generator().manual_seed(7)
    yield SPECS[cell]
    while True:
        yield random_spec(SPECS[cell].cell, generator)


def measured(draw: Draw, name: str, spec: Spec, width: int, steps: int, networks: int, kept: Path | None) -> Tensor:
    """``(networks, values)``, each row rising; those kept are not drawn again."""
    file = None if kept is None else kept / f"{draw.__name__}-{name.replace(' ', '-')}-{width}-{steps}.pt"
    rows: list[Tensor] = [] if file is None or not file.exists() else list(torch.load(file))
    for seed in range(len(rows) + 1, networks + 1):
        rows.append(draw(spec, width, steps, seed))
        if file is not None:
            with replacing(file) as new:
                torch.save(torch.stack(rows), new)
    return torch.stack(rows[:networks])


def distance(theory: SpectralDensity, values: Tensor) -> float:
    """The largest gap between the two distributions, from the theory's first point on where it does not resolve what
    lies below; what lies within 1e-9 of an atom counts as there."""
    for atom in theory.atoms:
        values = torch.where((values - atom.place).abs() < 1e-9, atom.place, values)
    values = values.flatten().sort()[0]
    upto = torch.searchsorted(values, values, right=True) / len(values)
    gaps = (theory.distribution(values) - upto).abs()
    return float(gaps[values >= theory.x[0]].max() if theory.below else gaps.max())


def of_networks(numbers: Tensor) -> tuple[float, float]:
    """Mean over networks and its standard error."""
    count = len(numbers)
    return float(numbers.mean()), float(numbers.std()) / math.sqrt(count) if count > 1 else math.inf


def hazen(values: Tensor, share: float, size: int) -> Tensor:
    """Quantiles of rows of ``size`` values, value i of which stands at share (i - 1/2)/size; only the largest need be
    given, (networks, n), rising."""
    count = values.shape[-1]
    place = min(max(share * size - 0.5 - (size - count), 0.0), count - 1.0)
    left = min(int(place), count - 2)
    return values[:, left] + (place - left) * (values[:, left + 1] - values[:, left])


def of_seeds(spec: Spec, steps: int) -> float:
    """The standard deviation of the theory's quantile over seeds, relative."""
    seeds = (torch.Generator().manual_seed(seed) for seed in range(SEEDS))
    found = torch.tensor([spectrum(spec, steps=steps, generator=seed).quantile(SHARE) for seed in seeds])
    return float(found.std() / found.mean())


def verdict(off: float, error: float, most: float, networks: int) -> str:
    if abs(off) <= most:
        return "yes"
    sure = float(student.ppf(0.9985, networks - 1)) if networks > 1 else math.inf
    return "no" if abs(off) - sure * error > most else "open"


def moments_off(theory: SpectralDensity) -> tuple[float, float] | None:
    """How far m1 and m2 are, relatively, from section 3's; ``None`` where those are not known."""
    known = analyze(theory.spec, length=1).jacobian
    first, second = known.mean.number(), known.second_moment.number()
    if first is None or second is None:
        return None
    return theory.mean / first - 1, (theory.variance + theory.mean**2) / second - 1


def scaled(spec: Spec, factor: float) -> Spec:
    """The spec with weight variances ``factor`` times as large."""
    for name, law in spec.gates.items():
        spec = spec.replace(f"{name}.weight_var", factor * float(law.weight_var))
    return spec


def row(name: str, spec: Spec, given: argparse.Namespace) -> tuple[list[object], bool] | None:
    """The row and whether all is met; ``None`` where the theory refuses."""
    begun = time.perf_counter()
    try:
        theory = spectrum(spec, steps=given.steps)
    except TheoryMissing as reason:
        print(f"{name}: refused, {reason}", flush=True)
        return None
    except NotSolved as reason:
        return [name, str(reason), *[""] * (len(COLUMNS) - 2)], False
    seconds = time.perf_counter() - begun
    networks = given.networks * (TOGETHER if is_diagonal(spec) else 1)
    values = measured(network_values, name, spec, given.width, given.steps, networks, given.keep)
    values = values.reshape(given.networks, -1).sort()[0]
    far, exact = distance(theory, values), theory.quantile(SHARE)
    quantile, error = (number / exact for number in of_networks(hazen(values, SHARE, values.shape[-1])))
    within = verdict(quantile - 1, error, MOST_OFF, given.networks)
    mean, mean_error = (number / theory.mean for number in of_networks(values.mean(-1)))
    good = (
        far <= MOST_DISTANCE
        and within == "yes"
        and verdict(mean - 1, mean_error, MOST_MOMENT_OFF, given.networks) != "no"
    )
    off = moments_off(theory) if given.steps == 1 else None
    moments = "" if off is None else " ".join(f"{part:+.0e}" for part in off)
    good &= off is None or max(map(abs, off)) <= MOST_MOMENT_OFF
    compared = f"{100 * (quantile - 1):+.2f} +- {100 * error:.2f} %"
    of_mean = f"{100 * (mean - 1):+.2f} +- {100 * mean_error:.2f} %"
    return [name, far, exact, compared, within, of_mean, moments, theory.residual, seconds], good


def tail_row(name: str, spec: Spec, given: argparse.Namespace) -> tuple[list[object], bool] | None:
    """Of the quantile alone, by many networks' largest values.

    Raises:
        ArithmeticError: all values found of a network lie above the quantile: more have to be found.
    """
    supposed = scaled(spec, given.wrong)
    try:
        exact = spectrum(supposed, steps=given.steps).quantile(SHARE)
    except TheoryMissing as reason:
        print(f"{name}: refused, {reason}", flush=True)
        return None
    largest = measured(largest_values, name, spec, given.width, given.steps, given.tail, given.keep)
    together, size = given.tail // GROUPS, given.width * len(spec.cell.states)
    grouped = hazen(largest[: GROUPS * together].reshape(GROUPS, -1).sort()[0], SHARE, together * size)
    whole = float(hazen(largest.reshape(1, -1).sort()[0], SHARE, given.tail * size))
    if float(largest[:, 0].max()) > whole:
        raise ArithmeticError(f"{name}: the {LARGEST} largest values of a network are too few")
    off, error = whole / exact - 1, of_networks(grouped)[1] / exact
    within = verdict(off, error, MOST_OFF, GROUPS)
    single = hazen(largest, SHARE, size)
    alone, alone_error = (number / exact for number in of_networks(single))
    return [
        name,
        exact,
        f"{100 * of_seeds(supposed, given.steps):.1f} %",
        f"{100 * off:+.2f} +- {100 * error:.2f} %",
        within,
        f"{100 * (alone - 1):+.2f} +- {100 * alone_error:.2f} %",
        f"{100 * float(single.std() / single.mean()):.0f} %",
    ], within == "yes"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--width", type=int, default=2000)
    parser.add_argument("--networks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1, help="k of the product of k Jacobians")
    parser.add_argument("--specs", type=int, default=5, help="of each cell: the checked one and then random ones")
    parser.add_argument("--only", nargs="*", type=int, help="these specs of each cell alone, counted from 0")
    parser.add_argument(
        "--tail", type=int, default=0, help="the 99.9 %% quantile alone, by so many networks, at least 16"
    )
    parser.add_argument(
        "--wrong", type=float, default=1.0, help="with --tail: weight variances of the theory, relative"
    )
    parser.add_argument("--cells", nargs="*", choices=list(SPECS), default=list(SPECS))
    parser.add_argument("--keep", type=Path, help="a folder for the networks' values")
    given = parser.parse_args()
    if 0 < given.tail < GROUPS:
        parser.error(f"--tail: {given.tail} networks are fewer than the {GROUPS} groups that they are put into")
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    product = "" if given.steps == 1 else f" of {given.steps} steps"
    wrong = "" if given.wrong == 1 else f", weight variances {given.wrong:g} times as large,"
    what, count = ("99.9 % quantile", given.tail) if given.tail else ("Spectra", given.networks)
    heading(f"{what}{product} of the theory{wrong} against {count} untied networks of N = {given.width}")
    found_row, columns = (tail_row, TAIL_COLUMNS) if given.tail else (row, COLUMNS)
    rows, good = [], True
    for cell in given.cells:
        found = 0
        for place, spec in enumerate(specs(cell)):
            if given.only and place not in given.only:
                if place > max(given.only):
                    break
                continue
            line = found_row(f"{cell} {place}", spec, given)
            if line is None:
                continue
            print(*line[0], sep="  ", file=sys.stderr, flush=True)
            rows.append(line[0])
            good &= line[1]
            found += 1
            if found == given.specs:
                break
    show(columns, rows)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
