"""Algorithm 1 at its published sizes: the error of the LSTM's second moment, its cost, and the tails of c."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping

import torch
from torch import Tensor

from isornn.cells import LSTM, Gate, Spec
from isornn.experiments.reproductions import _by_seeds as by_seeds
from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Mark, Panel
from isornn.theory import analyze, stationary_samples

_SPECS: Mapping[str, Spec] = {
    f"forget bias {bias:g}": Spec(LSTM(), {k: Gate(1.0, 1.0, bias_mean=bias * (k == "f")) for k in "ifgo"})
    for bias in (1.0, 4.0)
}
_PUBLISHED = 100  # samples, and iterations


def second_moment(spec: Spec, samples: int, iterations: int, steps: int, generator: torch.Generator) -> float:
    """E h^2 after so many steps of the moment map, each as printed: draw u of i, f, g and update c, ``iterations``
    times from c = 0, then the second moment of h = sigma(u_o) tanh(c); its mean is 0, as no candidate has a bias."""
    second = 0.0
    for _ in range(steps):
        scales = {name: _scale(spec, name, second) for name in "ifgo"}
        c = torch.zeros(samples, dtype=torch.float64)
        for _ in range(iterations):
            i, f, g = (_drawn(spec, name, scales[name], samples, generator) for name in "ifg")
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        o = torch.sigmoid(_drawn(spec, "o", scales["o"], samples, generator))
        second = float(o.square().mean() * c.tanh().square().mean())
    return second


def _scale(spec: Spec, gate: str, second: float) -> float:
    one = spec.gates[gate]
    return math.sqrt(float(one.weight_var) * second + float(one.input_var) * float(spec.input.variance))


def _drawn(spec: Spec, gate: str, scale: float, samples: int, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(samples, generator=generator, dtype=torch.float64)
    return float(spec.gates[gate].bias_mean) + scale * drawn


def measure(bench: Bench) -> Measured:
    """Errors of repeated runs at sizes n_s = n_iters, their seconds, and the excess kurtosis of c."""
    settings, generator = bench.settings, bench.generator()
    cases = {}
    for number, (name, spec) in enumerate(_SPECS.items()):
        bench.progress(name, number, len(_SPECS))
        exact = analyze(spec).fixed_point.second_moment.number()
        assert exact is not None  # of the two specs above
        c = stationary_samples(spec, generator=bench.generator(1 + number))
        errors: dict[str, list[float]] = {}
        seconds: dict[str, list[float]] = {}
        for size in settings["sizes"]:
            errors[str(size)], seconds[str(size)] = [], []
            for _ in range(settings["repeats"]):
                begun = time.process_time()
                found = second_moment(spec, size, size, settings["steps"], generator)
                seconds[str(size)].append(time.process_time() - begun)
                errors[str(size)].append(found / exact - 1)
        centred = (c - c.mean()) / c.std()
        cases[name] = {
            "exact": exact,
            "errors": errors,
            "seconds": seconds,
            "kurtosis": float(centred.pow(4).mean()) - 3,
            "largest": float(centred.abs().max()),
            "samples": len(c),
        }
    return {"cases": cases}


def judge(measured: Measured) -> Verdict:
    """At 100 samples and iterations the bias, with its whole interval, is below the standard deviation of one run."""
    parts, effects, details = {}, [], []
    for name, case in measured["cases"].items():
        errors = case["errors"][str(_PUBLISHED)]
        what = f"{name}: mean relative error of E h^2 at 100 samples and iterations"
        bias, spread = by_seeds.effect(what, errors, "reasonably accurate"), statistics.stdev(errors)
        effects.append(bias)
        above, below = (by_seeds.above(bias, bar) for bar in (-spread, spread))
        parts[name] = by_seeds.all_known([above, None if below is None else not below])
        first, *_, last = case["seconds"]
        cost = statistics.median(case["seconds"][last]) / statistics.median(case["seconds"][first])
        work = (int(last) / int(first)) ** 2
        details.append(
            f"{name}: one run is off by {spread:.1%} (standard deviation), E h^2 {case['exact']:.4f}; from {first} to "
            f"{last} samples and iterations the time grows {cost:.1f} times ({work:.0f} if linear in both); c "
            f"has an excess kurtosis of {case['kurtosis']:.2f}, its largest of {case['samples']} samples is "
            f"{case['largest']:.1f} standard deviations off"
        )
    return Verdict(by_seeds.answer_of(parts), "; ".join(details), tuple(effects))


def panels(measured: Measured) -> list[Panel]:
    """The spread and the bias of the error over the size, and the time."""
    found = []
    for name, case in measured["cases"].items():
        sizes = [int(size) for size in case["errors"]]
        spread = [statistics.stdev(errors) for errors in case["errors"].values()]
        bias = [abs(statistics.fmean(errors)) for errors in case["errors"].values()]
        curves = [Curve(sizes, spread, "standard deviation"), Curve(sizes, bias, "size of the mean", "dashed")]
        label = "samples = iterations"
        marks = [Mark("x", _PUBLISHED, "published")]
        found.append(Panel(name, label, "relative error of E h^2", curves, marks=marks, log=("x", "y")))
        times = [statistics.median(seconds) for seconds in case["seconds"].values()]
        found.append(Panel(name, label, "seconds", [Curve(sizes, times)], marks=marks, log=("x", "y")))
    return found


_SMALL = {"sizes": [10, 30, 100, 300], "repeats": 40, "steps": 15}
TARGET = Target(
    id="gilboa-alg1",
    source="Gilboa et al. 2019, appendix C, Algorithm 1",
    claim="With some 100 samples and 100 iterations Algorithm 1 gives reasonably accurate moments of the LSTM.",
    published="'of order 100' samples and iterations give 'reasonably accurate values'; cost linear in both; the law "
    "of c heavy-tailed in general",
    choices="All variances 1 and forget biases 1 and 4. c starts at 0, which is unsaid; 15 steps of the moment map "
    "from 0. Reasonably accurate: the mean error, with its 95 % interval, is below one run's standard deviation, which "
    "is printed beside. Exact is this library's fixed point. That an LSTM's "
    "forget gate is below 1 excludes power-law tails of c, for which the gate would have to exceed 1 at times; the "
    "kurtosis of its stationary law is printed.",
    settings={"small": _SMALL, "paper": {**_SMALL, "sizes": [10, 30, 100, 300, 1000], "repeats": 200}},
    measure=measure,
    judge=judge,
    panels=panels,
)
