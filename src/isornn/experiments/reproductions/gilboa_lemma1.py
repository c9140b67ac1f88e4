"""Lemma 1: the mean squared singular value of the Jacobian is the slope of the correlation map at C = 1."""

from __future__ import annotations

import torch

from isornn.cells import Spec, cell_named
from isornn.cells.random_specs import random_spec
from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Panel
from isornn.theory import TheoryMissing, analyze, correlation_map

_CELLS = ("vanilla", "minimal", "gru_cho", "peephole")
_STEP = 1e-4
_EXACT, _BY_DIFFERENCE = 1e-6, 1e-5


def measure(bench: Bench) -> Measured:
    """For random specs with identical inputs: m1, chi, and the slope of the map by finite differences from the left."""
    generator, found = bench.generator(), []
    for number, name in enumerate(_CELLS):
        bench.progress(name, number, len(_CELLS))
        cell, left = cell_named(name), bench.settings["specs"]
        while left:
            spec = random_spec(cell, generator).replace("input.correlation", 1.0)
            answer = analyze(spec)
            try:
                slope = _slope(spec)
            except TheoryMissing:  # no fixed point, or no variance over units: the lemma says nothing of such a spec
                continue
            left -= 1
            found.append(
                {"cell": name, "m1": answer.jacobian.mean.number(), "chi": answer.chi_1.number(), "slope": slope}
            )
    return {"specs": found}


def _slope(spec: Spec) -> float:
    """Of C -> C' at C = 1, where it ends: three points to the left, an error of order step^2."""
    places = torch.tensor([1.0, 1 - _STEP, 1 - 2 * _STEP], dtype=torch.float64)
    at_1, near, far = correlation_map(spec, places).tolist()
    return (1.5 * at_1 - 2 * near + 0.5 * far) / _STEP


def judge(measured: Measured) -> Verdict:
    """Both differences are within their bars in every spec."""
    exact = max(abs(one["m1"] / one["chi"] - 1) for one in measured["specs"])
    difference = max(abs(one["m1"] - one["slope"]) / max(1.0, one["m1"]) for one in measured["specs"])
    holds = exact <= _EXACT and difference <= _BY_DIFFERENCE
    why = (
        f"{len(measured['specs'])} random specs: m1 and chi differ by at most {exact:.1e} (bar {_EXACT}), m1 and the "
        f"map's finite difference by {difference:.1e} (bar {_BY_DIFFERENCE})"
    )
    return Verdict("holds" if holds else "does not hold", why)


def panels(measured: Measured) -> list[Panel]:
    """m1 against the slope of the map."""
    curves = []
    for name in _CELLS:
        mine = [one for one in measured["specs"] if one["cell"] == name]
        curves.append(Curve([one["slope"] for one in mine], [one["m1"] for one in mine], name, "points"))
    return [Panel("Lemma 1", "slope of the correlation map at C = 1", "m1", curves, log=("x", "y"))]


TARGET = Target(
    id="gilboa-lemma1",
    source="Gilboa et al. 2019, lemma 1 (eq. 14)",
    claim="m1 of the state-to-state Jacobian equals chi at C* = 1 with Sigma_z = 1, for every cell of one state.",
    published="an exact identity",
    choices="Random specs by the library's stated law, the reset gate's biases among them; the slope of the map is "
    "also taken by finite differences, which use neither formula.",
    settings={"small": {"specs": 25}, "paper": {"specs": 250}},
    measure=measure,
    judge=judge,
    panels=panels,
)
