"""Lemmas 2 and 3: E g(x) g(y) >= 0 for odd g, and the correlation map is convex."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from isornn.cells import cell_named
from isornn.cells.random_specs import random_spec
from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Panel
from isornn.theory import TheoryMissing, correlation_map

_CELLS = ("peephole", "gru_cho")
_GRID = torch.linspace(0, 1, 41, dtype=torch.float64, device="cpu")
_FLAT = -1e-8
_DRAWN = 12  # maps of each cell
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(80)


def _sigma_second(x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s * (1 - s) * (1 - 2 * s)


_ODD: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "tanh''": lambda x: -2 * torch.tanh(x) * (1 - torch.tanh(x) ** 2),
    "sigma''": _sigma_second,
}


def measure(bench: Bench) -> Measured:
    """Smallest second difference of each random spec's map, some of the maps, and smallest E g(x) g(y) of each odd
    function."""
    generator, maps = bench.generator(), []
    for number, name in enumerate(_CELLS):
        cell, left = cell_named(name), bench.settings["specs"]
        while left:
            bench.progress(name, (number + 1) * bench.settings["specs"] - left, len(_CELLS) * bench.settings["specs"])
            try:
                curve = correlation_map(random_spec(cell, generator), _GRID)
            except TheoryMissing:
                continue
            left -= 1
            second = curve[2:] - 2 * curve[1:-1] + curve[:-2]
            drawn = {"map": curve.tolist()} if bench.settings["specs"] - left <= _DRAWN else {}
            maps.append({"cell": name, "least": float(second.min()), **drawn})
    pairs = {name: _least_pair(odd, bench) for name, odd in _ODD.items()}
    return {"maps": maps, "pairs": pairs}


def _least_pair(odd: Callable[[Tensor], Tensor], bench: Bench) -> float:
    """The smallest E g(x) g(y) over random means, variances up to 4 and correlations from 0 to 1, by a product rule."""
    z = torch.tensor(_NODES, dtype=torch.float64)
    w = torch.tensor(_WEIGHTS / _WEIGHTS.sum(), dtype=torch.float64)
    generator, least = bench.generator(1), float("inf")
    for _ in range(bench.settings["specs"]):
        mean, spread, c = torch.rand(3, generator=generator, dtype=torch.float64).tolist()
        mean, spread = 6 * mean - 3, 2 * spread
        x = mean + spread * z
        y = mean + spread * (c * z[:, None] + (1 - c * c) ** 0.5 * z)
        least = min(least, float((w[:, None] * w * odd(x)[:, None] * odd(y)).sum()))
    return least


def judge(measured: Measured) -> Verdict:
    """No second difference and no expectation below the bar."""
    least = {name: min(one["least"] for one in measured["maps"] if one["cell"] == name) for name in _CELLS}
    pair = min(measured["pairs"].values())
    holds = min(*least.values(), pair) >= _FLAT
    details = ", ".join(f"{name} {value:.1e}" for name, value in least.items())
    why = (
        f"{len(measured['maps'])} random maps: smallest second difference on a grid of 41 points {details} (bar "
        f"{_FLAT}); smallest E g(x) g(y) {pair:.1e}"
    )
    return Verdict("holds" if holds else "does not hold", why)


def panels(measured: Measured) -> list[Panel]:
    """Some of the maps."""
    found = []
    for name in _CELLS:
        mine = [one["map"] for one in measured["maps"] if one["cell"] == name and "map" in one]
        curves = [Curve(_GRID.tolist(), one, colour=number) for number, one in enumerate(mine)]
        diagonal = Curve([0, 1], [0, 1], "C' = C", "dashed", colour=6)
        found.append(Panel(name, "C", "next C", [*curves, diagonal]))
    return found


TARGET = Target(
    id="gilboa-lemma2-3",
    source="Gilboa et al. 2019, lemmas 2 and 3",
    claim="The correlation maps of peephole LSTM (proved) and GRU (claimed) are convex on [0, 1], so that at most one "
    "fixed point is stable; E g(x) g(y) >= 0 for odd g.",
    published="proofs; for the GRU a claim",
    choices="Random specs by the library's stated law; second differences on a grid.",
    settings={"small": {"specs": 200}, "paper": {"specs": 2000}},
    measure=measure,
    judge=judge,
    panels=panels,
)
