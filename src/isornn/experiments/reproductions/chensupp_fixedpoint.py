"""The minimalRNN's fixed point of the second moment: it exists, solves eq. 26, and is what networks show."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.special import stdtrit

from isornn.cells import Gate, Input, Minimal, Spec
from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Panel
from isornn.simulation import simulate
from isornn.theory import analyze

_SOLVED, _CLOSE = 1e-10, 0.05
_NODES = np.linspace(-12.0, 12.0, 20_001)  # evenly spaced: the error falls exponentially, for steep gates too
_WEIGHTS = np.exp(-(_NODES**2) / 2) / np.exp(-(_NODES**2) / 2).sum()


def measure(bench: Bench) -> Measured:
    """Q* of the library, F(Q*) by a rule of its own here, and untied networks for some of the specs."""
    generator, rows = bench.generator(), []
    for number in range(bench.settings["specs"]):
        bench.progress("random specs", number, bench.settings["specs"])
        weight, drive, bias_var, mean, variance = _drawn(generator)
        spec = Spec(Minimal(), {"u": Gate(weight, drive, bias_mean=mean, bias_var=bias_var)}, Input(variance, 1.0))
        second = analyze(spec).fixed_point.second_moment.number()
        row = {"Q": second, "F": None if second is None else _f(second, weight, drive, bias_var, mean, variance)}
        if number < bench.settings["simulated"]:
            networks = simulate(
                spec,
                width=bench.settings["width"],
                steps=bench.settings["steps"],
                networks=bench.settings["networks"],
                tangents=1,
                generator=bench.generator(1 + number),
            )
            row |= {
                "networks": networks.second_moment.value[-1].item(),
                "stderr": networks.second_moment.stderr[-1].item(),
                "of": bench.settings["networks"],
            }
        rows.append(row)
    return {"rows": rows}


def _drawn(generator: torch.Generator) -> tuple[float, ...]:
    """sigma_w^2, sigma_v^2 up to 8, sigma_b^2 up to 1, mu_b from -2 to 2, R from .25 to 4; uniform, R log-uniform."""

    w, v, b, m, r = torch.rand(5, generator=generator, dtype=torch.float64).tolist()
    return 8 * w, 8 * v, b, 4 * m - 2, math.exp(math.log(0.25) + r * math.log(16))


def _f(second: float, weight: float, drive: float, bias_var: float, mean: float, variance: float) -> float:
    """``F(Q) = E(1 - sigma)^2 / E(1 - sigma^2) - Q/R``, the argument of variance q and mean mu_b (eq. 26)."""
    spread = math.sqrt(weight * second + drive * variance + bias_var)
    gate = 1 / (1 + np.exp(-(spread * _NODES + mean)))
    return float((_WEIGHTS @ (1 - gate) ** 2) / (_WEIGHTS @ (1 - gate**2)) - second / variance)


def judge(measured: Measured) -> Verdict:
    """Every spec has a Q* with |F| below its bar; networks lie within 5 %, or their own intervals around Q*, 95 % over
    all specs together (Bonferroni; Student's, as a spec has few networks)."""
    rows = measured["rows"]
    missing = sum(row["Q"] is None for row in rows)
    solved = max(abs(row["F"]) for row in rows if row["F"] is not None)
    run = [row for row in rows if "networks" in row]
    off = [abs(row["networks"] / row["Q"] - 1) for row in run]
    scores = [abs(row["networks"] - row["Q"]) / row["stderr"] for row in run]
    limit = float(stdtrit(run[0]["of"] - 1, 1 - 0.025 / len(run)))
    outside = sum(gap > _CLOSE and score > limit for gap, score in zip(off, scores, strict=True))
    why = (
        f"{len(rows)} random specs, {missing} without a fixed point; |F(Q*)| at most {solved:.1e} (bar {_SOLVED}); "
        f"{len(run)} simulated, Q off by at most {100 * max(off):.1f} % and {max(scores):.1f} standard errors of "
        f"{run[0]['of']} networks, {outside} beyond 5 % and {limit:.1f} standard errors"
    )
    return Verdict("does not hold" if missing or outside or solved > _SOLVED else "holds", why)


def panels(measured: Measured) -> list[Panel]:
    """Networks against the fixed point."""
    run = [row for row in measured["rows"] if "networks" in row]
    top = max(row["Q"] for row in run)
    points = Curve([row["Q"] for row in run], [row["networks"] for row in run], "networks", "points")
    return [
        Panel("minimalRNN", "Q* by theory", "Q of networks", [points, Curve([0, top], [0, top], "equal", "dashed")])
    ]


TARGET = Target(
    id="chensupp-fixedpoint",
    source="Chen, Pennington & Schoenholz 2018, supplement, eqs. 23-26",
    claim="The second moment of the minimalRNN has a fixed point Q*, the root of F, which untied networks show.",
    published="eq. 26 (printed without its arguments; implemented as repaired, with mean mu_b and variance q)",
    choices="Random hyper-parameters, uniform: sigma_w^2 and sigma_v^2 up to 8, sigma_b^2 up to 1, mu_b in [-2, 2]; R "
    "log-uniform in [.25, 4]. F is computed here by a rule of its own, not by the library's.",
    settings={
        "small": {"specs": 50, "simulated": 12, "width": 500, "steps": 60, "networks": 4},
        "paper": {"specs": 50, "simulated": 50, "width": 1000, "steps": 100, "networks": 8},
    },
    measure=measure,
    judge=judge,
    panels=panels,
    corrected=True,
)
