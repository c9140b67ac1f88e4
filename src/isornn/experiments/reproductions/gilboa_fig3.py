"""Squared singular values of an untied peephole LSTM's Jacobian against the theory: moments, and the whole density."""

from __future__ import annotations

from typing import Any

import torch

from isornn.cells import Gate, Peephole, Spec
from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Histogram, Mark, Panel
from isornn.simulation import simulate
from isornn.theory import analyze, spectrum

_BINS = 60
_CLOSE = 0.03  # relative, of the mean and of the standard deviation
_CONCENTRATED = 0.05  # standard deviation near isometry
_SPECS = {
    "standard": Spec(Peephole(), {k: Gate(1.0, 1.0, bias_mean=float(k == "f")) for k in "ifgo"}),
    "near isometry": Spec(Peephole(), {k: Gate(1e-4, 1e-2, bias_mean=5.0 * (k == "f")) for k in "ifgo"}),
}


def measure(bench: Bench) -> Measured:
    """The Jacobian of the last step of untied networks, and the theory's spectrum of it."""
    cases: list[dict[str, Any]] = []
    for number, (name, spec) in enumerate(_SPECS.items()):
        bench.progress(name, number, len(_SPECS))
        networks = simulate(
            spec,
            width=bench.settings["width"],
            steps=bench.settings["steps"],
            networks=bench.settings["networks"],
            tangents=1,
            singular_values=True,
            generator=bench.generator(number),
        )
        assert networks.spectrum is not None
        squared = networks.spectrum.singular_values.square().flatten()
        low, high = float(squared.min()), float(squared.max())
        edges = torch.linspace(low - 0.02 * (high - low), high + 0.02 * (high - low), _BINS + 1, dtype=torch.float64)
        counts = torch.histogram(squared.double(), edges).hist
        moments, law = analyze(spec).jacobian, spectrum(spec)
        cases.append(
            {
                "name": name,
                "edges": edges.tolist(),
                "heights": (counts / counts.sum() / (edges[1] - edges[0])).tolist(),
                "mean": float(squared.mean()),
                "std": float(squared.std()),
                "theory_mean": moments.mean.number(),
                "theory_std": (moments.variance.number() or 0.0) ** 0.5,
                "x": law.x.tolist(),
                "density": law.density.tolist(),
                "distance": _distance(squared, law),
            }
        )
    return {"cases": cases}


def _distance(squared: torch.Tensor, law: Any) -> float:
    """Kolmogorov and Smirnov's, between the pooled singular values and the law."""
    ordered = squared.double().sort().values
    below = law.distribution(ordered)
    ranks = torch.arange(len(ordered) + 1, dtype=torch.float64) / len(ordered)
    return float(torch.maximum((below - ranks[:-1]).abs(), (below - ranks[1:]).abs()).max())


def judge(measured: Measured) -> Verdict:
    """Means and standard deviations agree, and near isometry the values concentrate near 1."""
    gaps = [abs(case[key] / case[f"theory_{key}"] - 1) for case in measured["cases"] for key in ("mean", "std")]
    near = next(case for case in measured["cases"] if case["name"] == "near isometry")
    holds = max(gaps) <= _CLOSE and near["std"] <= _CONCENTRATED
    details = "; ".join(
        f"{case['name']}: mean {case['mean']:.4f} (theory {case['theory_mean']:.4f}), standard deviation "
        f"{case['std']:.4f} ({case['theory_std']:.4f}), KS distance to the predicted density {case['distance']:.4f}"
        for case in measured["cases"]
    )
    return Verdict("holds" if holds else "does not hold", details)


def panels(measured: Measured) -> list[Panel]:
    """Histograms with the predicted density; dotted lines at the theory's mean and one standard deviation off."""
    found = []
    for case in measured["cases"]:
        mean, std = case["theory_mean"], case["theory_std"]
        marks = [Mark("x", mean, "theory: mean, +- std"), Mark("x", mean - std), Mark("x", mean + std)]
        measured_lines = (case["mean"], case["mean"] - case["std"], case["mean"] + case["std"])
        marks += [Mark("x", x, "" if k else "networks: mean, +- std", "dashed") for k, x in enumerate(measured_lines)]
        first, *_, last = case["edges"]
        shown = [(x, y) for x, y in zip(case["x"], case["density"], strict=True) if first <= x <= last]
        density = Curve([x for x, _ in shown], [y for _, y in shown], "theory: density", colour=1)
        bars = Histogram(case["edges"], case["heights"], "networks")
        found.append(Panel(case["name"], "squared singular value", "density", [density], [bars], marks=marks))
    return found


TARGET = Target(
    id="gilboa-fig3",
    source="Gilboa et al. 2019, figure 3",
    claim="Mean and spread of the squared singular values of an untied peephole LSTM's Jacobian follow the theory; "
    "near isometry they concentrate near 1.",
    published="no numbers; histograms",
    choices="Both hyper-parameter sets and the width are unsaid: all variances 1 with forget bias 1, and weight_var "
    "1e-4, input_var .01, forget bias 5. Bars: 3 % in mean and standard deviation; .05 for the spread near isometry.",
    settings={
        "small": {"width": 500, "steps": 100, "networks": 2},
        "paper": {"width": 1500, "steps": 100, "networks": 8},
    },
    measure=measure,
    judge=judge,
    panels=panels,
)
