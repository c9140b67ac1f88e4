"""Tied weights: the theory's trajectories and growth against networks with one draw of weights for all steps.

    python benchmarks/tied.py [--cells lstm gru] [--specs 5] [--networks 32]

For each spec, at every step, E[h^2] of the theory against the mean of the networks', and the growth of |dh| per step
over the second half of the steps; for specs with weights of variance 1 and more and biases that are all alike also the
leading exponent by QR over the same steps. Wanted: within 3 % (growth: 2 %) or 3 standard errors of the networks' mean,
and the theory's own standard error of E[h^2] at most 1 %. Sixty steps of some fifty specs are 3000 comparisons, of
which a few lie beyond 3 standard errors by chance: where one does, four times as many further networks decide.

Among the specs is one whose state grows without bound (peephole, the first). What networks gave is kept in
``results/tied_networks.json``, so an interrupted run goes on where it was; without that file all of them take most of
an hour.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from specs import STRONG, several
from table import RESULTS, heading, show
from torch import Tensor

from isornn import Spec, analyze, simulate
from isornn.cells import CELLS
from isornn.files import replacing
from isornn.nn.random_network import RandomNetwork
from isornn.theory.records import Tied

WIDTH, STEPS, TANGENTS, VECTORS = 1000, 60, 4, 4
NETWORKS_FILE = RESULTS / "tied_networks.json"
Pair = tuple[float, float]


def networks_of(spec: Spec, count: int, seed: int, file: Path) -> dict[str, Any]:
    """What ``count`` tied networks of the spec gave: from ``file`` where it knows, else simulated and added to it."""
    known = json.loads(file.read_text()) if file.exists() else {}
    key = f"{count} x {WIDTH}: {json.dumps(spec.to_json())}"
    if key not in known:
        run = simulate(
            spec,
            width=WIDTH,
            steps=STEPS,
            networks=count,
            tied=True,
            tangents=TANGENTS,
            generator=torch.Generator().manual_seed(seed),
        )
        known[key] = {
            name: [getattr(run, name).value.tolist(), getattr(run, name).stderr.tolist()]
            for name in ("second_moment", "chi_1")
        }
        if spec in STRONG.values():
            known[key]["qr"] = leading_exponent(spec, count)
        with replacing(file) as new:
            new.write_text(json.dumps(known, indent=0))
    return known[key]


def leading_exponent(spec: Spec, count: int) -> Pair:
    """The largest Lyapunov exponent over the second half of the steps, by QR, and its standard error over networks."""
    generator = torch.Generator().manual_seed(2)
    found = torch.tensor([_leading(spec, generator) for _ in range(count)])
    return float(found.mean()), float(found.std()) / math.sqrt(count)


def _leading(spec: Spec, generator: torch.Generator) -> float:
    network = RandomNetwork.drawn(spec, WIDTH, WIDTH, generator)
    states = tuple(torch.zeros(WIDTH, dtype=torch.float64) for _ in spec.cell.states)
    size = WIDTH * len(states)
    vectors = torch.linalg.qr(torch.randn(size, VECTORS, dtype=torch.float64, generator=generator)).Q
    grown, before = 0.0, None
    for t in range(STEPS):
        x = math.sqrt(float(spec.input.variance)) * torch.randn(WIDTH, dtype=torch.float64, generator=generator)
        advance = network.advance(x, x if before is None else before)
        states, vectors = _pushed(advance, states, vectors)
        vectors, upper = torch.linalg.qr(vectors)
        if t >= STEPS // 2:
            grown += float(upper[0, 0].abs().log())
        before = x
    return grown / (STEPS - STEPS // 2)


def _pushed(advance: Any, states: tuple[Tensor, ...], vectors: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    def push(vector: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        new, moved = torch.func.jvp(advance, states, vector.split(WIDTH))
        return new, torch.cat(moved)

    new, moved = torch.vmap(push, in_dims=1, out_dims=(None, 1))(vectors)
    return new, moved


def row(name: str, spec: Spec, count: int) -> tuple[list[object], bool]:
    begun = time.perf_counter()
    tied = analyze(spec, tied=True, steps=STEPS).tied
    seconds = time.perf_counter() - begun
    assert tied is not None
    line, good = against(tied, networks_of(spec, count, 1, NETWORKS_FILE))
    if not good:
        line, good = against(tied, networks_of(spec, 4 * count, 2, NETWORKS_FILE))
        name += ", again"
    certain = float((tied.second_moment.stderr / tied.second_moment.value).max())
    return [name, *line, f"{100 * certain:.2f} %", seconds], good and certain <= 0.01


def against(tied: Tied, measured: dict[str, Any]) -> tuple[list[object], bool]:
    """How far the theory is from what networks gave, as shown, and whether that is near enough."""
    off, sigmas, at, moments_good = worst_moment(tied, measured)
    chi, error = measured["chi_1"]
    growth, growth_good = compared(tied, (math.log(chi) / 2, error / chi / 2))
    qr, qr_good = compared(tied, measured["qr"]) if "qr" in measured else ("", True)
    line = [f"{100 * off:.1f} %", sigmas, at, own(tied), growth, qr]
    return line, moments_good and growth_good and qr_good


def worst_moment(tied: Tied, measured: dict[str, Any]) -> tuple[float, float, int, bool]:
    """How far E[h^2] is off where it is worst, relative and in standard errors; the step; and whether all are good."""
    value, error = (torch.tensor(numbers, dtype=torch.float64) for numbers in measured["second_moment"])
    gap = (tied.second_moment.value - value).abs()
    off, sigmas = gap / value, gap / error
    badness = torch.minimum(off / 0.03, sigmas / 3)
    at = int(badness.argmax())
    return float(off[at]), float(sigmas[at]), at + 1, bool((badness <= 1).all())


def compared(tied: Tied, measured: Pair) -> tuple[str, bool]:
    """What networks gave, and whether the theory's exponent is within 2 % of it or 3 standard errors of both."""
    value, error = measured
    mine, mine_error = tied.lyapunov.number(), tied.lyapunov.error()
    assert mine is not None and mine_error is not None
    gap = abs(mine - value)
    return f"{value:.4f} +- {error:.4f}", gap <= 0.02 * abs(value) or gap <= 3 * math.hypot(error, mine_error)


def own(tied: Tied) -> str:
    number = tied.lyapunov
    return f"{number.number():.4f} +- {number.error():.4f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--networks", type=int, default=32)
    parser.add_argument("--specs", type=int, default=5)
    parser.add_argument("--cells", nargs="*", choices=list(CELLS), default=list(CELLS))
    given = parser.parse_args()
    heading(f"Tied weights: the theory against {given.networks} networks of N = {WIDTH} over {STEPS} steps")
    rows, good = [], True
    for cell in given.cells:
        named = [(f"{cell} {place}", spec) for place, spec in enumerate(several(cell, given.specs))]
        for name, spec in named + [(f"{cell} strong", spec) for kind, spec in STRONG.items() if kind == cell]:
            print(name, file=sys.stderr, flush=True)
            line, fine = row(name, spec, given.networks)
            rows.append([*line, "" if fine else "no"])
            good &= fine
    columns = ("spec", "off", "in errors", "at step", "growth", "networks'", "by QR", "own error", "seconds", "within")
    show(columns, rows)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
