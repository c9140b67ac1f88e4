"""Tied weights: the theory's trajectories and growth against networks with one draw of weights for all steps.

    python benchmarks/tied.py [--cells lstm gru] [--specs 5] [--networks 32]

For each spec, at every step, Q of the theory against the mean of the networks', and the growth of |dh| per step over
the second half of the steps. Wanted: within 3 % or 3 standard errors of the networks' mean (2 % for the growth), the
theory's own standard error at most 1 % of Q. What networks gave is kept in ``results/tied_networks.json``, so an
interrupted run goes on where it was; without that file all of them take some two hours.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from specs import several
from table import RESULTS

from isornn import Spec, simulate
from isornn.cells import CELLS
from isornn.files import replacing

WIDTH, STEPS, TANGENTS = 1000, 60, 4
NETWORKS_FILE = RESULTS / "tied_networks.json"


def networks_of(spec: Spec, count: int, file: Path) -> dict[str, Any]:
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
            generator=torch.Generator().manual_seed(1),
        )
        known[key] = {
            name: [getattr(run, name).value.tolist(), getattr(run, name).stderr.tolist()]
            for name in ("mean", "second_moment", "correlation", "response", "chi_1")
        }
        with replacing(file) as new:
            new.write_text(json.dumps(known, indent=0))
    return known[key]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--networks", type=int, default=32)
    parser.add_argument("--specs", type=int, default=5)
    parser.add_argument("--cells", nargs="*", choices=list(CELLS), default=list(CELLS))
    given = parser.parse_args()
    for cell in given.cells:
        for place, spec in enumerate(several(cell, given.specs)):
            print(f"{cell} {place}", file=sys.stderr, flush=True)
            networks_of(spec, given.networks, NETWORKS_FILE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
