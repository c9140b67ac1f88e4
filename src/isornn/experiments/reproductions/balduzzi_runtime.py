"""Run time of strongly typed cells compared with the cells that they replace."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from isornn.experiments.target import UNTESTED, Bench, Measured, Target, Verdict
from isornn.figures import Curve, Panel
from isornn.nn import RNN, TGRU, TLSTM, ChoGRU, CoupledLSTM

_PAIRS: dict[str, tuple[Callable[..., RNN], Callable[..., RNN]]] = {
    "T-LSTM": (TLSTM, CoupledLSTM),
    "T-GRU": (TGRU, ChoGRU),
}
_PUBLISHED = {"T-LSTM": 1.6, "T-GRU": 1.4}


def measure(bench: Bench) -> Measured:
    """Seconds of forward and backward, both of a pair in turn, so that what else the machine does meets both."""
    settings, found = bench.settings, {}
    x = torch.randn(settings["steps"], settings["batch"], settings["units"], generator=bench.generator())
    for number, (name, kinds) in enumerate(_PAIRS.items()):
        bench.progress(name, number, len(_PAIRS))
        typed, classical = (kind(settings["units"], settings["units"]) for kind in kinds)
        for layer in (typed, classical):
            _seconds(layer, x)  # compiles and warms up
        ratios, times = [], []
        for _ in range(settings["repeats"]):
            one, other = _seconds(typed, x), _seconds(classical, x)
            ratios.append(other / one)
            times.append([one, other])
        found[name] = {"ratios": ratios, "seconds": times}
    return {"cells": found}


def _seconds(layer: RNN, x: torch.Tensor) -> float:
    layer.zero_grad()
    begun = time.process_time()
    layer(x)[0].square().mean().backward()
    return time.process_time() - begun


def judge(measured: Measured) -> Verdict:
    """Holds where the lower quartile of every ratio is above 1, and does not where an upper one is below 1."""
    answer: Any = "holds"
    details = []
    for name, each in measured["cells"].items():
        low, middle, high = statistics.quantiles(each["ratios"], n=4)
        details.append(f"{name} {middle:.2f} times (quartiles {low:.2f} to {high:.2f}; published {_PUBLISHED[name]})")
        if high < 1:
            answer = "does not hold"
        elif low <= 1 and answer == "holds":
            answer = UNTESTED
    return Verdict(
        answer, f"the classical cell's time over the typed one's, forward and backward: {'; '.join(details)}"
    )


def panels(measured: Measured) -> list[Panel]:
    """All ratios, sorted."""
    curves = []
    for name, each in measured["cells"].items():
        ratios = sorted(each["ratios"])
        curves.append(Curve([(k + 0.5) / len(ratios) for k in range(len(ratios))], ratios, name))
    return [Panel("time over the typed cell's", "share of repeats", "ratio", curves)]


TARGET = Target(
    id="balduzzi-runtime",
    source="Balduzzi & Ghifary 2016, section 4.2",
    claim="Strongly typed cells run faster than the cells they take the place of: T-LSTM than LSTM, T-GRU than GRU.",
    published="about 1.6 and 1.4 times, on a GTX 980, Penn Treebank",
    choices="One layer, as many inputs as units, forward and backward, both by this library's layers, LSTM and GRU as "
    "printed there; median of the ratios of processor time of neighbouring runs.",
    settings={
        "small": {"units": 128, "steps": 100, "batch": 20, "repeats": 40},
        "paper": {"units": 650, "steps": 35, "batch": 20, "repeats": 200},
    },
    measure=measure,
    judge=judge,
    panels=panels,
    kind="timing",
)
