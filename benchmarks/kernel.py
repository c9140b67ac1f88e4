"""The Gaussian-process kernel of tied networks against random networks on real sequences, and as a classifier.

    python benchmarks/kernel.py [--cells lstm gru] [--widths 1000 500] [--networks 4000]

Six handwritten digits, read as 8 rows of 8 pixels, go through tied networks of N units. Compared with the theory's
kernel, entry by entry:

- outputs: the covariance over networks of y = v.o with v ~ N(0, 1/N), which is what the kernel is the limit of;
- units: the mean over networks of o_a.o_b / N, which has the same mean and a standard error some 20 times smaller, so
  that what a width of N does to the mean (of order 1/N) shows.

There are ``networks`` of 1000 units; of others as many as have the same number of units together. What networks gave is
kept in ``results/kernel_networks.json``, so an interrupted run goes on where it was; without that file a width takes
some twenty minutes. Then Gaussian-process regression on the ten classes, with the kernel of each cell.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from specs import CHECKED
from table import RESULTS, heading, show
from torch import Tensor

from isornn import Spec, kernel, kernel_estimate
from isornn.cells import Values, initial_parameters
from isornn.files import replacing
from isornn.nn.random_network import RandomNetwork
from isornn.nn.step import step
from isornn.tasks import load_digits

SEQUENCES, SIDE, WIDTH = 6, 8, 1000
UNITS, CALLS = 2**17, 2
FIT, HELD, TEST = 150, 50, 100
READOUTS = ("last", "mean")
NETWORKS_FILE = RESULTS / "kernel_networks.json"
Found = Mapping[str, list[list[float]]]


def digits(count: int = SEQUENCES) -> Tensor:
    """The first ``count`` training digits as ``(count, 8, 8)``."""
    return load_digits().train_images[:count].reshape(count, SIDE, SIDE).double()


def outputs(spec: Spec, x: Tensor, width: int, generator: torch.Generator) -> Tensor:
    """Outputs ``(T, B, N)`` of one tied network, from state 0; an input that enters pointwise is Phi x."""
    cell = spec.cell
    if cell.input_enters_pointwise:
        features = torch.randn(width, x.shape[-1], dtype=torch.float64, generator=generator)
        x = x @ features.T / math.sqrt(x.shape[-1])
    network = RandomNetwork.drawn(spec, width, x.shape[-1], generator)
    before = torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), 1)
    states = Values(**{name: torch.zeros(len(x), width, dtype=torch.float64) for name in cell.states})

    def multiply(gate: str, r: Tensor) -> Tensor:
        matrix = network.recurrent[gate]
        return torch.zeros_like(r) if matrix is None else r @ matrix.T

    shown = []
    for t in range(x.shape[1]):
        drive = {}
        for gate in cell.gates:
            drive[gate] = network.biases[gate].expand(len(x), width)
            for matrices, value in ((network.inputs, x[:, t]), (network.previous, before[:, t])):
                matrix = matrices[gate]
                drive[gate] = drive[gate] if matrix is None else drive[gate] + value @ matrix.T
        pointwise = x[:, t] if cell.input_enters_pointwise else None
        states, u = step(cell, states, drive, multiply, pointwise, initial_parameters(cell))
        shown.append(cell.output(states, u))
    return torch.stack(shown)


def networks_of(spec: Spec, width: int, count: int, file: Path) -> Found:
    """Means and standard errors over ``count`` networks, from ``file`` where it knows, else simulated and added."""
    known = json.loads(file.read_text()) if file.exists() else {}
    key = f"{count} x {width}: {json.dumps(spec.to_json())}"
    if key not in known:
        generator = torch.Generator().manual_seed(width)
        x, samples = digits(), []
        with torch.no_grad():
            for _ in range(count):
                o = outputs(spec, x, width, generator)
                readout = torch.randn(width, dtype=torch.float64, generator=generator) / math.sqrt(width)
                shown = torch.stack((o[-1], o.mean(0)))
                y = shown @ readout
                samples.append(torch.stack((y[:, :, None] * y[:, None], shown @ shown.mT / width)))
        stacked = torch.stack(samples)
        mean, error = stacked.mean(0), stacked.std(0) / math.sqrt(count)
        known[key] = {
            f"{what} {readout}": [mean[i, j].tolist(), error[i, j].tolist()]
            for i, what in enumerate(("outputs", "units"))
            for j, readout in enumerate(READOUTS)
        }
        with replacing(file) as new:
            new.write_text(json.dumps(known, indent=0))
    return known[key]


def theory(spec: Spec, readout: str) -> tuple[Tensor, Tensor]:
    """The kernel and its standard error, from ``CALLS`` calls."""
    found = [
        kernel_estimate(spec, digits(), readout=readout, units=UNITS, generator=torch.Generator().manual_seed(seed))
        for seed in range(CALLS)
    ]
    value = torch.stack([one.value for one in found]).mean(0)
    return value, torch.stack([one.stderr for one in found]).square().sum(0).sqrt() / CALLS


def compared(name: str, readout: str, width: int, count: int, file: Path) -> list[object]:
    """A row of the first table; entries above the diagonal are those below."""
    value, uncertain = theory(CHECKED[name], readout)
    networks = networks_of(CHECKED[name], width, count, file)
    row: list[object] = [name, readout, width, count]
    for what in ("outputs", "units"):
        mean, error = (torch.tensor(part, dtype=torch.float64) for part in networks[f"{what} {readout}"])
        noise = (error.square() + uncertain.square()).sqrt()
        gap = mean - value
        row += [float((gap.abs() / noise).max()), f"{float((noise / value).mean()):.2%}"]
    # Entries of a network go together: the mean of their errors is an upper bound on the error of their mean.
    share, most = width * float((gap / value).mean()), width * float((noise / value).mean())
    return [*row, f"{share:+.2f} +- {most:.2f}"]


def classified(name: str) -> list[object]:
    """A row of the second table: the noise is chosen on held-out digits, the accuracy is on other writers' digits."""
    data = load_digits()
    x = torch.cat((data.train_images[:FIT], data.test_images[:TEST])).reshape(-1, SIDE, SIDE)
    labels = torch.cat((data.train_labels[:FIT], data.test_labels[:TEST]))
    begin = time.perf_counter()
    k = kernel(CHECKED[name], x)
    seconds = time.perf_counter() - begin
    targets = torch.nn.functional.one_hot(labels, 10).double() - 0.1

    def accuracy(known: slice, asked: slice, noise: float) -> float:
        own = k[known, known] + noise * k.diagonal().mean() * torch.eye(known.stop, dtype=torch.float64)
        scores = k[asked, known] @ torch.linalg.solve(own, targets[known])
        return float((scores.argmax(1) == labels[asked]).double().mean())

    levels = [10.0**-p for p in range(1, 7)]
    best = max(levels, key=lambda noise: accuracy(slice(0, FIT - HELD), slice(FIT - HELD, FIT), noise))
    found = accuracy(slice(0, FIT), slice(FIT, FIT + TEST), best)
    return [name, best, f"{found:.3f} +- {math.sqrt(found * (1 - found) / TEST):.3f}", f"{seconds:.1f}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cells", nargs="*", choices=list(CHECKED), default=list(CHECKED))
    parser.add_argument("--widths", nargs="*", type=int, default=[WIDTH, 500])
    parser.add_argument("--networks", type=int, default=4000, help="of 1000 units")
    given = parser.parse_args()
    heading(f"The kernel on {SEQUENCES} digits of {SIDE} rows against random tied networks of N units")
    rows = []
    for width in given.widths:
        for name in given.cells:
            print(f"{name}, N = {width}", file=sys.stderr, flush=True)
            count = given.networks * WIDTH // width
            rows += [compared(name, readout, width, count, NETWORKS_FILE) for readout in READOUTS]
    errors = [f"{what}: {part}" for what in ("outputs", "units") for part in ("max |gap|/se", "se/K")]
    show(["cell", "readout", "N", "networks", *errors, "N * mean gap/K"], rows)
    print(f"Classifying digits: {FIT} known, {HELD} of them held out for the noise; {TEST} asked, of other hands")
    show(["cell", "noise", "accuracy", "seconds for K"], [classified(name) for name in given.cells])
    return 0


if __name__ == "__main__":
    sys.exit(main())
