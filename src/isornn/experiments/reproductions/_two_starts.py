"""Figures 1 and 4: a peephole LSTM from the standard and from the critical start, on sequences of growing length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from isornn.experiments.runs import train_all
from isornn.experiments.target import UNTESTED, Answer, Bench, Measured, Verdict
from isornn.figures import Curve, Mark, Panel
from isornn.tasks import load_digits
from isornn.training import RunRecord
from isornn.training.metrics import read_metrics

STARTS = {"standard": "gilboa-peephole-standard", "critical": "gilboa-peephole-critical"}
AHEAD = 0.2  # of accuracy, that one start is better by
_LEARNED = 0.3  # share of the way from chance to 1
CHOICES = (
    "Lengths, width, optimiser beyond 'SGD with momentum', rate and number of iterations are unsaid: momentum 0.9, "
    "batches of the size stated; at each length each start has the best of the rates stated, by its first seed's last "
    "accuracy, and its other seeds are run at that rate. The gradient is clipped at norm 1, which the paper does not "
    "say. Accuracy is on held-out digits, the paper's on those of training. To hold, the standard start learns the "
    "shortest sequences (0.3 of the way from chance to 1 counts as learned), and at one of the longer lengths the "
    "critical start learns, the standard one does not, and the means are more than 0.2 apart, every seed of the one "
    "before every seed of the other; where the seeds overlap, or nobody learns, it is 'cannot tell'."
)

TaskOf = Callable[[Mapping[str, Any], int], dict[str, Any]]
"""Settings and a size to the task's table."""
Planned = tuple[int, str, float, int]
"""Size, start, rate and seed of a run."""


def data_name(folder: Path | None) -> str:
    """Pooling is part of the task, and in the settings."""
    return load_digits(folder, pooled=False).name


def measure(bench: Bench, task_of: TaskOf, chance_of: Callable[[int], float]) -> Measured:
    """For each size and start the accuracy of every seed at every validation, at the first seed's best rate."""
    settings = bench.settings
    rates, seeds = settings["rates"], range(settings["seeds"])
    places = [(size, start) for size in settings["sizes"] for start in STARTS]
    runs = _trained(bench, task_of, [(*place, rate, seeds[0]) for place in places for rate in rates])
    # By place and rate, where the scan ended.
    ends = {
        (size, start): {rate: _curve(bench, runs[size, start, rate, 0], chance_of(size))[-1] for rate in rates}
        for size, start in places
    }
    best = {place: max(rates, key=lambda rate: ends[place][rate]) for place in places}
    runs |= _trained(bench, task_of, [(*place, best[place], seed) for place in places for seed in seeds[1:]])
    sizes = []
    for size in settings["sizes"]:
        chance, starts = chance_of(size), {}
        for start in STARTS:
            rate = best[size, start]
            starts[start] = {
                "rate": rate,
                "curves": [_curve(bench, runs[size, start, rate, seed], chance) for seed in seeds],
                "scan": [{"rate": each, "accuracy": end} for each, end in ends[size, start].items()],
            }
        length = runs[size, "standard", best[size, "standard"], 0].length
        sizes.append({"size": size, "length": length, "chance": chance, "starts": starts})
    every = settings["validate_every"]
    return {"updates": list(range(every, settings["updates"] + 1, every)), "sizes": sizes}


def _trained(bench: Bench, task_of: TaskOf, planned: Sequence[Planned]) -> dict[Planned, RunRecord]:
    settings = bench.settings
    configurations = [
        _configuration(settings, task_of(settings, size), start, rate, 1000 * bench.seed + seed)
        for size, start, rate, seed in planned
    ]
    return dict(zip(planned, train_all(bench, configurations), strict=True))


def _configuration(
    settings: Mapping[str, Any], task: dict[str, Any], start: str, rate: float, seed: int
) -> dict[str, Any]:
    return {
        "task": task,
        "model": {"name": "peephole", "hidden": settings["hidden"]},
        "start": {"name": STARTS[start]},
        "optimiser": {"name": "sgd", "rate": rate, "momentum": 0.9},
        "updates": settings["updates"],
        "batch_size": settings["batch"],
        "validate_every": settings["validate_every"],
        "clip": settings["clip"],
        "seed": seed,
    }


def _curve(bench: Bench, run: RunRecord, chance: float) -> list[float]:
    """Accuracy at every validation; a run that diverged guesses from there on."""
    rows = read_metrics(bench.folder / run.configuration.hash)
    known = [row["validation"]["accuracy"] for row in rows]
    asked = run.configuration.updates // run.configuration.validate_every
    return known + [chance] * (asked - len(known))


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def finals(one: Mapping[str, Any], start: str) -> list[float]:
    """Of each seed, the last accuracy."""
    return [curve[-1] for curve in one["starts"][start]["curves"]]


def learned(one: Mapping[str, Any], start: str) -> bool:
    """Whether the seeds' mean is well above chance."""
    return mean(finals(one, start)) > one["chance"] + _LEARNED * (1 - one["chance"])


def _ahead(one: Mapping[str, Any]) -> bool:
    """Whether the critical start learns, the standard one does not, and the means are more than `AHEAD` apart."""
    gap = mean(finals(one, "critical")) - mean(finals(one, "standard"))
    return gap > AHEAD and learned(one, "critical") and not learned(one, "standard")


def _apart(one: Mapping[str, Any]) -> bool:
    """Whether every seed of the critical start is before every one of the standard start."""
    return min(finals(one, "critical")) > max(finals(one, "standard"))


def judge(measured: Measured) -> Verdict:
    """The standard start learns short sequences, and fails at some longer one where the critical start learns."""
    shortest, *longer = measured["sizes"]
    ahead = [one for one in longer if _ahead(one)] if learned(shortest, "standard") else []
    if any(_apart(one) for one in ahead):
        answer: Answer = "holds"
    elif ahead or not any(learned(one, start) for one in longer for start in STARTS):
        answer = UNTESTED
    else:
        answer = "does not hold"
    return Verdict(answer, "; ".join(summary(one) for one in measured["sizes"]))


def summary(one: Mapping[str, Any]) -> str:
    """Mean and range over seeds of both starts."""
    parts = []
    for start in STARTS:
        values = finals(one, start)
        rate = one["starts"][start]["rate"]
        parts.append(f"{start} {mean(values):.2f} ({min(values):.2f} to {max(values):.2f}, rate {rate})")
    return f"T = {one['length']}: {', '.join(parts)}"


def curves_over_updates(measured: Measured) -> list[Panel]:
    """A panel for each length: mean over seeds, and half their range."""
    updates, found = measured["updates"], []
    for one in measured["sizes"]:
        curves = []
        for start in STARTS:
            columns = list(zip(*one["starts"][start]["curves"], strict=True))
            half = [(max(column) - min(column)) / 2 for column in columns]
            curves.append(Curve(updates, [mean(column) for column in columns], f"{start}, half the range", error=half))
        marks = [Mark("y", one["chance"], "chance")]
        found.append(Panel(f"T = {one['length']}", "updates", "accuracy", curves, marks=marks))
    return found
