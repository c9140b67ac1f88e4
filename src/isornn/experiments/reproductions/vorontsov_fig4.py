"""Soft orthogonality constraints on a plain network: how soon the copy task is learned, by strength."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from isornn.experiments.panels import Curve, Mark, Panel
from isornn.experiments.runs import train_all
from isornn.experiments.target import Answer, Bench, Measured, Target, Verdict
from isornn.training.metrics import read_metrics

_LEARNED = 0.5  # of the baseline's loss


def measure(bench: Bench) -> Measured:
    """Training losses over the updates, of every strength and seed."""
    settings = bench.settings
    seeds = range(1000 * bench.seed, 1000 * bench.seed + settings["seeds"])
    runs = train_all(bench, [_run(bench, strength, seed) for strength in settings["strengths"] for seed in seeds])
    curves = [[row["training"]["loss"] for row in read_metrics(bench.folder / one.configuration.hash)] for one in runs]
    each = settings["seeds"]
    return {
        "strengths": list(settings["strengths"]),
        "every": settings["validate_every"],
        "baseline": runs[0].baseline,
        "losses": [curves[each * k : each * (k + 1)] for k in range(len(settings["strengths"]))],
        "diverged": [one.diverged for one in runs],
    }


def _run(bench: Bench, strength: float, seed: int) -> dict[str, Any]:
    settings = bench.settings
    fields = {
        "task": {"name": "copy", "length": settings["length"], "held_out": 100},
        "model": {"name": "vanilla", "hidden": settings["hidden"], "nonlinearity": "identity"},
        "start": {"name": "orthogonal"},
        "optimiser": {"name": "rmsprop", "rate": settings["rate"]},
        "updates": settings["updates"],
        "batch_size": 50,
        "validate_every": settings["validate_every"],
        "clip": 1.0,
        "seed": seed,
    }
    return {**fields, "penalty": {"name": "orthogonality", "strength": strength}} if strength else fields


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def judge(measured: Measured) -> Verdict:
    """The mean loss over all updates grows with the strength, all seeds apart; some run must have learned."""
    over = [[_mean(curve) for curve in each] for each in measured["losses"]]
    last = [[curve[-1] for curve in each] for each in measured["losses"]]
    learned = min(map(min, last)) < _LEARNED * measured["baseline"]
    means = [_mean(each) for each in over]
    apart = all(max(a) < min(b) for a, b in pairwise(over))
    rising = all(a < b for a, b in pairwise(means))
    answer: Answer = "cannot tell"
    if learned:
        answer = "holds" if apart else "cannot tell" if rising else "does not hold"
    told = "; ".join(
        f"{strength:g}: {_mean(a):.3f} ({min(a):.3f} to {max(a):.3f}), at the end {_mean(b):.3f}"
        for strength, a, b in zip(measured["strengths"], over, last, strict=True)
    )
    return Verdict(
        answer,
        f"training loss, mean over all updates and range over seeds, by strength: {told}; without memory "
        f"{measured['baseline']:.3f}; {sum(d is not None for d in measured['diverged'])} runs not finite",
    )


def panels(measured: Measured) -> list[Panel]:
    """Training loss over the updates, mean over seeds."""
    curves = []
    for strength, each in zip(measured["strengths"], measured["losses"], strict=True):
        columns = [list(column) for column in zip(*each, strict=False)]
        updates = [measured["every"] * (k + 1) for k in range(len(columns))]
        half = [(max(column) - min(column)) / 2 for column in columns]
        curves.append(Curve(updates, [_mean(c) for c in columns], f"{strength:g}, half the range", error=half))
    marks = [Mark("y", measured["baseline"], "without memory")]
    return [Panel("copy task, soft constraint", "update", "training loss", curves, marks=marks)]


TARGET = Target(
    id="vorontsov-fig4",
    source="Vorontsov et al. 2017, figure 4 (first panel)",
    claim="The weaker the soft constraint lambda ||W^T W - I||^2 on a plain network, the sooner it learns copying.",
    published="no numbers; curves, copy T = 200, rate 1e-5",
    choices="Strengths are unsaid. Rate larger than the paper's, for fewer updates; no transition nonlinearity, "
    "orthogonal start, clip 1. The other panels, soft constraints and priors on factorised networks, are left out. "
    "Sooner: a lower mean training loss over all updates; if all seeds' are apart it holds, and if no run comes below "
    "half of the loss without memory one cannot tell.",
    settings={
        "small": {
            "length": 30,
            "hidden": 64,
            "updates": 300,
            "validate_every": 25,
            "seeds": 3,
            "strengths": [0.0, 0.01, 1.0],
            "rate": 1e-3,
        },
        "paper": {
            "length": 200,
            "hidden": 128,
            "updates": 100_000,
            "validate_every": 500,
            "seeds": 3,
            "strengths": [0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0],
            "rate": 1e-5,
        },
    },
    measure=measure,
    judge=judge,
    panels=panels,
)
