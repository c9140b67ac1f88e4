"""A GRU whose two input sequences become the same at step 10: theory against networks, untied and tied."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isornn.cells import ChoGRU, Gate, Spec
from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Panel
from isornn.simulation import Simulation, simulate
from isornn.theory import moment_dynamics

_ALIKE_FROM = 10  # the step from which both copies see the same input
_QUANTITIES = {"second_moment": "second moment Q", "correlation": "correlation C"}
_CLOSE = {"second_moment": 0.03, "correlation": 0.1}
_FIXED_SIGMA = 0.5
_WEIGHTS = {False: "untied", True: "tied"}


def measure(bench: Bench) -> Measured:
    """Q and C over the steps, of the networks and of the theory, for each bias and both kinds of weights."""
    settings = bench.settings
    sigma = torch.ones(settings["steps"], dtype=torch.float64)
    sigma[: _ALIKE_FROM - 1] = 0.0
    cases: list[dict[str, Any]] = []
    for number, bias in enumerate(settings["biases"]):
        spec = _spec(bias, settings["candidate_weight_var"])
        untied = moment_dynamics(spec, len(sigma), input_correlation=sigma)
        for tied, name in _WEIGHTS.items():
            bench.progress(f"bias {bias}, {name}", 2 * number + tied, 2 * len(settings["biases"]))
            networks = _networks(bench, spec, sigma, tied, 2 * number + tied)
            own = moment_dynamics(spec, len(sigma), tied=True, input_correlation=sigma) if tied else untied
            for quantity in _QUANTITIES:
                measured = getattr(networks, quantity)
                cases.append(
                    {
                        "bias": bias,
                        "weights": name,
                        "quantity": quantity,
                        "networks": measured.value.tolist(),
                        "stderr": measured.stderr.tolist(),
                        "untied_theory": getattr(untied, quantity)[1:].tolist(),
                        "own_theory": getattr(own, quantity)[1:].tolist(),
                    }
                )
    return {"steps": list(range(1, len(sigma) + 1)), "cases": cases, "fixed_points": _fixed_points(bench)}


def _spec(bias: float, candidate_weight_var: float) -> Spec:
    gates = {"z": Gate(1.0, 1.0, bias_mean=bias), "r": Gate(1.0, 1.0), "n": Gate(candidate_weight_var, 1.0)}
    return Spec(ChoGRU(), gates)


def _networks(bench: Bench, spec: Spec, sigma: Tensor, tied: bool, stream: int) -> Simulation:
    return simulate(
        spec,
        width=bench.settings["width"],
        steps=len(sigma),
        networks=bench.settings["networks"],
        tied=tied,
        input_correlation=sigma,
        generator=bench.generator(stream),
    )


def _fixed_points(bench: Bench) -> list[dict[str, Any]]:
    """The bottom row: where Q and C end, over the bias, with inputs of one correlation below 1 throughout."""
    settings, found = bench.settings, []
    biases = settings["fixed_point_biases"]
    sigma = torch.full((settings["fixed_point_steps"],), _FIXED_SIGMA, dtype=torch.float64)
    for number, bias in enumerate(biases):
        spec = _spec(bias, settings["candidate_weight_var"])
        theory = moment_dynamics(spec, len(sigma), input_correlation=sigma)
        for tied, name in _WEIGHTS.items():
            bench.progress(f"fixed point, bias {bias}, {name}", 2 * number + tied, 2 * len(biases))
            networks = _networks(bench, spec, sigma, tied, 1000 + 2 * number + tied)
            for quantity in _QUANTITIES:
                measured = getattr(networks, quantity)
                found.append(
                    {
                        "bias": bias,
                        "weights": name,
                        "quantity": quantity,
                        "networks": float(measured.value[-1]),
                        "stderr": float(measured.stderr[-1]),
                        "theory": float(getattr(theory, quantity)[-1]),
                    }
                )
    return found


def judge(measured: Measured) -> Verdict:
    """Untied networks are within the stated distance of the untied theory; tied ones are farther away on average."""
    largest = {quantity: max(_gaps(measured, quantity, "untied")) for quantity in _QUANTITIES}
    parts, holds = [], True
    for quantity, name in _QUANTITIES.items():
        untied, tied = (_mean(_gaps(measured, quantity, weights)) for weights in ("untied", "tied"))
        own = _mean(_gaps(measured, quantity, "tied", "own_theory"))
        holds &= largest[quantity] <= _CLOSE[quantity] and tied > untied
        parts.append(
            f"{name}: untied networks off by at most {largest[quantity]:.3f} (bar {_CLOSE[quantity]}); on average over "
            f"biases the largest gap is {untied:.3f} untied, {tied:.3f} tied, {own:.3f} tied from tied theory"
        )
        untied, tied = (_mean(_fixed_gaps(measured, quantity, weights)) for weights in ("untied", "tied"))
        furthest = max(_fixed_gaps(measured, quantity, "untied"))
        holds &= furthest <= _CLOSE[quantity]
        parts.append(
            f"{name}'s fixed point over the bias: untied networks off by at most {furthest:.3f}; on average "
            f"{untied:.3f} untied, {tied:.3f} tied"
        )
    return Verdict("holds" if holds else "does not hold", "; ".join(parts))


def _fixed_gaps(measured: Measured, quantity: str, weights: str) -> list[float]:
    return [
        abs(one["networks"] - one["theory"])
        for one in measured["fixed_points"]
        if (one["quantity"], one["weights"]) == (quantity, weights)
    ]


def _gaps(measured: Measured, quantity: str, weights: str, theory: str = "untied_theory") -> list[float]:
    """For each bias the largest distance over the steps."""
    return [
        max(abs(a - b) for a, b in zip(case["networks"], case[theory], strict=True))
        for case in measured["cases"]
        if (case["quantity"], case["weights"]) == (quantity, weights)
    ]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def panels(measured: Measured) -> list[Panel]:
    """Trajectories: networks as points, the papers' theory dashed, that of tied weights as a line."""
    steps, found = measured["steps"], []
    for quantity, label in _QUANTITIES.items():
        for weights in _WEIGHTS.values():
            cases = [c for c in measured["cases"] if (c["quantity"], c["weights"]) == (quantity, weights)]
            curves = []
            for colour, case in enumerate(cases):
                curves += [
                    Curve(steps, case["networks"], f"bias {case['bias']}", "points", case["stderr"], colour),
                    Curve(steps, case["untied_theory"], "" if colour else "theory, untied", "dashed", colour=colour),
                    Curve(steps, case["own_theory"], "" if colour else f"theory, {weights}", colour=colour),
                ]
            found.append(Panel(f"{label}, {weights} weights", "step", label, curves))
    for quantity, label in _QUANTITIES.items():
        for weights in _WEIGHTS.values():
            ends = [one for one in measured["fixed_points"] if (one["quantity"], one["weights"]) == (quantity, weights)]
            biases = [one["bias"] for one in ends]
            curves = [
                Curve(biases, [one["networks"] for one in ends], "networks", "points", [one["stderr"] for one in ends]),
                Curve(biases, [one["theory"] for one in ends], "theory, untied", "dashed"),
            ]
            found.append(Panel(f"fixed point, {weights} weights", "forget bias", label, curves))
    return found


_COMMON = {
    "steps": 40,
    "biases": [-1.0, 1.0, 3.0],
    "candidate_weight_var": 4.0,
    "fixed_point_biases": [-2.0, -1.0, 0.0, 1.0, 2.0, 3.0],
    "fixed_point_steps": 120,
}
TARGET = Target(
    id="gilboa-fig5",
    source="Gilboa et al. 2019, figure 5 (D.1)",
    claim="Mean field theory follows Q and C of untied GRU networks through a change of the input's correlation; "
    "networks with tied weights deviate.",
    published="no numbers; curves",
    choices="Biases of the update gate, the other hyper-parameters and the width are unsaid: -1, 1, 3; weight_var 1, 4 "
    "on the candidate, input_var 1. The bottom row's inputs have correlation 0.5 throughout, as at 1 both copies are "
    "one. The caption speaks of C, the text of Q: both are drawn. Bars: Q within 0.03, C within 0.1.",
    settings={
        "small": {**_COMMON, "width": 500, "networks": 4},
        "paper": {**_COMMON, "width": 1000, "networks": 16},
    },
    measure=measure,
    judge=judge,
    panels=panels,
)
