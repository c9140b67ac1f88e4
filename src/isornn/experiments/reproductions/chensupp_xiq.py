"""How fast the minimalRNN's second moment converges: xi_Q of eq. 38 against the decay itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from isornn.cells import Gate, Minimal, Spec
from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Panel
from isornn.theory import analyze, moment_dynamics

_CLOSE = 0.01
_NODES = np.linspace(-12.0, 12.0, 20_001)  # evenly spaced: the error falls exponentially, for steep gates too
_WEIGHTS = np.exp(-(_NODES**2) / 2) / np.exp(-(_NODES**2) / 2).sum()
_WINDOW = (1e-3, 1e-9)  # of |q^t - q*| over q*: late enough to be linear, early enough to be above rounding


def measure(bench: Bench) -> Measured:
    """|q^t - q*| from a state at 0, the slope of its logarithm, and ln lambda_Q."""
    rows: list[dict[str, Any]] = []
    for number, (weight, drive, bias_var, mean) in enumerate(bench.settings["specs"]):
        bench.progress("specs", number, len(bench.settings["specs"]))
        spec = Spec(Minimal(), {"u": Gate(weight, drive, bias_mean=mean, bias_var=bias_var)})
        rest = analyze(spec).fixed_point.second_moment.number()
        second = moment_dynamics(spec, bench.settings["steps"]).second_moment.tolist()
        assert rest is not None
        gaps = [weight * abs(value - rest) / (weight * rest + drive + bias_var) for value in second]
        inside = [(t, math.log(gap)) for t, gap in enumerate(gaps) if _WINDOW[1] < gap < _WINDOW[0]]
        slope = float(np.polyfit([t for t, _ in inside], [log for _, log in inside], 1)[0])
        predicted = math.log(_lambda_q(rest, weight, drive, bias_var, mean))
        rows.append({"spec": [weight, drive, bias_var, mean], "gaps": gaps, "slope": slope, "predicted": predicted})
    return {"rows": rows}


def _lambda_q(second: float, weight: float, drive: float, bias_var: float, mean: float) -> float:
    """``E[sigma^2 + sigma_w^2/sqrt(q*) ((Q* + R) sigma - R) z sigma']``, R = 1 (eq. 34; eq. 38 has its logarithm)."""
    spread = math.sqrt(weight * second + drive + bias_var)
    gate = 1 / (1 + np.exp(-(spread * _NODES + mean)))
    moved = weight / spread * ((second + 1) * gate - 1) * _NODES * gate * (1 - gate)
    return float(_WEIGHTS @ (gate**2 + moved))


def judge(measured: Measured) -> Verdict:
    """Slopes within 1 %."""
    off = [abs(row["slope"] / row["predicted"] - 1) for row in measured["rows"]]
    gap = f"{100 * max(off):.3f} %"
    why = f"{len(off)} specs: slope of ln|q^t - q*| and ln lambda_Q = -1/xi_Q differ by at most {gap} (bar 1 %)"
    return Verdict("holds" if max(off) <= _CLOSE else "does not hold", why)


def panels(measured: Measured) -> list[Panel]:
    """The decay, and the predicted slope through its middle."""
    curves = []
    for colour, row in enumerate(measured["rows"]):
        inside = [(t, gap) for t, gap in enumerate(row["gaps"]) if _WINDOW[1] < gap]
        steps = [t for t, _ in inside]
        middle, height = inside[len(inside) // 2]
        label = "sigma_w^2 {:g}, sigma_v^2 {:g}, sigma_b^2 {:g}, mu_b {:g}".format(*row["spec"])
        line = [height * math.exp(row["predicted"] * (t - middle)) for t in steps]
        curves += [Curve(steps, [gap for _, gap in inside], label, "points", colour=colour)]
        curves += [Curve(steps, line, style="dashed", colour=colour)]
    return [Panel("minimalRNN: decay to the fixed point", "step", "|q^t - q*| / q*", curves, log=("y",))]


_SETTINGS = {
    "specs": [[6.0, 1.0, 0.0, 0.0], [3.0, 2.0, 0.5, 1.0], [1.0, 1.0, 0.0, 4.0], [20.0, 0.5, 0.0, -1.0]],
    "steps": 600,
}
TARGET = Target(
    id="chensupp-xiq",
    source="Chen, Pennington & Schoenholz 2018, supplement, eqs. 34, 37, 38",
    claim="|q^t - q*| decays as exp(-t/xi_Q) with xi_Q = -1/ln lambda_Q.",
    published="eq. 38 (printed without a factor z; implemented as repaired)",
    choices="Four sets of hyper-parameters, the first two with lambda_Q .450546 and .566458. `analyze` gives another "
    "xi_q, of mean and second moment together: the mean, which stays 0 here, may be the slower of the two.",
    settings={"small": _SETTINGS, "paper": _SETTINGS},
    measure=measure,
    judge=judge,
    panels=panels,
    corrected=True,
)
