"""Theorem 3: sums of T-MR's units approximate continuous functions of a state and a feature."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Panel

Grid = NDArray[np.float64]
_FUNCTIONS: dict[str, Callable[[Grid, Grid], Grid]] = {
    "h z": lambda h, z: h * z,
    "max(h, z)": np.maximum,
    "sin(3 h) cos(2 z)": lambda h, z: np.sin(3 * h) * np.cos(2 * z),
}
_SMALL_ERROR = 0.01  # root mean square, relative to the function's


def measure(bench: Bench) -> Measured:
    """Least squares over random units ``relu(b h + a z + c)``, a > 0; error on a grid that the fit has not seen."""
    settings = bench.settings
    points = np.linspace(-1, 1, settings["grid"])
    unseen = (points[:-1] + points[1:]) / 2
    seen, held_out = (np.meshgrid(p, p, indexing="ij") for p in (points, unseen))
    errors: dict[str, list[list[float]]] = {name: [] for name in _FUNCTIONS}
    for draw in range(settings["draws"]):
        bench.progress(f"draw {draw}", draw, settings["draws"])
        for name in errors:
            errors[name].append([])
        random = np.random.default_rng([bench.seed, draw])
        width = max(settings["widths"])
        # Kinks are lines through a random place of the square; a is above 0, as the theorem has it.
        angle = random.uniform(0, np.pi, width)
        a, b = np.sin(angle), np.cos(angle)
        place = random.uniform(-1, 1, (2, width))
        c = -(b * place[0] + a * place[1])
        # Shifted far enough a unit is linear on the square, so that the span has all linear functions.
        c[:3] = 3.0
        features, tested = (
            np.maximum(0, np.multiply.outer(h, b) + np.multiply.outer(z, a) + c) for h, z in (seen, held_out)
        )
        for n in settings["widths"]:
            for name, function in _FUNCTIONS.items():
                fitted = np.linalg.lstsq(features[..., :n].reshape(-1, n), function(*seen).ravel(), rcond=1e-10)[0]
                truth = function(*held_out)
                off = tested[..., :n] @ fitted - truth
                errors[name][-1].append(float(np.sqrt((off**2).mean() / (truth**2).mean())))
    return {"widths": list(settings["widths"]), "errors": errors}


def _mean(values: list[list[float]]) -> list[float]:
    return [float(v) for v in np.mean(values, 0)]


def judge(measured: Measured) -> Verdict:
    """The error falls with every width and is small at the largest, for all functions."""
    means = {name: _mean(values) for name, values in measured["errors"].items()}
    falls = all(after < before for each in means.values() for before, after in pairwise(each))
    last = max(each[-1] for each in means.values())
    details = "; ".join(f"{name}: {', '.join(f'{e:.3g}' for e in each)}" for name, each in means.items())
    widths = ", ".join(map(str, measured["widths"]))
    why = f"relative error at widths {widths}: {details} (bar {_SMALL_ERROR} at the last)"
    return Verdict("holds" if falls and last < _SMALL_ERROR else "does not hold", why)


def panels(measured: Measured) -> list[Panel]:
    """Errors over the width; the spread is over draws."""
    curves: list[Any] = []
    for name, values in measured["errors"].items():
        spread = [float(s) for s in np.std(values, 0, ddof=1) / np.sqrt(len(values))]
        curves.append(Curve(measured["widths"], _mean(values), name, error=spread))
    return [Panel("span of T-MR units", "units", "relative error", curves, log=("x", "y"))]


_SMALL = {"grid": 41, "widths": [10, 30, 100, 300, 900], "draws": 5}
TARGET = Target(
    id="balduzzi-thm3",
    source="Balduzzi & Ghifary 2016, theorem 3",
    claim="Linear combinations of T-MR units relu(b h + a z + c), a > 0, approximate continuous functions of the state "
    "h and a feature z: the error falls with the number of units.",
    published="a theorem, with no numbers",
    choices="Three functions on [-1, 1]^2, one of them without derivatives; random units, least squares, the error "
    "between the points that were fitted. Bar: 1 % at 900 units.",
    settings={"small": _SMALL, "paper": {**_SMALL, "draws": 20}},
    measure=measure,
    judge=judge,
    panels=panels,
)
