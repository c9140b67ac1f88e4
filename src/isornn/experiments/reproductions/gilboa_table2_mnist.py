"""Digits pixel by pixel: the critical start against the standard one and h-detach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from isornn.experiments.reproductions import _by_seeds as by_seeds
from isornn.experiments.reproductions import _table2 as table
from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Panel
from isornn.tasks import load_digits

_LEAD = 0.3  # points, of critical over standard as printed
_BEYOND_CHANCE = 0.2  # of the digits, which are ten
_STANDARD = {"name": "gilboa-standard"}
_H_DETACH = "h-detach LSTM"
_ROWS: Mapping[str, table.Row] = {
    "standard LSTM": {"model": {"name": "lstm"}, "start": _STANDARD},
    _H_DETACH: {"model": {"name": "lstm", "h_detach": 0.25}, "start": _STANDARD},
    "standard peephole LSTM": {"model": {"name": "peephole"}, "start": {"name": "gilboa-peephole-standard"}},
    "critical peephole LSTM": {"model": {"name": "peephole"}, "start": {"name": "gilboa-peephole-critical"}},
}
_PUBLISHED = {"standard LSTM": 0.986, _H_DETACH: 0.988, "critical peephole LSTM": 0.989}


def measure(bench: Bench) -> Measured:
    """Test accuracy of each row."""
    settings = bench.settings
    task = {"name": "sequential_images", **{k: settings[k] for k in ("pooled", "block", "held_out") if k in settings}}
    scanned = table.rows_trained(bench, task, {name: row for name, row in _ROWS.items() if name != _H_DETACH})
    like_standard = {**settings, "rates": [scanned["standard LSTM"]["rate"]], "rungs": [settings["updates"]]}
    found = scanned | table.rows_trained(replace(bench, settings=like_standard), task, {_H_DETACH: _ROWS[_H_DETACH]})
    return {"rows": {name: found[name] for name in _ROWS}}


def judge(measured: Measured) -> Verdict:
    """Critical is not below the standard LSTM by as much as the paper has it above."""
    rows = measured["rows"]
    gap = by_seeds.difference(
        "test accuracy, points, critical peephole LSTM less standard LSTM",
        [100 * value for value in rows["critical peephole LSTM"]["test"]],
        [100 * value for value in rows["standard LSTM"]["test"]],
        f"{_LEAD:.1f}",
    )
    why = f"T = {rows['standard LSTM']['length']}: {', '.join(table.summary(name, row) for name, row in rows.items())}"
    learns = max(rows["critical peephole LSTM"]["test"]) > _BEYOND_CHANCE
    if not learns:
        why += ". The critical peephole LSTM has not left chance at any rate: what it comes to was not measured"
    parts = {"critical less standard above -0.3 points": by_seeds.above(gap, -_LEAD) if learns else None}
    return Verdict(by_seeds.answer_of(parts), why, (gap, *table.effects(rows, _PUBLISHED)))


def panels(measured: Measured) -> list[Panel]:
    """Each seed's test accuracy by model, and what was published."""
    rows = measured["rows"]
    places = {name: float(place) for place, name in enumerate(rows, 1)}
    curves = [
        Curve([places[name]] * len(row["test"]), row["test"], "", "points", colour=0) for name, row in rows.items()
    ]
    published = [*_PUBLISHED.values()]
    curves.append(Curve([places[name] for name in _PUBLISHED], published, "published, T = 784", "points", colour=1))
    names = [(place, name) for name, place in places.items()]
    return [Panel(f"T = {rows['standard LSTM']['length']}, each seed", "", "test accuracy", curves, names=names)]


def _data(folder: Path | None) -> str:
    return load_digits(folder, pooled=False).name


TARGET = Target(
    id="gilboa-table2-mnist",
    source="Gilboa et al. 2019, table 2, unrolled MNIST",
    claim="Pixel by pixel, the critical peephole LSTM is not worse than the standard LSTM.",
    published="98.6 % standard LSTM and 98.8 % h-detach (both after Arpit et al. 2018), 98.9 % critical",
    choices="Optimiser, batch, iterations and repeats are unsaid: Adam, gradient clipped at norm 1, the best of the "
    "rates stated by validation, for h-detach (probability 0.25) the standard LSTM's. Not worse: the 95 % interval "
    "of the difference is above -0.3 points, as far below as the paper prints it above. At scale small images are "
    "pooled to 7x7, 49 steps for 784; at scale medium to 14x14, 196 steps, where the worse half of each model's rates "
    "ends at a fifth and at half of the updates; rates are compared by two seeds, and three more run at the best. A "
    "critical peephole LSTM that is below 20 % with every seed has not begun to learn, and decides nothing: a rule "
    "made after the numbers were seen. The optimiser is not all of it: by SGD with momentum 0.9, as in the paper's "
    "other tasks, clipped alike, it was in a trial at scale medium at chance at rates of 0.0022 and above, at 59 % "
    "with one seed and at chance with another at 0.0014 (14,400 updates, training loss still falling; 2000), and below "
    "26 % at 0.0005 and 0.0002 (5000).",
    settings={
        "small": {
            "pooled": True,
            "held_out": 1000,
            "hidden": 32,
            "batch": 32,
            "updates": 2000,
            "validate_every": 500,
            "rates": [1e-3, 3e-3, 1e-2],
            "clip": 1.0,
            "seeds": 3,
        },
        "medium": {
            "pooled": True,
            "block": 2,
            "held_out": 1000,
            "hidden": 128,
            "batch": 64,
            "updates": 10_000,
            "rungs": [2000, 5000, 10_000],
            "validate_every": 500,
            "rates": [3e-4, 1e-3, 3e-3],
            "clip": 1.0,
            "seeds": 5,
            "scan_seeds": 2,
        },
        "paper": {
            "pooled": False,
            "held_out": 10_000,
            "hidden": 600,
            "batch": 128,
            "updates": 40_000,
            "validate_every": 1000,
            "rates": [3e-4, 1e-3],
            "clip": 1.0,
            "seeds": 3,
        },
    },
    measure=measure,
    judge=judge,
    panels=panels,
    data=_data,
    kind="training",
    untested={
        "small": "T = 49 is shorter than the critical start's xi of 74.5 steps, so that nothing here needs that start"
    },
)
