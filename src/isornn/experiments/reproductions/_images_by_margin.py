"""Tables 1 and 2: digits pixel by pixel, by the margin of the recurrent matrix and by its start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isornn.experiments.panels import Curve, Panel
from isornn.experiments.runs import train_all
from isornn.experiments.target import Answer, Bench, Measured, Verdict
from isornn.tasks import load_digits
from isornn.training import RunRecord
from isornn.training.metrics import read_metrics

_LSTM = "LSTM"
ROWS: Mapping[str, Mapping[str, Any]] = {
    "m = 0": {"margin": 0.0},
    "m = .1": {"margin": 0.1},
    "m = 1": {"margin": 1.0},
    "none": {},
    "none, Glorot": {"start": "glorot"},
    "none, identity": {"start": "identity"},
}
CHOICES = (
    "MNIST pooled to 7x7 or the package's digits, 64 units, tanh, batches of 50. Margins .001 and .01 are left out. "
    "With the paper's rates little moves in so few updates, so they are those of this library's copy task, not tuned: "
    "bases 0.01, spectrum 1 (SGD, over 2m), the rest 0.001 (RMSprop), clip 1. At one rate the spectrum of 'none' "
    "starts 8/m times as fast as with a margin. The LSTM has peepholes, forget bias 1 and orthogonal blocks, RMSprop "
    "0.001. Test accuracy at the best validation loss. One row is above another if all its seeds are."
)


def data_name(folder: Path | None) -> str:
    """MNIST is pooled here."""
    return load_digits(folder).name


def measure(bench: Bench, permutation: int | None) -> Measured:
    """Test accuracy of every seed, and the curves of the training loss."""
    seeds = range(bench.settings["seeds"])
    names = [*ROWS, _LSTM]
    runs = iter(train_all(bench, [_configuration(bench, name, permutation, seed) for name in names for seed in seeds]))
    rows = {name: [next(runs) for _ in seeds] for name in names}
    return {
        "rows": {
            name: {
                "accuracy": [None if run.test is None else run.test["accuracy"] for run in each],
                "diverged": [run.diverged for run in each],
                "loss": [_losses(bench, run) for run in each],
            }
            for name, each in rows.items()
        },
        "every": bench.settings["validate_every"],
    }


def _configuration(bench: Bench, name: str, permutation: int | None, seed: int) -> dict[str, Any]:
    settings = bench.settings
    task = {"name": "sequential_images", "pooled": True}
    if permutation is not None:
        task["permutation"] = permutation
    rmsprop = {"name": "rmsprop", "rate": settings["rate"]}
    geodesic = {
        "name": "geodesic",
        "rate": settings["rate"],
        "geodesic_rate": settings["geodesic_rate"],
        "spectrum_rate": settings["spectrum_rate"],
        "rest": "rmsprop",
    }
    lstm = name == _LSTM
    return {
        "task": task,
        "model": {"name": "lstm_gers" if lstm else "spectral", "hidden": settings["hidden"], **ROWS.get(name, {})},
        "start": {"name": "standard" if lstm else "torch"},
        "optimiser": rmsprop if lstm else geodesic,
        "updates": settings["updates"],
        "batch_size": 50,
        "validate_every": settings["validate_every"],
        "clip": 1.0,
        "seed": 1000 * bench.seed + seed,
    }


def _losses(bench: Bench, run: RunRecord) -> list[float]:
    rows = read_metrics(bench.folder / run.configuration.hash)
    return [row["training"]["loss"] for row in rows]


def judge(measured: Measured) -> Verdict:
    """m = 0 below the wider margins, the best of these with a margin; identity and Glorot below orthogonal starts."""
    rows = {name: [a or 0.0 for a in row["accuracy"]] for name, row in measured["rows"].items()}
    bounded = max((name for name in ROWS if name.startswith("m")), key=lambda name: _mean(rows[name]))
    parts = {
        "m = 0 below m = .1": _below(rows["m = 0"], rows["m = .1"]),
        "m = 0 below m = 1": _below(rows["m = 0"], rows["m = 1"]),
        "Glorot below orthogonal": _below(rows["none, Glorot"], rows["none"]),
        "identity below orthogonal": _below(rows["none, identity"], rows["none"]),
        "the best margin below the LSTM": _below(rows[bounded], rows[_LSTM]),
    }
    answers = list(parts.values())
    answer: Answer = "does not hold" if False in answers else "holds" if None not in answers else "cannot tell"
    words = {True: "yes", False: "the other way round", None: "seeds mix"}
    told = ", ".join(f"{name} {_mean(each):.1%} ({min(each):.1%} to {max(each):.1%})" for name, each in rows.items())
    lost = [name for name, row in measured["rows"].items() if any(row["diverged"])]
    ended = f"; not finite in {', '.join(lost)}" if lost else ""
    return Verdict(
        answer,
        f"mean test accuracy and range over seeds: {told}{ended}. "
        + "; ".join(f"{name}: {words[part]}" for name, part in parts.items()),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _below(low: Sequence[float], high: Sequence[float]) -> bool | None:
    """``None`` where seeds of both mix."""
    if max(low) < min(high):
        return True
    return False if min(low) > max(high) else None


def panels(measured: Measured) -> list[Panel]:
    """Accuracies by row; the training loss over the updates, mean over seeds."""
    names = list(measured["rows"])
    label = ", ".join(f"{k} {name}" for k, name in enumerate(names, 1))
    values = [[a or 0.0 for a in row["accuracy"]] for row in measured["rows"].values()]
    half = [(max(each) - min(each)) / 2 for each in values]
    places = list(range(1, len(names) + 1))
    table = Panel(
        "test accuracy, half the range",
        label.replace(", 4", ",\n4"),
        "accuracy",
        [Curve(places, [_mean(each) for each in values], "", "points", half)],
    )
    curves = []
    for name, row in measured["rows"].items():
        columns = list(zip(*row["loss"], strict=False))
        updates = [measured["every"] * k for k in range(1, len(columns) + 1)]
        curves.append(Curve(updates, [_mean(column) for column in columns], name))
    return [table, Panel("training loss (figure 6)", "update", "mean loss", curves, log=("y",))]


SETTINGS = {
    "small": {
        "hidden": 64,
        "updates": 500,
        "seeds": 3,
        "validate_every": 250,
        "rate": 1e-3,
        "geodesic_rate": 1e-2,
        "spectrum_rate": 1.0,
    },
    "paper": {
        "hidden": 128,
        "updates": 120_000,
        "seeds": 1,
        "validate_every": 1000,
        "rate": 1e-4,
        "geodesic_rate": 1e-6,
        "spectrum_rate": 1e-4,
    },
}
