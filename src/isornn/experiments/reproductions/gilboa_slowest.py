"""Which moment settles last: the correlation, or the mean and second moment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count, islice

import torch

from isornn.cells import Spec, cell_named
from isornn.cells.random_specs import random_spec
from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Mark, Panel
from isornn.theory import analyze, moment_dynamics

_CELLS = ("vanilla", "minimal", "gru_cho", "peephole")
_NEAR, _ROUNDING = 1e-2, 1e-9  # of Q*: where distances fall by one rate
_FEWEST = 4  # steps that say a rate
_SURE = 0.005


def measure(bench: Bench) -> Measured:
    """chi, and the rate at which the second moment comes to its fixed point, of random specs of each cell."""
    settings, generator = bench.settings, bench.generator()
    rows: list[dict[str, float | str]] = []
    for number, name in enumerate(_CELLS):
        bench.progress(name, number, len(_CELLS))
        drawn = (random_spec(cell_named(name), generator) for _ in count())
        found = (row for spec in drawn if (row := _rates(name, spec, settings["steps"])) is not None)
        rows += islice(found, settings["specs"])
    return {"rows": rows}


def _rates(name: str, spec: Spec, steps: int) -> dict[str, float | str] | None:
    """``None`` where the spec has no fixed point, no chi, or comes to it too soon to say how."""
    answer = analyze(spec)
    chi = answer.chi.number()
    if chi is None:
        return None
    second = moment_dynamics(spec, steps, initial_variance=0.5).second_moment.tolist()
    rate = rate_of(second)
    return None if rate is None else {"cell": name, "chi": chi, "rate": rate}


def rate_of(values: Sequence[float]) -> float | None:
    """By which the distance to the last value falls at each step, the slope of its logarithm; ``None`` where too few
    steps lie between the first approach and rounding.

    >>> round(rate_of([1 + 0.9**t for t in range(400)]), 6)
    0.9
    """
    end = values[-1]
    logs = [
        (t, math.log(distance))
        for t, value in enumerate(values)
        if _ROUNDING * abs(end) < (distance := abs(value - end)) < _NEAR * abs(end)
    ]
    if len(logs) < _FEWEST:
        return None
    t, y = (torch.tensor(column, dtype=torch.float64) for column in zip(*logs, strict=True))
    t = t - t.mean()
    return math.exp(float((t * y).sum() / (t * t).sum()))


def judge(measured: Measured) -> Verdict:
    """chi is at least the rate of Q and mu, in every spec."""
    rows = measured["rows"]
    against = [row for row in rows if row["rate"] > row["chi"] + _SURE]
    by_cell = {name: sum(row["cell"] == name for row in against) for name in _CELLS}
    furthest = max((row["rate"] - row["chi"] for row in against), default=0.0)
    why = (
        f"in {len(against)} of {len(rows)} random specs the second moment settles later than the correlation: "
        f"{', '.join(f'{name} {number}' for name, number in by_cell.items())}; its rate is above chi by at most "
        f"{furthest:.3f}"
    )
    return Verdict("does not hold" if against else "holds", why)


def panels(measured: Measured) -> list[Panel]:
    """The rate of Q over chi; above the line Q is the slower."""
    curves = []
    for name in _CELLS:
        rows = [row for row in measured["rows"] if row["cell"] == name]
        curves.append(Curve([row["chi"] for row in rows], [row["rate"] for row in rows], name, "points"))
    curves.append(Curve([0.0, 1.0], [0.0, 1.0], "equal", "dashed"))
    return [Panel("per step", "chi: rate of C", "rate of Q", curves, marks=[Mark("x", 1.0)])]


TARGET = Target(
    id="gilboa-slowest",
    source="Gilboa et al. 2019, section 4.2",
    claim="Of the directions in which the moments come to their fixed point, the slowest is always that of the "
    "correlation C.",
    published="in words: 'this eigenvalue appears to always correspond to the C direction'",
    choices="Random specs of the cells whose moments are exact by quadrature. The rate of the mean and the second "
    "moment, one system, is that at which Q's distance to its fixed point falls between a hundredth of it and "
    "rounding; chi is exact. Specs that settle within less than four such steps are drawn again. Later counts from "
    "0.005 above chi on, for the uncertainty of the fit.",
    settings={"small": {"specs": 8, "steps": 200}, "paper": {"specs": 100, "steps": 1000}},
    measure=measure,
    judge=judge,
    panels=panels,
)
