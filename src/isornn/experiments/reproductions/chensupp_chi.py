"""The minimalRNN's correlation: its rate by eq. 42, by the slope of its map, and in networks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from isornn.cells import Gate, Input, Minimal, Spec
from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Panel
from isornn.simulation import simulate
from isornn.theory import analyze, correlation_map, moment_dynamics

_EXACT, _CLOSE = 1e-5, 0.05
_STEP = 1e-4
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(120)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


def measure(bench: Bench) -> Measured:
    """chi of eq. 42 by a rule of its own here, the library's chi, the slope of the map, and networks' correlations."""
    rows: list[dict[str, Any]] = []
    for number, (weight, drive, bias_var, mean, sigma) in enumerate(bench.settings["specs"]):
        bench.progress("specs", number, len(bench.settings["specs"]))
        spec = Spec(Minimal(), {"u": Gate(weight, drive, bias_mean=mean, bias_var=bias_var)}, Input(1.0, sigma))
        answer = analyze(spec)
        rest, second = (part.number() for part in (answer.fixed_point.correlation, answer.fixed_point.second_moment))
        assert rest is not None
        assert second is not None
        around = torch.tensor([rest - _STEP, rest, min(rest + _STEP, 1.0)], dtype=torch.float64)
        below, at, above = correlation_map(spec, around).tolist()
        slope = (above - below) / (2 * _STEP) if rest < 1 - _STEP else (at - below) / _STEP
        steps = bench.settings["steps"]
        networks = simulate(
            spec,
            width=bench.settings["width"],
            steps=steps,
            networks=bench.settings["networks"],
            initial_variance=second,
            tangents=1,
            generator=bench.generator(number),
        )
        rows.append(
            {
                "spec": [weight, drive, bias_var, mean, sigma],
                "rest": rest,
                "eq42": _eq42(second, rest, weight, drive, bias_var, mean, sigma),
                "chi": answer.chi.number(),
                "slope": slope,
                "theory": moment_dynamics(spec, steps, initial_variance=second).correlation[1:].tolist(),
                "networks": networks.correlation.value.tolist(),
                "stderr": networks.correlation.stderr.tolist(),
            }
        )
    return {"rows": rows}


def _eq42(second: float, c: float, weight: float, drive: float, bias_var: float, mean: float, sigma: float) -> float:
    """``E sigma sigma + sigma_w^2 (Q C + R Sigma) E sigma' sigma'``, R = 1, by q* J_- as said under choices.

    The state's mean is 0, so that the cosine of the paper and the correlation are the same.
    """
    variance = weight * second + drive + bias_var
    pair = (weight * second * c + drive * sigma + bias_var) / variance
    spread = math.sqrt(variance)
    first = spread * _NODES[:, None] + mean + 0 * _NODES
    other = spread * (pair * _NODES[:, None] + math.sqrt(max(0.0, 1 - pair * pair)) * _NODES) + mean
    gates = [1 / (1 + np.exp(-u)) for u in (first, other)]
    rule = _WEIGHTS[:, None] * _WEIGHTS
    kept = (rule * gates[0] * gates[1]).sum()
    moved = (rule * gates[0] * (1 - gates[0]) * gates[1] * (1 - gates[1])).sum()
    return float(kept + weight * (second * c + sigma) * moved)


def judge(measured: Measured) -> Verdict:
    """Formula, library and slope agree; networks follow the predicted correlation."""
    rows = measured["rows"]
    formula = max(abs(row["eq42"] - row["chi"]) for row in rows)
    slope = max(abs(row["eq42"] - row["slope"]) for row in rows if row["rest"] < 1 - _STEP)
    off = max(max(abs(a - b) for a, b in zip(row["networks"], row["theory"], strict=True)) for row in rows)
    why = (
        f"{len(rows)} specs: eq. 42 and the library's chi differ by {formula:.1e}, eq. 42 and the map's slope by "
        f"{slope:.1e} (bars {_EXACT}); correlations of networks off by at most {off:.3f} (bar {_CLOSE})"
    )
    return Verdict("holds" if max(formula, slope) <= _EXACT and off <= _CLOSE else "does not hold", why)


def panels(measured: Measured) -> list[Panel]:
    """Correlations over time."""
    curves = []
    for colour, row in enumerate(measured["rows"]):
        steps = list(range(1, len(row["theory"]) + 1))
        label = "sigma_w^2 {:g}, sigma_v^2 {:g}, sigma_b^2 {:g}, mu_b {:g}, Sigma {:g}".format(*row["spec"])
        curves += [Curve(steps, row["networks"], label, "points", row["stderr"], colour)]
        curves += [Curve(steps, row["theory"], style="dashed", colour=colour)]
    return [Panel("minimalRNN: networks, and theory dashed", "step", "correlation C", curves)]


_SPECS = [[6.0, 1.0, 0.0, 0.0, 0.8], [3.0, 2.0, 0.5, 1.0, 0.5], [1.0, 1.0, 0.0, 3.0, 0.9], [6.0, 1.0, 0.0, 0.0, 1.0]]
TARGET = Target(
    id="chensupp-chi",
    source="Chen, Pennington & Schoenholz 2018, supplement, eqs. 39-42",
    claim="Correlations settle at the rate chi of eq. 42, with J_- as derived, the same as chi_1 at C = 1, and "
    "networks follow the map.",
    published="eq. 42; J_- is defined only in the missing main text",
    choices="q* J_- = (sigma_w^2 - sigma_v^2) R Sigma - sigma_b^2, derived. Four sets of hyper-parameters; copies "
    "start independent at the fixed point's second moment.",
    settings={
        "small": {"specs": _SPECS, "width": 700, "steps": 30, "networks": 6},
        "paper": {"specs": _SPECS, "width": 1000, "steps": 60, "networks": 32},
    },
    measure=measure,
    judge=judge,
    panels=panels,
)
