"""Figures 2 and 3 of Vorontsov et al. 2017, recorded by a Monitor in training: how far gradients come back, by margin.

    python benchmarks/watching_copy.py [--updates 300] [--every 10] [--seed 0]

Copy task at T = 50, 70 steps in all; 64 units without a nonlinearity; batches of 50; bases by geodesic steps at 0.01,
spectra by SGD at 1/(2m), without a margin at 1, the rest by RMSprop at 0.001; the gradient's norm clipped at 1. Draws
docs/watching_gradients.png and docs/watching_singular_values.png, and checks what the paper says of figure 2: with
m = 0 the norm of dL_T/dh_t is the same at every t (wanted: its spread, largest less smallest over largest, below 1e-4
at every iteration), and the larger m, the less it is kept (on the mean over iterations of ln(largest/smallest)).
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from table import claim, heading, show

from isornn.diagnosis import Monitor, TrainingRecord
from isornn.nn import SpectralRNN, spectral
from isornn.optim import GeodesicSGD
from isornn.present import draw_gradients, draw_singular_values
from isornn.tasks import Copy, loader
from isornn.training import SequenceModel, State, train

LENGTH, UNITS, BATCH = 50, 64, 50
MARGINS = (0.0, 0.01, 0.1, 1.0, None)
DOCS = Path(__file__).parents[1] / "docs"
FLAT = 1e-4


def watched(margin: float | None, updates: int, every: int, seed: int) -> tuple[TrainingRecord, float]:
    """What a monitor saw of one run, and the last loss."""
    torch.manual_seed(seed)
    task, draw = Copy(LENGTH), torch.Generator().manual_seed(seed)
    layer = SpectralRNN(Copy.inputs, UNITS, margin=margin, nonlinearity="identity", generator=draw)
    model = SequenceModel.of(task, layer)
    optimizer = GeodesicSGD(
        spectral.groups(model), lr=1.0, geodesic_lr=1e-2, rest=lambda rest: torch.optim.RMSprop(rest, lr=1e-3)
    )
    state = State(model, optimizer)
    with Monitor(model, every) as monitor:
        train(state, iter(loader(task, BATCH, seed)), updates, clip=1.0, on_update=[monitor])
    return monitor.record, state.loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    heading(f"Copy({LENGTH}), {UNITS} linear units, {options.updates} updates, seed {options.seed}: spread over t")
    records, kept, rows = {}, [], []
    for margin in MARGINS:
        record, loss = watched(margin, options.updates, options.every, options.seed)
        title = "no margin" if margin is None else f"m = {margin:g}"
        records[title] = record
        (layer,) = record.layers
        ranges = np.ptp(layer.last["h"], axis=1)
        kept.append(float(ranges.mean()))
        s = layer.singular_values["h"][-1]
        rows.append((title, *(float(-np.expm1(-r)) for r in (ranges[0], ranges.max())), kept[-1], s[2], s[3], loss))
    show(("margin", "spread at first", "largest", "mean ln ratio", "last s min", "s max", "loss"), rows)
    claim(f"m = 0: the norm of dL_T/dh_t is the same at every t to {FLAT:g}", rows[0][2] < FLAT)
    claim("the larger m, the less the norm is kept", all(a < b for a, b in pairwise(kept)))
    draw_gradients(records, DOCS / "watching_gradients.png")
    draw_singular_values(records, DOCS / "watching_singular_values.png")


if __name__ == "__main__":
    main()
