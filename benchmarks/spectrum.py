"""The theory's spectra against simulated networks: Kolmogorov-Smirnov distance and 99.9 % quantile.

    python benchmarks/spectrum.py [--width 2000] [--specs 1] [--networks 1] [--cells lstm gru]

Specs are the checked ones and then random ones. For each the distance between the theory's distribution of squared
singular values and that of the last step of untied networks, and the ratio of 99.9 % quantiles. Wanted at N = 2000: at
most 0.02, and within 2 %. One network has a Q of its own, off by some 1/sqrt(N), which moves all of its singular values
alike, and two of its values lie above that quantile: several networks are the fairer test. Two thousand units take
some ten seconds, an LSTM of that width minutes.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from table import heading, show
from torch import Tensor

from isornn import Gate, Spec, simulate, spectrum
from isornn.cells import GRU, LSTM, ChoGRU, Minimal, Peephole, Vanilla
from isornn.cells.random_specs import random_spec
from isornn.theory import SpectralDensity, TheoryMissing

WARMUP = 40
MOST_DISTANCE, MOST_OFF = 0.02, 0.02


def gate(weight_var: float, input_var: float, bias_var: float = 0.0, bias_mean: float = 0.0) -> Gate:
    return Gate(weight_var, input_var, bias_var=bias_var, bias_mean=bias_mean)


SPECS = {
    "vanilla": Spec(Vanilla(), {"h": gate(2, 0.5, 0.1, 0.2)}),
    "minimal": Spec(Minimal(), {"u": gate(3, 2, 0.5, 1)}),
    "peephole": Spec(Peephole(), {"i": gate(2, 0.5, 0, 0.5), "f": gate(4, 1, 0.1, 2), "g": gate(3, 0.5)}),
    "gru": Spec(GRU(), {"r": gate(2, 0.5), "z": gate(3, 1, 0, 1), "nx": gate(0, 0.5), "nh": gate(4, 0)}),
    "gru_cho": Spec(ChoGRU(), {"z": gate(3, 1, 0, 1), "r": gate(2, 0.5, 0.1, 0.5), "n": gate(4, 0.5)}),
    "lstm": Spec(
        LSTM(), {"i": gate(2, 1, 0, 0.5), "f": gate(4, 0.5, 0.1, 2), "g": gate(3, 0.5), "o": gate(2, 0.5, 0, 0.5)}
    ),
}


def measured(spec: Spec, width: int, networks: int) -> Tensor:
    """Squared singular values of all networks, rising."""
    run = simulate(
        spec,
        width=width,
        steps=1,
        warmup=WARMUP,
        networks=networks,
        tangents=1,
        singular_values=True,
        generator=torch.Generator().manual_seed(1),
    )
    assert run.spectrum is not None
    return run.spectrum.singular_values.square().flatten().sort()[0]


def distance(theory: SpectralDensity, values: Tensor) -> float:
    """The largest gap between the two distributions; what lies within 1e-9 of an atom counts as there."""
    count = len(values)
    below, upto = torch.arange(count) / count, torch.arange(1, count + 1) / count
    share = theory.distribution(values + 1e-9)
    gaps = torch.minimum((share - upto).abs(), (share - below).abs()) if theory.atoms else (share - upto).abs()
    return float(gaps.max())


def row(name: str, spec: Spec, width: int, networks: int) -> tuple[list[object], bool]:
    begun = time.perf_counter()
    try:
        theory = spectrum(spec)
    except TheoryMissing as reason:
        return [name, str(reason)[:40], "", "", "", ""], True
    seconds = time.perf_counter() - begun
    values = measured(spec, width, networks)
    far, exact = distance(theory, values), theory.quantile(0.999)
    off = float(torch.quantile(values, 0.999)) / exact - 1
    good = far <= MOST_DISTANCE and abs(off) <= MOST_OFF
    return [name, far, exact, f"{100 * off:+.2f} %", theory.residual, seconds], good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--width", type=int, default=2000)
    parser.add_argument("--networks", type=int, default=1)
    parser.add_argument("--specs", type=int, default=1, help="of each cell: the checked one and then random ones")
    parser.add_argument("--cells", nargs="*", choices=list(SPECS), default=list(SPECS))
    given = parser.parse_args()
    heading(f"Spectra of the theory against {given.networks} untied network(s) of N = {given.width}")
    rows, good = [], True
    for cell in given.cells:
        generator = torch.Generator().manual_seed(7)
        specs = [SPECS[cell], *(random_spec(SPECS[cell].cell, generator) for _ in range(given.specs - 1))]
        for place, spec in enumerate(specs):
            print(f"{cell} {place}", file=sys.stderr, flush=True)
            line, fine = row(f"{cell} {place}", spec, given.width, given.networks)
            rows.append(line)
            good &= fine
    show(("spec", "distance", "99.9 % quantile", "network's", "residual", "seconds"), rows)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
