"""Dynamical isometry as the recurrent weights vanish and the forget gate opens."""

from __future__ import annotations

from itertools import pairwise

from isornn.cells import Gate, Peephole, Spec
from isornn.cells.starts import preset
from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Panel
from isornn.theory import analyze

_PUBLISHED_XI = 74.5  # follows from sigma(5)^2
_FALLING = "weight_var = 10^-b"
_PATHS = {_FALLING: lambda bias: 10.0**-bias, "weight_var = 1": lambda bias: 1.0}


def measure(bench: Bench) -> Measured:
    """m1, variance and xi over the forget gate's bias b, along weight_var = w 10^-b and with weight_var = 1."""
    rows = []
    for path, weight_at in _PATHS.items():
        for number, bias in enumerate(bench.settings["biases"]):
            bench.progress(path, number, len(bench.settings["biases"]))
            weight = weight_at(bias)
            gates = {name: Gate(weight_var=weight, input_var=weight) for name in "igo"}
            answer = analyze(Spec(Peephole(), gates | {"f": Gate(weight, weight, bias_mean=bias)}))
            rows.append(
                {
                    "path": path,
                    "bias": bias,
                    "m1": answer.jacobian.mean.number(),
                    "variance": answer.jacobian.variance.number(),
                    "xi": answer.xi.number(),
                }
            )
    return {"rows": rows, "xi_of_preset": analyze(preset("gilboa-peephole-critical")).xi.number()}


def judge(measured: Measured) -> Verdict:
    """Along the falling weights |1 - m1| and the variance fall and xi grows at every step; the preset's xi is 74.5."""
    rows = [row for row in measured["rows"] if row["path"] == _FALLING]
    monotone = all(
        abs(1 - b["m1"]) < abs(1 - a["m1"]) and b["variance"] < a["variance"] and b["xi"] > a["xi"]
        for a, b in pairwise(rows)
    )
    xi, last = measured["xi_of_preset"], rows[-1]
    why = (
        f"{_FALLING}: at b = {last['bias']} m1 {last['m1']:.6f}, variance {last['variance']:.1e}, xi {last['xi']:.0f}, "
        f"{'' if monotone else 'not '}monotone over {len(rows)} biases; the preset's xi is {xi:.1f}"
    )
    return Verdict("holds" if monotone and abs(xi - _PUBLISHED_XI) < 0.05 else "does not hold", why)


def panels(measured: Measured) -> list[Panel]:
    """Distance of m1 from 1, variance and xi."""
    found = []
    for name, label in (("m1", "|1 - m1|"), ("variance", "variance"), ("xi", "xi (steps)")):
        curves = []
        for path in _PATHS:
            rows = [row for row in measured["rows"] if row["path"] == path]
            values = [None if row[name] is None else abs(1 - row[name]) if name == "m1" else row[name] for row in rows]
            curves.append(Curve([row["bias"] for row in rows], values, path))
        found.append(Panel(label, "forget bias b", label, curves, log=("y",)))
    return found


_BIASES = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
TARGET = Target(
    id="gilboa-isometry",
    source="Gilboa et al. 2019, section 5 and D.4",
    claim="As recurrent weights go to 0 and the forget bias grows, m1 goes to 1, the variance of the squared singular "
    "values to 0, and xi diverges.",
    published="no number; of the critical peephole LSTM xi = 74.5 follows from sigma(5)^2",
    choices="Peephole LSTM; input_var equal to weight_var; both limits are taken together, weight_var = 10^-b. With a "
    "weight_var that stays, the variance stops at 2 E a^2 E v.",
    settings={"small": {"biases": _BIASES}, "paper": {"biases": _BIASES}},
    measure=measure,
    judge=judge,
    panels=panels,
)
