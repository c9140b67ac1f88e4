"""Figures 2 and 6: accuracy on noise-padded digits over the length and the remember gate's bias, and the time scales.

Both figures train the same networks, with weights of each step's own or with one set of weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from isornn.cells import Gate, Input, Spec, cell_named
from isornn.cells.roles import roles_of
from isornn.experiments.reproductions import _by_seeds as by_seeds
from isornn.experiments.runs import train_all, training_accuracy
from isornn.experiments.target import Bench, Effect, Measured
from isornn.figures import Curve, HeatMap, Panel, Style
from isornn.tasks import load_digits
from isornn.theory import analyze, phase_diagram

CELLS = ("gru_cho", "peephole", "lstm")
NAMES = {"gru_cho": "GRU", "peephole": "peephole LSTM", "lstm": "LSTM"}
_TIMES: tuple[tuple[str, str, Style], ...] = (("xi", "xi", "line"), ("tied_xi", "xi, tied", "dashed"))
_FEWEST = 3  # columns, through which a line says something
LOW, HIGH = 3, 6  # the papers' border is between so many xi
SMALL: Mapping[str, Any] = {
    "hidden": 32,
    "batch": 32,
    "updates": 100,
    "rate": 3e-3,
    "clip": 1.0,
    "lengths": [3, 6, 12, 24],
    "bias_means": [0.0, 0.75, 1.5, 2.25, 3.0],
    "seeds": 3,
}
MEDIUM: Mapping[str, Any] = {
    "block": 2,
    "held_out": 1000,
    "training_images": 1000,
    "hidden": 64,
    "batch": 64,
    "updates": 1000,
    "rate": 1e-3,
    "clip": 1.0,
    "lengths": [5, 10, 20, 40, 80],
    "bias_means": [0.0, 1.0, 2.0, 3.0, 4.0],
    "seeds": 5,
}
PAPER: Mapping[str, Any] = {
    "hidden": 128,
    "batch": 64,
    "updates": 1000,
    "lstm_updates": 2000,
    "rate": 1e-3,
    "clip": 1.0,
    "lengths": [5, 10, 20, 40, 80, 160, 320],
    "bias_means": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
    "seeds": 3,
}
CHOICES = (
    "The directions are unsaid: the remember gate's bias_mean, all weight_var and input_var 1. Width, optimiser "
    "(Adam), batch and rate are unsaid; updates are fewer at scale small, alike for all cells. Accuracy is "
    "after the last update, at scale medium on training digits with fresh noise, as in the paper, at scale small on "
    "held-out digits. The noise of two sequences is independent, "
    "so xi is at Sigma_z = 0. A column's border is the length at which a seed's accuracy, over log T, crosses the "
    "midpoint of the cell's range of means. Its bar is the paper's band from 3 xi to 6 xi: the geometric mean of "
    "border / xi lies in it, and ln border over ln xi has a slope that does not leave a band twice as high as low over "
    "the measured range of xi."
)


def data_name(folder: Path | None) -> str:
    return load_digits(folder, pooled=False).name


def measure(bench: Bench, *, tied: bool) -> Measured:
    """For each cell: the time scales by bias, and the accuracy by length, bias and seed."""
    settings = bench.settings
    grid = [(cell, length, bias) for cell in CELLS for length in settings["lengths"] for bias in settings["bias_means"]]
    runs = train_all(
        bench,
        [
            _configuration(settings, cell, length, bias, 1000 * bench.seed + seed, tied)
            for cell, length, bias in grid
            for seed in range(settings["seeds"])
        ],
    )
    # A run that diverged has learned nothing that counts.
    of_parts = {"accuracy": [0.1 if run.diverged or run.last is None else run.last["accuracy"] for run in runs]}
    if "training_images" in settings:
        of_parts["training"] = [training_accuracy(bench, run, settings["training_images"]) for run in runs]
    seeds = settings["seeds"]
    cells = []
    for cell in CELLS:
        found = {"cell": cell, **_time_scales(settings, cell, tied)}
        for part, values in of_parts.items():
            by_place = {place: values[seeds * k : seeds * (k + 1)] for k, place in enumerate(grid)}
            found[part] = [[by_place[cell, T, bias] for bias in settings["bias_means"]] for T in settings["lengths"]]
        cells.append(found)
    return {
        "lengths": settings["lengths"],
        "bias_means": settings["bias_means"],
        "cells": cells,
        "diverged": sum(run.diverged is not None for run in runs),
    }


def _configuration(
    settings: Mapping[str, Any], cell: str, length: int, bias: float, seed: int, tied: bool
) -> dict[str, Any]:
    kind = cell_named(cell)
    gates = {
        gate: {"weight_var": 1.0, "input_var": 1.0, "bias_mean": bias * (gate == roles_of(kind).remember)}
        for gate in kind.gates
    }
    own = {} if tied else {"own_steps": length}
    updates = settings["updates"] if cell == "gru_cho" else settings.get("lstm_updates", settings["updates"])
    return {
        "task": {
            "name": "noise_padded",
            "length": length,
            **{name: settings[name] for name in ("block", "held_out") if name in settings},
        },
        "model": {"name": cell, "hidden": settings["hidden"], **own},
        "start": {"name": "spec", "gates": gates},
        "optimiser": {"name": "adam", "rate": settings["rate"]},
        "updates": updates,
        "batch_size": settings["batch"],
        "validate_every": updates,
        "clip": settings["clip"],
        "seed": seed,
    }


def _time_scales(settings: Mapping[str, Any], cell: str, tied: bool) -> dict[str, Any]:
    """xi of untied networks and, where the networks are tied, of tied ones; with standard errors."""
    kind = cell_named(cell)
    spec = Spec(kind, {gate: Gate(1.0, 1.0) for gate in kind.gates}, Input(1.0, 0.0))
    path, biases = f"{roles_of(kind).remember}.bias_mean", settings["bias_means"]
    untied = phase_diagram(spec, (path, biases), ("input.correlation", [0.0])).quantities["xi"]
    found = {"xi": untied.listed()[0], "xi_stderr": untied.listed_errors()[0]}
    if tied:
        # A map's few units do not determine the sign of the covariance of displacements at independent inputs.
        batch = spec.replace(path, torch.tensor(biases, dtype=torch.float64))
        answer = analyze(batch, tied=True, steps=settings["tied_steps"]).tied
        assert answer is not None
        found |= {"tied_xi": answer.xi.listed(), "tied_xi_stderr": answer.xi.listed_errors()}
    return found


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def mean_accuracy(case: Mapping[str, Any]) -> list[list[float]]:
    """Over seeds, by length and bias."""
    return [[mean(seeds) for seeds in row] for row in _accuracy(case)]


def accuracy_of(case: Mapping[str, Any], seed: int) -> list[list[float]]:
    """Of one seed, by length and bias."""
    return [[seeds[seed] for seeds in row] for row in _accuracy(case)]


def _accuracy(case: Mapping[str, Any]) -> Sequence[Sequence[Sequence[float]]]:
    """On training digits, as the paper's, where they were measured."""
    found: Sequence[Sequence[Sequence[float]]] = case.get("training", case["accuracy"])
    return found


def seeds_of(case: Mapping[str, Any]) -> range:
    """The seeds, by number."""
    return range(len(_accuracy(case)[0][0]))


def midpoint(case: Mapping[str, Any]) -> float:
    """Of the range of the mean accuracy."""
    flat = [value for row in mean_accuracy(case) for value in row]
    return (min(flat) + max(flat)) / 2


def borders(measured: Measured, case: Mapping[str, Any], seed: int | None = None) -> list[float]:
    """By bias the length where a seed's accuracy, or the mean, falls below the midpoint; 0 where it never was above,
    infinite where it never falls."""
    accuracy = mean_accuracy(case) if seed is None else accuracy_of(case, seed)
    middle, lengths = midpoint(case), measured["lengths"]
    return [_crossing(lengths, [row[column] for row in accuracy], middle) for column in range(len(accuracy[0]))]


def _crossing(lengths: Sequence[int], accuracy: Sequence[float], middle: float) -> float:
    below = next((place for place, value in enumerate(accuracy) if value < middle), None)
    if below is None:
        return math.inf
    if below == 0:
        return 0.0
    before, after = below - 1, below
    share = (accuracy[before] - middle) / (accuracy[before] - accuracy[after])
    return float(lengths[before] * (lengths[after] / lengths[before]) ** share)


@dataclass(frozen=True)
class Follows:
    """How a cell's border lies to a time scale.

    Args:
        slope: of ln border over ln xi; 1 is proportion.
        ratio: geometric mean of border / xi over the columns.
        shortest, longest: xi of these columns.
    """

    slope: Effect
    ratio: Effect
    shortest: float
    longest: float

    @property
    def reach(self) -> float:
        """ln of the longest over the shortest xi."""
        return math.log(self.longest / self.shortest)

    @property
    def within(self) -> bool | None:
        """Whether the border keeps to the band from 3 xi to 6 xi: the intervals of the mean ratio and of the slope are
        within it, where a slope that is off by more than ln 2 over the reach leaves a band that is 2 wide; false where
        one is wholly outside, ``None`` where one is across its edge."""
        room = math.log(HIGH / LOW) / self.reach
        return by_seeds.all_known([_inside(self.ratio, LOW, HIGH), _inside(self.slope, 1 - room, 1 + room)])


def follows(measured: Measured, case: Mapping[str, Any], times: str = "xi") -> Follows | None:
    """The fit over the columns that have a border with every seed; ``None`` with fewer than three of them."""
    from scipy.stats import linregress  # half a second to import

    by_seed = [borders(measured, case, seed) for seed in seeds_of(case)]
    columns = [
        k for k, xi in enumerate(case[times]) if xi is not None and all(0 < one[k] < math.inf for one in by_seed)
    ]
    if len(columns) < _FEWEST:
        return None
    xi = [math.log(case[times][k]) for k in columns]
    fits = [linregress(xi, [math.log(one[k]) for k in columns]) for one in by_seed]
    ratios = [math.exp(mean([math.log(one[k]) for k in columns]) - mean(xi)) for one in by_seed]
    name = NAMES[case["cell"]]
    return Follows(
        by_seeds.effect(
            f"{name}: slope of ln border over ln xi", [float(fit.slope) for fit in fits], "1, by the curves"
        ),
        by_seeds.effect(f"{name}: border over xi, geometric mean", ratios, "3 to 6, by the curves"),
        math.exp(min(xi)),
        math.exp(max(xi)),
    )


def beyond(measured: Measured, case: Mapping[str, Any]) -> dict[float, float]:
    """By bias, where no seed has a border up to the longest sequences, how many xi these are."""
    by_seed = [borders(measured, case, seed) for seed in seeds_of(case)]
    return {
        bias: measured["lengths"][-1] / xi
        for bias, xi, *lengths in zip(measured["bias_means"], case["xi"], *by_seed, strict=True)
        if xi is not None and min(lengths) == math.inf
    }


def _inside(one: Effect, low: float, high: float) -> bool | None:
    if one.low is None or one.high is None:
        return None
    if low <= one.low and one.high <= high:
        return True
    return False if one.high < low or one.low > high else None


def rank_correlation(first: Sequence[float], second: Sequence[float | None]) -> float | None:
    """Spearman's, over the places where there are numbers; ``None`` if one of the two does not vary."""
    from scipy.stats import spearmanr  # half a second to import

    pairs = [(a, b) for a, b in zip(first, second, strict=True) if b is not None]
    if len(pairs) < 3 or any(len(set(values)) < 2 for values in zip(*pairs, strict=True)):
        return None
    return float(spearmanr(*zip(*pairs, strict=True)).statistic)


def panels(measured: Measured) -> list[Panel]:
    """Accuracy over bias and length, with 3 xi and 6 xi: lines of untied networks, dashed of tied ones."""
    found = []
    for case in measured["cells"]:
        biases, lengths = measured["bias_means"], measured["lengths"]
        top, curves = 1.5 * lengths[-1], []
        for name, label, style in _TIMES:
            for colour, times in ((2, LOW), (4, HIGH)):
                line = [None if xi is None or times * xi > top else times * xi for xi in case.get(name, [])]
                if line:
                    curves.append(Curve(biases, line, f"{times} {label}", style, colour=colour))
        places = [border if 0 < border < math.inf else None for border in borders(measured, case)]
        curves.append(Curve(biases, places, "border", "points", colour=3))
        heat = HeatMap(biases, lengths, mean_accuracy(case), "accuracy")
        found.append(Panel(NAMES[case["cell"]], "remember gate's bias_mean", "length T", curves, heat=heat, log=("y",)))
    return found
