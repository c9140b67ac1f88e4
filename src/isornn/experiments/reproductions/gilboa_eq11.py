"""Eq. 11, the GRU's Jacobian: as printed and as the chain rule has it, against finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Panel

Matrix = NDArray[np.float64]

_EXACT = 1e-8
_MOMENTS_CLOSE = 0.05
_STEP = 1e-5


def measure(bench: Bench) -> Measured:
    """Relative distances of both forms from finite differences, and m1 and m2 of each."""
    rows: list[dict[str, Any]] = []
    for number, variance in enumerate(bench.settings["weight_vars"]):
        bench.progress(f"weight variance {variance}", number, len(bench.settings["weight_vars"]))
        drawn = np.random.default_rng([bench.seed, number])
        width = bench.settings["width"]
        weights = {k: np.sqrt(variance / width) * drawn.standard_normal((width, width)) for k in "frn"}
        drives = {k: drawn.standard_normal(width) for k in "frn"}
        s = np.zeros(width)
        for _ in range(bench.settings["steps"]):
            s = _step(s, weights, drives)
            drives = {k: drawn.standard_normal(width) for k in "frn"}
        differences = _by_differences(s, weights, drives)
        forms = {"repaired": _jacobian(s, weights, drives), "printed": _jacobian(s, weights, drives, printed=True)}
        rows.append(
            {
                "weight_var": variance,
                **{
                    form: float(np.linalg.norm(j - differences) / np.linalg.norm(differences))
                    for form, j in forms.items()
                },
                "moments": {form: _moments(j) for form, j in forms.items()},
            }
        )
    return {"rows": rows}


def _step(s: Matrix, w: dict[str, Matrix], x: dict[str, Matrix]) -> Matrix:
    f, g = _sigma(w["f"] @ s + x["f"]), _sigma(w["r"] @ s + x["r"])
    new: Matrix = f * s + (1 - f) * np.tanh(w["n"] @ (g * s) + x["n"])
    return new


def _jacobian(s: Matrix, w: dict[str, Matrix], x: dict[str, Matrix], printed: bool = False) -> Matrix:
    """``D_0 + D_f W_f + D_n W_n (D_g + D_g' D_s W_r)``; printed ``W_r D_g' D_s`` in the place of the last product."""
    f, g = _sigma(w["f"] @ s + x["f"]), _sigma(w["r"] @ s + x["r"])
    n = np.tanh(w["n"] @ (g * s) + x["n"])
    shift = g * (1 - g) * s
    last = w["r"] * shift if printed else shift[:, None] * w["r"]
    total: Matrix = (
        np.diag(f)
        + (f * (1 - f) * (s - n))[:, None] * w["f"]
        + ((1 - f) * (1 - n * n))[:, None] * (w["n"] @ (np.diag(g) + last))
    )
    return total


def _by_differences(s: Matrix, w: dict[str, Matrix], x: dict[str, Matrix]) -> Matrix:
    columns = [(_step(s + e, w, x) - _step(s - e, w, x)) / (2 * _STEP) for e in _STEP * np.eye(len(s))]
    return np.stack(columns, 1)


def _moments(j: Matrix) -> list[float]:
    squared = np.linalg.svd(j, compute_uv=False) ** 2
    return [float(squared.mean()), float((squared**2).mean())]


def _sigma(u: Matrix) -> Matrix:
    out: Matrix = 1 / (1 + np.exp(-u))
    return out


def judge(measured: Measured) -> Verdict:
    """The repaired form is the derivative, the printed one is not, and their moments agree all the same."""
    rows = measured["rows"]
    repaired, printed = max(row["repaired"] for row in rows), [row["printed"] for row in rows]
    apart = max(
        abs(a / b - 1)
        for row in rows
        for a, b in zip(row["moments"]["printed"], row["moments"]["repaired"], strict=True)
    )
    why = (
        f"relative distance from finite differences: repaired at most {repaired:.1e} (bar {_EXACT}), printed "
        f"{min(printed):.3f} to {max(printed):.3f}; m1 and m2 of the two forms differ by at most {apart:.1%} (bar "
        f"{_MOMENTS_CLOSE:.0%})"
    )
    holds = repaired <= _EXACT < min(printed) and apart <= _MOMENTS_CLOSE
    return Verdict("holds" if holds else "does not hold", why)


def panels(measured: Measured) -> list[Panel]:
    """Distances from the derivative, and the moments of both forms."""
    rows = measured["rows"]
    x = [row["weight_var"] for row in rows]
    distances = [Curve(x, [row[form] for row in rows], form) for form in ("repaired", "printed")]
    moments = [
        Curve(
            x,
            [row["moments"][form][power] for row in rows],
            f"m{power + 1}, {form}",
            "line" if form == "repaired" else "points",
            colour=power,
        )
        for power in (0, 1)
        for form in ("repaired", "printed")
    ]
    label = "variance of the recurrent weights"
    return [
        Panel("from finite differences", label, "relative distance", distances, log=("y",)),
        Panel("moments of the two forms", label, "moment of the squared singular values", moments, log=("y",)),
    ]


_VARIANCES = [0.5, 1.0, 2.0, 4.0, 8.0]
TARGET = Target(
    id="gilboa-eq11",
    source="Gilboa et al. 2019, eq. 11",
    claim="The GRU's Jacobian is eq. 11 with D_g' D_s before W_r; as printed, behind it, it is not the derivative, yet "
    "its singular values have the same moments at large width.",
    published="W_r D_g' D_s, an error of order",
    choices="Random GRUs, all three recurrent variances alike and every other variance 1, after some steps of fresh "
    "inputs; central differences.",
    settings={
        "small": {"width": 400, "steps": 20, "weight_vars": _VARIANCES},
        "paper": {"width": 1500, "steps": 100, "weight_vars": _VARIANCES},
    },
    measure=measure,
    judge=judge,
    panels=panels,
    corrected=True,
)
