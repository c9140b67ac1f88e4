"""Which moment settles last: the correlation, or the mean and second moment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import count, islice
from typing import Any

import torch

from isornn.cells import Spec, cell_named
from isornn.cells.random_specs import random_spec
from isornn.cells.roles import roles_of
from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Mark, Panel
from isornn.theory import analyze, moment_dynamics

_CELLS = ("vanilla", "minimal", "gru_cho", "peephole")
_NEAR, _ROUNDING = 1e-2, 1e-9  # of Q*: where distances fall by one rate
_FEWEST = 4  # steps that say a rate
_SURE = 0.005


def measure(bench: Bench) -> Measured:
    """chi, and the rate at which the second moment comes to its fixed point, of random specs of each cell: as drawn,
    and with identical inputs and candidates without a bias, so that the mean stays 0."""
    settings, generator = bench.settings, bench.generator()
    rows: list[dict[str, Any]] = []
    for number, name in enumerate(_CELLS):
        bench.progress(name, number, len(_CELLS))
        for kind, change in (("as drawn", None), ("centred", centred)):
            drawn = (random_spec(cell_named(name), generator) for _ in count())
            specs = (spec if change is None else change(spec) for spec in drawn)
            found = (row for spec in specs if (row := _rates(name, spec, settings["steps"])) is not None)
            rows += [{**row, "kind": kind} for row in islice(found, settings["specs"])]
    return {"rows": rows}


def centred(spec: Spec) -> Spec:
    """With the same input to both copies, and no bias where the state's content comes from."""
    for gate in roles_of(spec.cell).candidates:
        spec = spec.replace(f"{gate}.bias_mean", 0.0)
    return spec.replace("input.correlation", 1.0)


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
    found, details = measured["rows"], []
    for kind in dict.fromkeys(row["kind"] for row in found):
        rows = [row for row in found if row["kind"] == kind]
        against = [row for row in rows if _later(row)]
        by_cell = ", ".join(f"{name} {sum(row['cell'] == name for row in against)}" for name in _CELLS)
        furthest = max((row["rate"] - row["chi"] for row in against), default=0.0)
        details.append(
            f"{kind}, the second moment settles later than the correlation in {len(against)} of {len(rows)} specs "
            f"({by_cell}), its rate above chi by at most {furthest:.3f}"
        )
    return Verdict("does not hold" if any(map(_later, found)) else "holds", "; ".join(details))


def _later(row: Mapping[str, Any]) -> bool:
    return bool(row["rate"] > row["chi"] + _SURE)


def panels(measured: Measured) -> list[Panel]:
    """The rate of Q over chi; above the line Q is the slower."""
    found = []
    for kind in dict.fromkeys(row["kind"] for row in measured["rows"]):
        curves = []
        for name in _CELLS:
            rows = [row for row in measured["rows"] if (row["cell"], row["kind"]) == (name, kind)]
            curves.append(Curve([row["chi"] for row in rows], [row["rate"] for row in rows], name, "points"))
        curves.append(Curve([0.0, 1.0], [0.0, 1.0], "equal", "dashed"))
        found.append(Panel(f"{kind}, per step", "chi: rate of C", "rate of Q", curves, marks=[Mark("x", 1.0)]))
    return found


TARGET = Target(
    id="gilboa-slowest",
    source="Gilboa et al. 2019, section 4.2",
    claim="Of the directions in which the moments come to their fixed point, the slowest is always that of the "
    "correlation C.",
    published="in words: 'this eigenvalue appears to always correspond to the C direction'",
    choices="Random specs of the cells whose moments are exact by quadrature. The rate of the mean and the second "
    "moment, one system, is that at which Q's distance to its fixed point falls between a hundredth of it and "
    "rounding; chi is exact. Specs that settle within less than four such steps are drawn again. Later counts from "
    "0.005 above chi on, for the uncertainty of the fit. Centred: candidates without a bias and identical inputs. "
    "Where a candidate has a bias the mean settles too, of a gated cell at a rate near E sigma(u_f), which is above E "
    "sigma(u_f)^2; and at correlations below 1 chi is smaller.",
    settings={"small": {"specs": 8, "steps": 200}, "paper": {"specs": 100, "steps": 1000}},
    measure=measure,
    judge=judge,
    panels=panels,
)
