"""The copy task by several networks, and whether each learns it sooner than the last: figures 1 and 4, section 5.2.

Left unsaid in the paper: whether its accuracies are of all steps or of the last ten. Here it is the held-out loss over
that of an answer without memory, and a network has learned to copy when that is below `LEARNED`, some 97 % of letters.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Mapping, Sequence
from itertools import accumulate
from typing import Any

from isornn.experiments.reproductions import _by_seeds as by_seeds
from isornn.experiments.reproductions._followed import DECAY
from isornn.experiments.runs import train_all, train_by_quarters
from isornn.experiments.target import Bench, Effect
from isornn.figures import Curve, Mark, Panel
from isornn.tasks.copying import COPIED, LETTERS
from isornn.training import RunRecord
from isornn.training.metrics import read_metrics

LEARNED = 0.1  # of the loss without memory
SIGNIFICANCE = 0.05  # level of tests over seeds
# As in this library's copy benchmark.
RATES = {"name": "geodesic", "rate": 1e-3, "geodesic_rate": 1e-2, "spectrum_rate": 1.0, "rest": "rmsprop"}
SMALL = {"hidden": 128, "held_out": 100, "validate_every": 25, "clip": 1.0}
MEDIUM = {"hidden": 128, "held_out": 100, "validate_every": 25, "clip": 1.0, "penalty": DECAY}
PAPER = {"hidden": 128, "held_out": 1000, "validate_every": 500, "clip": 100.0, "penalty": DECAY}

Row = Mapping[str, Any]
"""Of a network: ``losses`` of each seed ``every`` so many updates, and why it ``diverged``, if it did."""


def configuration(bench: Bench, length: int, updates: int, **fields: Any) -> dict[str, Any]:
    """Of a run on copy(length), but for its seed, with ``model``, ``optimiser`` and what else there is."""
    settings = bench.settings
    model = {"hidden": settings["hidden"], **fields.pop("model")}
    decay = {"penalty": settings["penalty"]} if "penalty" in settings else {}
    return {
        "task": {"name": "copy", "length": length, "held_out": settings["held_out"]},
        "model": model,
        "updates": updates,
        "batch_size": 50,
        "validate_every": settings["validate_every"],
        "clip": settings["clip"],
        **decay,
        **fields,
    }


def trained(
    bench: Bench, networks: Mapping[str, Mapping[str, Any]], *, to_the_end: Container[str] = ()
) -> dict[str, list[RunRecord]]:
    """The records of every network's seeds, by its name.

    With the settings' ``stop_learned`` a run ends at the first quarter of its updates by which it has learned, but for
    those of the networks ``to_the_end``.
    """
    seeds = range(1000 * bench.seed, 1000 * bench.seed + bench.settings["seeds"])
    places = [(name, seed) for name in networks for seed in seeds]
    planned = [{**networks[name], "seed": seed} for name, seed in places]

    def ended(number: int, run: RunRecord) -> bool:
        return places[number][0] not in to_the_end and _ended(run)

    stopping = bench.settings.get("stop_learned")
    trained = train_by_quarters(bench, planned, ended) if stopping else train_all(bench, planned)
    runs = dict(zip(places, trained, strict=True))
    return {name: [runs[name, seed] for seed in seeds] for name in networks}


def _ended(run: RunRecord) -> bool:
    """Whether it has learned by its best validation, or can learn no more."""
    if run.diverged is not None:
        return True
    assert run.baseline is not None
    return run.best is not None and run.best["loss"] < LEARNED * run.baseline


def row(bench: Bench, runs: Sequence[RunRecord]) -> Row:
    """The held-out loss of every seed at every validation, over the loss without memory."""
    curves, accuracies = [], []
    for run in runs:
        assert run.baseline is not None
        rows = read_metrics(bench.folder / run.configuration.hash)
        curves.append([round(one["validation"]["loss"] / run.baseline, 6) for one in rows])
        accuracies.append([round(one["validation"]["accuracy"], 6) for one in rows])
    every = runs[0].configuration.validate_every
    ended = [run.diverged for run in runs]
    return {"every": every, "losses": curves, "accuracies": accuracies, "diverged": ended}


def learned_at(row: Row) -> list[float]:
    """Of each seed the update at which it had learned to copy; infinite where it never had."""
    found = []
    for curve in row["losses"]:
        below = (row["every"] * k for k, loss in enumerate(curve, 1) if loss < LEARNED)
        found.append(next(below, math.inf))
    return found


def sooner(rows: Sequence[Row]) -> bool | None:
    """Whether rows learn the sooner the later they stand, by Kendall's tau over all runs; false the other way round.

    ``None``: chance would give as much of an order with a probability above 0.05.
    """
    from scipy.stats import kendalltau  # half a second to import

    pairs = [(place, update) for place, one in enumerate(rows) for update in learned_at(one)]
    if len({update for _, update in pairs}) == 1:
        return None
    tau, chance = kendalltau(*zip(*pairs, strict=True))
    return bool(tau < 0) if chance < SIGNIFICANCE else None


def median_range(row: Row) -> str:
    """The median update, and the range over seeds."""
    updates = learned_at(row)
    middle = statistics.median_low(updates)
    low, high = ("never" if math.isinf(update) else f"{update:.0f}" for update in (min(updates), max(updates)))
    return low if low == high else f"{'never' if math.isinf(middle) else f'{middle:.0f}'} ({low} to {high})"


def effects(title: str, rows: Mapping[str, Row], published: str = "") -> list[Effect]:
    """Of each row, the update at which it is learned; no number where a seed never does."""
    return [
        by_seeds.effect(f"{title}{name}: update at which it is learned", learned_at(one), published)
        for name, one in rows.items()
    ]


def panel(title: str, rows: Mapping[str, Row], length: int | None, *, best: bool = True) -> Panel:
    """Every seed's best accuracy so far over the updates, a colour for each row; the loss of earlier records. With
    ``best`` false the first seed's accuracy as it is, where the question is what is lost again.

    What is learned lies between the accuracy without memory and 1, as nearly all steps are blanks; the axis begins a
    little below. Earlier records have no length.
    """
    part = "accuracies" if all("accuracies" in one for one in rows.values()) else "losses"
    curves = []
    for colour, (name, one) in enumerate(rows.items()):
        for number, values in enumerate(one[part] if best else one[part][:1]):
            updates = [one["every"] * k for k in range(1, len(values) + 1)]
            shown = list(accumulate(values, max)) if best and part == "accuracies" else values
            curves.append(Curve(updates, shown, "" if number else name, colour=colour))
    if part == "losses":
        marks = [Mark("y", 1.0, "without memory"), Mark("y", LEARNED, "learned")]
        return Panel(title, "update", "held-out loss over that without memory", curves, marks=marks, log=("y",))
    label = "best held-out accuracy so far, all steps" if best else "held-out accuracy, all steps, first seed"
    if length is None:
        return Panel(title, "update", label, curves)
    missed = COPIED * (1 - 1 / LETTERS) / (length + 2 * COPIED)
    marks = [Mark("y", 1 - missed, "without memory")]
    return Panel(title, "update", label, curves, marks=marks, y_range=(1 - 1.2 * missed, 1 + 0.05 * missed))
