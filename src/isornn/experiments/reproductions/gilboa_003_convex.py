"""chi = 1 and m1 = 1 together only where the stable correlation is 1."""

from __future__ import annotations

from isornn.cells import Peephole
from isornn.cells.random_specs import random_spec
from isornn.experiments.target import UNTESTED, Bench, Measured, Target, Verdict
from isornn.figures import Curve, Mark, Panel
from isornn.theory import analyze

_APART = 1 - 1e-6  # correlations above it count as 1


def measure(bench: Bench) -> Measured:
    """chi, m1 and C* of random peephole LSTMs with identical inputs; half of them with large forget biases."""
    generator, rows = bench.generator(), []
    for number in range(bench.settings["specs"]):
        bench.progress("random specs", number, bench.settings["specs"])
        spec = random_spec(Peephole(), generator).replace("input.correlation", 1.0)
        if number % 2:
            spec = spec.replace("f.bias_mean", float(spec.gates["f"].bias_mean) + 3.0)
        answer = analyze(spec)
        values = (answer.chi, answer.jacobian.mean, answer.fixed_point.correlation)
        chi, m1, correlation = (value.number() for value in values)
        if None not in (chi, m1, correlation):
            rows.append({"chi": chi, "m1": m1, "correlation": correlation})
    return {"rows": rows}


def judge(measured: Measured) -> Verdict:
    """Where C* < 1, m1 is above 1 and chi below it, in every spec."""
    apart = [row for row in measured["rows"] if row["correlation"] < _APART]
    against = [row for row in apart if not (row["m1"] > 1 > row["chi"])]
    if not apart:
        return Verdict(UNTESTED, "no spec with C* < 1 was drawn")
    closest = min(max(abs(row["m1"] - 1), abs(row["chi"] - 1)) for row in apart)
    why = (
        f"{len(apart)} of {len(measured['rows'])} specs have C* < 1; {len(against)} of them have m1 <= 1 or chi >= 1; "
        f"both come within {closest:.3f} of 1 at the closest"
    )
    return Verdict("does not hold" if against else "holds", why)


def panels(measured: Measured) -> list[Panel]:
    """chi against m1."""
    kinds = (("C* = 1", lambda c: c >= _APART), ("C* < 1", lambda c: c < _APART))
    curves = []
    for label, wanted in kinds:
        rows = [row for row in measured["rows"] if wanted(row["correlation"])]
        curves.append(Curve([row["m1"] for row in rows], [row["chi"] for row in rows], label, "points"))
    return [Panel("peephole LSTM, Sigma_z = 1", "m1", "chi at C*", curves, marks=[Mark("x", 1.0), Mark("y", 1.0)])]


TARGET = Target(
    id="gilboa-003-convex",
    source="Gilboa et al. 2019, earlier version (section 4)",
    claim="By convexity of the correlation map, chi = 1 and m1 = 1 hold together only if C* = 1.",
    published="a statement",
    choices="The formulas are missing from the text; tested as: C* < 1 means m1 > 1 and chi < 1. Random specs, half of "
    "them with the forget bias raised by 3.",
    settings={"small": {"specs": 300}, "paper": {"specs": 3000}},
    measure=measure,
    judge=judge,
    panels=panels,
)
