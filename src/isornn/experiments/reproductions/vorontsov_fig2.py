"""How the gradient travels back through the steps while a factorised network trains, by margin."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any

from torch import Tensor
from torch.nn import functional

from isornn.experiments.reproductions._followed import PAPER_RATES, RATES, followed
from isornn.experiments.target import Answer, Bench, Measured, Target, Verdict
from isornn.figures import Curve, HeatMap, Panel
from isornn.tasks import Copy, one_pass
from isornn.training import SequenceModel

_FLAT = 1e-4
_MARGINS: dict[str, float | None] = {"0": 0.0, ".001": 0.001, ".01": 0.01, ".1": 0.1, "1": 1.0, "none": None}


def measure(bench: Bench) -> Measured:
    """ln |d(loss of the last step)/dh_t| over t, every so many updates; mean 0 over t. A table for each seed."""
    settings = bench.settings
    task = Copy(settings["length"])
    (probe,) = one_pass(Copy(settings["length"], size=settings["probe"], seed=1), settings["probe"])
    fields = {"name": "copy", "length": settings["length"]}
    found: dict[str, Any] = {}
    for number, (name, margin) in enumerate(_MARGINS.items()):
        found[name] = []
        for seed in range(settings["seeds"]):
            bench.progress(f"margin {name}", number * settings["seeds"] + seed, len(_MARGINS) * settings["seeds"])
            options = {"margin": margin, "nonlinearity": "identity"}
            found[name].append(followed(bench, task, fields, seed, partial(_norms, probe), **options))
    return {"every": settings["every"], "margins": found}


def _norms(probe: tuple[Tensor, ...], model: SequenceModel) -> list[float]:
    """ln |d(loss)/dh_t|, mean 0 over t; by one step a call, so that each state is at hand."""
    x, y = probe
    state, states = None, []
    for step in model.encoder(x):
        state, _ = model.recurrent(step.unsqueeze(0), state)  # the output is the state
        state.retain_grad()
        states.append(state)
    functional.cross_entropy(model.readout(states[-1][0]), y[-1]).backward()
    model.zero_grad()
    norms = [math.log(float(state.grad.norm())) for state in states]
    mean = sum(norms) / len(norms)
    return [round(norm - mean, 9) for norm in norms]


def _spread(row: list[float]) -> float:
    """Standard deviation over t of the logarithm."""
    return math.sqrt(sum(v * v for v in row) / len(row))


def _later(rows: list[list[float]]) -> float:
    """Mean spread over the second half of training."""
    half = [_spread(row) for row in rows[len(rows) // 2 :]]
    return sum(half) / len(half)


def judge(measured: Measured) -> Verdict:
    """m = 0 keeps the norm; what the others lose grows with the margin."""
    margins = measured["margins"]
    zero = max(_spread(row) for rows in margins["0"] for row in rows)
    later = {name: [_later(rows) for rows in each] for name, each in margins.items()}
    means = {name: sum(values) / len(values) for name, values in later.items()}
    grows = all(means[a] < means[b] for a, b in pairwise(means))
    apart = all(max(later[a]) < min(later[b]) for a, b in pairwise(later))
    answer: Answer = "does not hold" if zero > _FLAT or not grows else "holds" if apart else "cannot tell"
    details = ", ".join(
        f"{name}: {means[name]:.2g} ({min(each):.2g} to {max(each):.2g})" for name, each in later.items()
    )
    seeds = len(margins["0"])
    return Verdict(
        answer,
        f"spread over t of ln |gradient|, mean over the second half of training and range over {seeds} seeds, by "
        f"margin: {details}; with margin 0 at most {zero:.1e} at any time (bar {_FLAT})",
    )


def panels(measured: Measured) -> list[Panel]:
    """The first seed's maps, as in the paper, and the spread over training of all."""
    every, found, curves = measured["every"], [], []
    for colour, (name, seeds) in enumerate(measured["margins"].items()):
        for number, rows in enumerate(seeds):
            updates = [every * k for k in range(len(rows))]
            spreads = [max(_spread(row), 1e-8) for row in rows]
            curves.append(Curve(updates, spreads, "" if number else name, colour=colour))
        rows = seeds[0]
        steps = list(range(1, len(rows[0]) + 1))
        columns = [list(column) for column in zip(*rows, strict=True)]
        heat = HeatMap([every * k for k in range(len(rows))], steps, columns, "ln |gradient|, mean 0")
        found.append(Panel(f"margin {name}", "update", "step t", heat=heat))
    return [*found, Panel("spread over t, all seeds", "update", "std of ln |gradient|", curves, log=("y",))]


TARGET = Target(
    id="vorontsov-fig2",
    source="Vorontsov et al. 2017, figure 2",
    claim="While the copy task is learned without a transition nonlinearity, the gradient's norm is the same at all "
    "steps with margin 0, and differs the more the wider the margin is.",
    published="no numbers; maps over 1000 updates, copy T = 200, 128 units",
    choices="Norms are taken on one held-out batch. With the paper's rates (bases 1e-6, the rest 1e-4) little moves in "
    "so few updates: bases 0.01, spectrum 1 (over 2m), the rest 0.001, clip 1, as in this library's copy benchmark.",
    settings={
        "small": {
            "length": 30,
            "units": 64,
            "updates": 200,
            "every": 10,
            "seeds": 2,
            "probe": 50,
            "rates": RATES,
        },
        "paper": {
            "length": 200,
            "units": 128,
            "updates": 1000,
            "every": 10,
            "seeds": 1,
            "probe": 50,
            "rates": PAPER_RATES,
        },
    },
    measure=measure,
    judge=judge,
    panels=panels,
)
