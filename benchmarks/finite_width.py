"""How far untied networks of N units are from the theory of infinitely many: the error falls like 1/sqrt(N).

    python benchmarks/finite_width.py [--networks 12]

For each spec and width the root mean square, over networks and steps, of Q(network, step) - Q(theory), and the slope of
its logarithm against ln N with a jackknife error over networks. Wanted: -1/2 within two errors. It takes five minutes
or so.
"""

from __future__ import annotations

import argparse
import math
import sys

import torch
from specs import CHECKED
from table import heading, show
from torch import Tensor

from isornn import Spec, analyze, simulate

WIDTHS = (128, 256, 512, 1024)
WARMUP, STEPS = 25, 25
CELLS = ("peephole", "gru_cho", "minimal", "lstm", "gru")


def deviations(spec: Spec, exact: float, networks: int) -> Tensor:
    """Mean squared deviation from the theory and mean deviation, by width and network: (2, widths, networks)."""
    found = []
    for width in WIDTHS:
        print(f"{spec.cell.name} {width}", file=sys.stderr, flush=True)
        values = []
        for seed in range(networks):
            run = simulate(
                spec,
                width=width,
                steps=STEPS,
                warmup=WARMUP,
                networks=1,
                tangents=1,
                generator=torch.Generator().manual_seed(1000 * width + seed),
            )
            values.append(run.second_moment.value - exact)
        table = torch.stack(values)
        found.append(torch.stack([table.square().mean(-1), table.mean(-1)]))
    return torch.stack(found, 1)


def slope(squares: Tensor) -> float:
    """Of ln(root mean square over networks) against ln N."""
    y = squares.mean(-1).log() / 2
    x = torch.tensor(WIDTHS, dtype=torch.float64).log()
    x = x - x.mean()
    return float((x * y).sum() / (x * x).sum())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--networks", type=int, default=12)
    networks = parser.parse_args().networks
    heading("Untied networks of N units against the theory: root mean square error of Q")
    rows, good = [], True
    for name in CELLS:
        spec = CHECKED[name]
        second = analyze(spec, length=1).fixed_point.second_moment
        exact, error = second.number(), second.error()
        assert exact is not None and error is not None
        squares, means = deviations(spec, exact, networks)
        fitted = slope(squares)
        left_out = [slope(torch.cat([squares[:, :j], squares[:, j + 1 :]], 1)) for j in range(networks)]
        centre = sum(left_out) / networks
        uncertain = math.sqrt((networks - 1) / networks * sum((s - centre) ** 2 for s in left_out))
        good &= abs(fitted + 0.5) <= 2 * uncertain
        widest = means[-1]
        bias = float(widest.mean()) / exact
        noise = float(widest.std()) / math.sqrt(networks) / exact
        errors = [float(e) for e in squares.mean(-1).sqrt()]
        rows.append([name, exact, *errors, f"{fitted:.3f} +- {uncertain:.3f}", f"{bias:+.4f} +- {noise:.4f}"])
    columns = ("spec", "Q", *(f"N = {n}" for n in WIDTHS), "slope", f"bias at {WIDTHS[-1]} / Q")
    show(columns, rows)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
