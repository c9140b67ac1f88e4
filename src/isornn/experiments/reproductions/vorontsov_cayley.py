"""The geodesic step (eq. 9) on a quadratic loss: as repaired it stays orthogonal and descends; as printed it leaves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Panel
from isornn.optim.cayley import rotated

_ORTHOGONAL = 1e-8
_SAME = 1e-10


def measure(bench: Bench) -> Measured:
    """``||A M - B||_F^2 / 2`` over M, by the library's step, by eq. 9 as repaired, and by eq. 9 as printed."""
    settings = bench.settings
    size, rate = settings["size"], settings["rate"]
    generator = bench.generator()
    a, b, start = (torch.randn(size, size, generator=generator, dtype=torch.float64) for _ in range(3))
    a, b = a / size**0.5, b / size**0.5
    start = torch.linalg.qr(start).Q
    ends: dict[str, Tensor] = {}
    found: dict[str, Any] = {"every": settings["every"]}
    for number, (name, step) in enumerate(_STEPS.items()):
        bench.progress(name, number, len(_STEPS))
        m, losses, drifts = start, [], []
        for update in range(settings["steps"] + 1):
            if update % settings["every"] == 0:
                losses.append(float((a @ m - b).square().sum() / 2))
                drifts.append(float((m.mT @ m - torch.eye(size, dtype=m.dtype)).abs().max()))
            if not m.isfinite().all() or drifts[-1] > _LOST:
                break
            m = step(m, a.mT @ (a @ m - b), rate)
        found[name] = {"loss": losses, "drift": drifts}
        ends[name] = m
    return found | {"gap": float((ends["library"] - ends["repaired"]).abs().max())}


_LOST = 1e6  # a matrix that far from orthogonal is followed no further


def _cayley(m: Tensor, gradient: Tensor, rate: float) -> Tensor:
    """C of eq. 9, dense."""
    skew = gradient @ m.mT - m @ gradient.mT
    unit = torch.eye(len(m), dtype=m.dtype)
    return torch.linalg.solve(unit + rate / 2 * skew, unit - rate / 2 * skew)


_STEPS = {
    "library": rotated,
    "repaired": lambda m, gradient, rate: _cayley(m, gradient, rate) @ m,
    "printed": lambda m, gradient, rate: m + _cayley(m, gradient, rate),
}


def judge(measured: Measured) -> Verdict:
    """Repaired: orthogonal, falling at every look, and what the library does; printed: not orthogonal."""
    library, printed = measured["library"], measured["printed"]
    falls = all(after <= before for before, after in zip(library["loss"], library["loss"][1:], strict=False))
    drift = max(library["drift"])
    why = (
        f"max |M^T M - I| after {measured['every'] * (len(library['drift']) - 1)} steps: at most {drift:.1e} (bar "
        f"{_ORTHOGONAL}); loss {library['loss'][0]:.3f} to {library['loss'][-1]:.3f}, "
        f"{'never rising' if falls else 'rising at times'}; library and dense eq. 9 differ by {measured['gap']:.1e}; "
        f"as printed the error of M^T M is {printed['drift'][1]:.1e} at the first look"
    )
    holds = falls and drift < _ORTHOGONAL and measured["gap"] < _SAME and max(printed["drift"]) > 1
    return Verdict("holds" if holds else "does not hold", why)


def panels(measured: Measured) -> list[Panel]:
    """Loss and drift over the steps."""
    found = []
    for what, label in (("loss", "loss"), ("drift", "max |M^T M - I|")):
        curves = []
        for name in ("library", "printed"):
            values = measured[name][what]
            steps = [measured["every"] * k for k in range(len(values))]
            curves.append(Curve(steps, [max(v, 1e-17) for v in values], name))
        found.append(Panel(label, "step", label, curves, log=("y",)))
    return found


TARGET = Target(
    id="vorontsov-cayley",
    source="Vorontsov et al. 2017, eq. 9",
    claim="The geodesic step M <- C M keeps an orthogonal matrix orthogonal and lowers the loss; eq. 9 as printed, "
    "M + C, does not keep it.",
    published="M + (I + eta/2 A)^-1 (I - eta/2 A)",
    choices="The loss ||A M - B||^2 / 2 with Gaussian A and B, gradient descent from a random orthogonal M, float64. "
    "The library sums a series in the place of the solve; both are run.",
    settings={
        "small": {"size": 20, "steps": 1000, "every": 10, "rate": 0.1},
        "paper": {"size": 128, "steps": 10_000, "every": 100, "rate": 0.1},
    },
    measure=measure,
    judge=judge,
    panels=panels,
    corrected=True,
)
