"""The law of an LSTM's cell state: Algorithm 1 against untied networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isornn.cells import LSTM, Gate, Spec
from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Histogram, Panel
from isornn.nn import draws
from isornn.nn.random_network import RandomNetwork
from isornn.theory import stationary_samples

_CLOSE = 0.06  # Kolmogorov-Smirnov distance of pooled units
_DIFFERENT = 0.05  # the same between the two laws, scaled to equal spread
_BINS = 60
_SPECS = {
    "all variances 1, forget bias 1": Spec(LSTM(), {k: Gate(1.0, 1.0, bias_mean=float(k == "f")) for k in "ifgo"}),
    "steep candidates, forget bias -2": Spec(
        LSTM(),
        {"i": Gate(0.1, bias_mean=3.0), "f": Gate(1.0, 1.0, bias_mean=-2.0), "g": Gate(9.0, 25.0), "o": Gate(1.0)},
    ),
}


def measure(bench: Bench) -> Measured:
    """Cell states of networks of width N after some steps, all units pooled, and samples by the theory."""
    cases: list[dict[str, Any]] = []
    for number, (name, spec) in enumerate(_SPECS.items()):
        bench.progress(name, number, len(_SPECS))
        networks = torch.cat([_cell_states(spec, bench, 100 * number + k) for k in range(bench.settings["networks"])])
        theory = stationary_samples(spec, generator=bench.generator(1000 + number))
        low, high = theory.quantile(0.001).item(), theory.quantile(0.999).item()
        edges = torch.linspace(low, high, _BINS + 1, dtype=torch.float64)
        cases.append(
            {
                "name": name,
                "std": float(networks.std()),
                "theory_std": float(theory.std()),
                "distance": _distance(networks, theory),
                "edges": edges.tolist(),
                "heights": _heights(networks, edges),
                "theory_heights": _heights(theory, edges),
            }
        )
    first, second = (stationary_samples(spec, generator=bench.generator(2000)) for spec in _SPECS.values())
    return {
        "cases": cases,
        "between": _distance(first, second),
        "between_shapes": _distance(_scaled(first), _scaled(second)),
    }


def _cell_states(spec: Spec, bench: Bench, stream: int) -> Tensor:
    generator, width = bench.generator(stream), bench.settings["width"]
    network = RandomNetwork.drawn(spec, width, width, generator)
    states: tuple[Tensor, ...] = (torch.zeros(width, dtype=torch.float64),) * 2
    for _ in range(bench.settings["steps"]):
        x = draws.normal((width,), generator)
        states = network.advance(x, x)(*states)
        network = network.redrawn(generator)
    return states[1]


def _scaled(samples: Tensor) -> Tensor:
    return samples / samples.std()


def _distance(first: Tensor, second: Tensor) -> float:
    """Kolmogorov and Smirnov's, of two samples."""
    places = torch.cat([first, second]).sort().values
    shares = [torch.searchsorted(one.sort().values, places, right=True) / len(one) for one in (first, second)]
    return float((shares[0] - shares[1]).abs().max())


def _heights(samples: Tensor, edges: Tensor) -> list[float]:
    counts = torch.histogram(samples.double(), edges).hist
    return (counts / len(samples) / (edges[1] - edges[0])).tolist()


def judge(measured: Measured) -> Verdict:
    """Both histograms agree with the theory's, and their shapes differ."""
    close = all(case["distance"] <= _CLOSE for case in measured["cases"])
    holds = close and measured["between_shapes"] >= _DIFFERENT
    details = "; ".join(
        f"{case['name']}: KS distance {case['distance']:.3f} (bar {_CLOSE}), standard deviation {case['std']:.3f} "
        f"(theory {case['theory_std']:.3f})"
        for case in measured["cases"]
    )
    between = (
        f"{measured['between']:.2f} between the two, {measured['between_shapes']:.2f} after scaling to equal spread"
    )
    return Verdict("holds" if holds else "does not hold", f"{details}; {between}")


def panels(measured: Measured) -> list[Panel]:
    """Histograms of both, on each other."""
    return [
        Panel(
            case["name"],
            "cell state c",
            "density",
            histograms=[
                Histogram(case["edges"], case["heights"], "networks"),
                Histogram(case["edges"], case["theory_heights"], "Algorithm 1"),
            ],
        )
        for case in measured["cases"]
    ]


TARGET = Target(
    id="gilboa-fig7",
    source="Gilboa et al. 2019, figure 7 (D.3)",
    claim="Algorithm 1's samples of the LSTM's cell state follow the histogram of an untied network of width 200, and "
    "the shape depends on the hyper-parameters.",
    published="no numbers; histograms",
    choices="Both hyper-parameter sets are unsaid. Units of one network share their fate, so several networks are "
    "pooled; the bar is a KS distance of .06, and shapes count as different from .05 scaled to equal spread. Not every "
    "pair differs: long memories (forget bias 4, steep candidates) have the first one's shape, at a distance of .01.",
    settings={
        "small": {"width": 200, "steps": 150, "networks": 8},
        "paper": {"width": 200, "steps": 150, "networks": 64},
    },
    measure=measure,
    judge=judge,
    panels=panels,
)
