"""The GRU's chi (A.3.1): as printed and as repaired, against the slope of the correlation map."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from isornn.cells import ChoGRU, Gate, Input, Spec
from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Panel
from isornn.theory import analyze, correlation_map

_EXACT = 1e-5
_STEP = 1e-4
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(100)
_RULE = (_WEIGHTS / _WEIGHTS.sum())[:, None] * (_WEIGHTS / _WEIGHTS.sum())


def measure(bench: Bench) -> Measured:
    """Both forms by a rule of their own, the slope of the map by differences, and the library's chi."""
    rows: list[dict[str, Any]] = []
    for number, bias in enumerate(bench.settings["biases"]):
        bench.progress(f"candidate's bias {bias}", number, len(bench.settings["biases"]))
        gates = {"z": Gate(1.0, 1.0), "r": Gate(1.0, 1.0), "n": Gate(1.0, 1.0, bias_mean=bias)}
        spec = Spec(ChoGRU(), gates, Input(1.0, bench.settings["input_correlation"]))
        answer = analyze(spec)
        point = answer.fixed_point
        mean, second, c = (_known(part.number()) for part in (point.mean, point.second_moment, point.correlation))
        below, above = correlation_map(spec, torch.tensor([c - _STEP, c + _STEP], dtype=torch.float64)).tolist()
        printed, missing = _forms(mean, second, c, bias, bench.settings["input_correlation"])
        rows.append(
            {
                "bias": bias,
                "slope": (above - below) / (2 * _STEP),
                "library": answer.chi.number(),
                "repaired": printed + missing,
                "printed": printed,
            }
        )
    return {"rows": rows}


def _known(value: float | None) -> float:
    assert value is not None
    return value


def _forms(mean: float, second: float, c: float, bias: float, sigma: float) -> tuple[float, float]:
    """The printed chi with all variances 1, and what it leaves out: ``-2 mu E[tanh u_n] E[sigma'_a sigma'_b]``.

    At the fixed point ``mu = E[tanh u_n]``.
    """
    pair = (second - mean**2) * c + mean**2
    gates = _pair(second + 1, pair + sigma, 0.0)  # z and r alike
    kept, gate_slopes, let = (_expected(gates, each) for each in (_sigma, _slope, lambda u: 1 - _sigma(u)))
    read = _expected([gates[0][:, :1]] * 2, _sigma, same=True) * second
    candidate = _pair(read + 1, kept * pair + sigma, bias)
    new = _expected(candidate, np.tanh)
    new_slope = _expected(candidate, lambda u: 1 - np.tanh(u) ** 2)
    printed = kept + (new + pair) * gate_slopes + let * new_slope * (kept + pair * gate_slopes)
    return printed, -2 * mean**2 * gate_slopes


def _pair(variance: float, covariance: float, mean: float) -> list[Any]:
    spread, c = math.sqrt(variance), covariance / variance
    first = _NODES[:, None] + 0 * _NODES
    other = c * _NODES[:, None] + math.sqrt(1 - c * c) * _NODES
    return [spread * first + mean, spread * other + mean]


def _expected(pair: list[Any], f: Any, same: bool = False) -> float:
    """``E f(u_a) f(u_b)``; of one column of nodes, ``E f(u)^2``."""
    if same:
        return float((_RULE.sum(1)[:, None] * f(pair[0]) ** 2).sum())
    return float((_RULE * f(pair[0]) * f(pair[1])).sum())


def _sigma(u: Any) -> Any:
    return 1 / (1 + np.exp(-u))


def _slope(u: Any) -> Any:
    return _sigma(u) * _sigma(-u)


def judge(measured: Measured) -> Verdict:
    """The repaired form is the slope everywhere, the printed one where the candidate has no bias only."""
    rows = measured["rows"]
    right = max(abs(row["repaired"] - row["slope"]) for row in rows)
    library = max(abs(row["library"] - row["slope"]) for row in rows)
    biased = min(abs(row["printed"] - row["slope"]) for row in rows if row["bias"])
    unbiased = max(abs(row["printed"] - row["slope"]) for row in rows if not row["bias"])
    details = "; ".join(
        f"bias {row['bias']:g}: slope {row['slope']:.6f}, repaired {row['repaired']:.6f}, printed {row['printed']:.6f}"
        for row in rows
    )
    holds = max(right, library, unbiased) <= _EXACT < biased
    return Verdict("holds" if holds else "does not hold", f"{details} (bar {_EXACT})")


def panels(measured: Measured) -> list[Panel]:
    """chi over the candidate's bias."""
    rows = measured["rows"]
    x = [row["bias"] for row in rows]
    curves = [
        Curve(x, [row["slope"] for row in rows], "slope of the map", "points", colour=6),
        Curve(x, [row["repaired"] for row in rows], "repaired", colour=0),
        Curve(x, [row["printed"] for row in rows], "printed", "dashed", colour=1),
    ]
    return [Panel("GRU: rate of the correlation", "bias of the candidate", "chi", curves)]


_BIASES = [0.0, 0.4, 0.8, 1.2]
TARGET = Target(
    id="gilboa-chi-gru",
    source="Gilboa et al. 2019, A.3.1",
    claim="The GRU's chi needs the term -2 mu E[tanh u_n] sigma_f^2 E[sigma' sigma'], which the printed form lacks; "
    "without it the rate is too large wherever the candidate has a bias.",
    published="A.3.1, without the term",
    choices="All variances 1, Sigma_z .9; mean, second moment and correlation of the fixed point are the library's.",
    settings={
        "small": {"biases": _BIASES, "input_correlation": 0.9},
        "paper": {"biases": _BIASES, "input_correlation": 0.9},
    },
    measure=measure,
    judge=judge,
    panels=panels,
    corrected=True,
)
