"""Theorem 1: strongly typed cells in closed form, weighted sums of features, against the recurrence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Panel
from isornn.nn import RNN, TGRU, TLSTM, TRNN
from isornn.nn.typed import learn

_EXACT = 1e-10
_LAYERS: dict[str, Callable[..., RNN]] = {"T-RNN": TRNN, "T-LSTM": TLSTM, "T-GRU": TGRU}


def measure(bench: Bench) -> Measured:
    """Largest differences over random layers and sequences, by cell; and what the weights of eq. 47 sum to."""
    settings, found = bench.settings, {}
    for number, (name, kind) in enumerate(_LAYERS.items()):
        bench.progress(name, number, len(_LAYERS))
        generator = bench.generator(number)
        gaps: dict[str, list[float]] = {"repaired": [], "printed": [], "sum": []}
        for _ in range(settings["draws"]):
            layer = kind(settings["inputs"], settings["units"], dtype=torch.float64)
            for parameter in layer.parameters():
                torch.nn.init.normal_(parameter, std=settings["scale"], generator=generator)
            x = torch.randn(settings["steps"], 2, settings["inputs"], generator=generator, dtype=torch.float64)
            with torch.no_grad():
                closed = _closed(name, learn(layer, x))
                last = layer(x)[0][-1]
            for form in ("repaired", "printed"):
                gaps[form].append(float((closed[form] - last).abs().max() / last.abs().max()))
            gaps["sum"].append(float(closed["sum"]))
        found[name] = {what: max(values) for what, values in gaps.items()}
    return {"cells": found}


def _closed(name: str, u: dict[str, Tensor]) -> dict[str, Tensor]:
    """The last output as eqs. 47-50 have it: F as repaired, and as printed; and |sum P - (1 - prod f)|."""
    f, z = torch.sigmoid(u["f"]), u["z"]
    steps = range(len(f))
    after = torch.stack([f[s + 1 :].prod(0) for s in steps])  # f_(s+1) ... f_t
    if name == "T-GRU":
        content = torch.tanh(u["o"]) * z
        return {
            "repaired": (after * content).sum(0),
            "printed": (torch.cat([(f * after)[:-1], after[-1:]]) * content).sum(0),
            "sum": torch.zeros(()),
        }
    weights = (1 - f) * after
    pooled = (weights * z).sum(0)
    out = pooled if name == "T-RNN" else torch.tanh(u["o"][-1]) * pooled
    return {"repaired": out, "printed": out, "sum": (weights.sum(0) - (1 - f.prod(0))).abs().max()}


def judge(measured: Measured) -> Verdict:
    """All closed forms are the recurrence; eq. 50 as printed is not."""
    cells = measured["cells"]
    right = max(each[what] for each in cells.values() for what in ("repaired", "sum"))
    printed = cells["T-GRU"]["printed"]
    details = ", ".join(f"{name} {each['repaired']:.1e}" for name, each in cells.items())
    why = (
        f"closed form against recurrence, relative: {details}; |sum_s P(s) - (1 - prod f)| at most "
        f"{max(each['sum'] for each in cells.values()):.1e} (bar {_EXACT}); T-GRU with eq. 50 as printed: off by "
        f"{printed:.2f}"
    )
    return Verdict("holds" if right < _EXACT and printed > 0.01 else "does not hold", why)


def panels(measured: Measured) -> list[Panel]:
    """Differences by cell."""
    names = list(measured["cells"])
    curves = [
        Curve(range(1, len(names) + 1), [max(each[form], 1e-17) for each in measured["cells"].values()], form, "points")
        for form in ("repaired", "printed")
    ]
    return [Panel("Theorem 1", ", ".join(f"{k} {name}" for k, name in enumerate(names, 1)), "off", curves, log=("y",))]


_SMALL: dict[str, Any] = {"inputs": 7, "units": 16, "steps": 40, "draws": 20, "scale": 1.0}
TARGET = Target(
    id="balduzzi-thm1",
    source="Balduzzi & Ghifary 2016, theorem 1, eqs. 47-50",
    claim="The states of T-RNN, T-LSTM and T-GRU are the closed sums of theorem 1, with F_s = f_(s+1) F_(s+1) in eq. "
    "50; the weights P sum to 1 - prod f.",
    published="exact identities; eq. 50 prints f_s for f_(s+1)",
    choices="Random layers with Gaussian parameters, states from 0, double precision.",
    settings={"small": _SMALL, "paper": {**_SMALL, "units": 128, "steps": 200}},
    measure=measure,
    judge=judge,
    panels=panels,
    corrected=True,
)
