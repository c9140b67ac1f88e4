"""The ranges of supplement F, compared with those of the sweep file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Panel
from isornn.training.sweep import load_sweep, named_by_hash

_EPOCHS = 13
_RANGES = {
    "rate": {0.1, 0.2, 0.3, 0.5, 1, 2},
    "max_epoch": {4, 7, 11},
    "decay": {0.5, 0.65, 0.8},
    "dropout": {0.0, 0.2, 0.3, 0.5},
}


def measure(bench: Bench) -> Measured:
    """Every run of the file, each checked by what a run is read by; rates are of the loss summed over the steps."""
    plan = load_sweep(Path(bench.settings["file"]))
    points = [
        {
            "rate": round(run["optimiser"]["rate"] / run["task"]["unroll"], 6),
            "max_epoch": _EPOCHS - len(run["schedule"]["at"]),
            "decay": run["schedule"]["factor"],
            "dropout": run["model"]["dropout"],
        }
        for run in plan
    ]
    return {"points": points, "different": len(named_by_hash(plan))}


def judge(measured: Measured) -> Verdict:
    """216 different runs with the published values of each range."""
    points = measured["points"]
    ranges = all({point[name] for point in points} == values for name, values in _RANGES.items())
    different = len({tuple(point.values()) for point in points})
    holds = ranges and len(points) == different == measured["different"] == 216
    why = f"{len(points)} runs, {different} different; the ranges are {'those' if ranges else 'not those'} published"
    return Verdict("holds" if holds else "does not hold", why)


def panels(measured: Measured) -> list[Panel]:
    """How many runs each rate and decay has."""
    found = []
    for name in ("rate", "decay"):
        counts = Counter(point[name] for point in measured["points"])
        found.append(
            Panel("grid F", name, "runs", [Curve(sorted(counts), [counts[v] for v in sorted(counts)], "", "points")])
        )
    return found


TARGET = Target(
    id="chensupp-hyper",
    source="Chen, Pennington & Schoenholz 2018, supplement F",
    claim="The package's sweep file has the search grid of all models: six rates, three max-epochs, three decays, four "
    "dropouts.",
    published="the ranges: 216 points",
    choices="Task and optimiser are unsaid; word-level Penn Treebank by SGD, as the file says. It is read, not run: "
    "chensupp-words trains a subset.",
    settings={"small": {"file": "sweeps/chen-supplement-f.toml"}},
    measure=measure,
    judge=judge,
    panels=panels,
    kind="file",
)
