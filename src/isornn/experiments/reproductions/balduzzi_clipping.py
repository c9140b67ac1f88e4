"""Training without clipping, at growing rates: gradients of an LSTM and of strongly typed cells."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from isornn.experiments.reproductions._few_words import CHOICE, with_few_words
from isornn.experiments.reproductions._summed_loss import of_mean
from isornn.experiments.reproductions._typed_pairs import MODELS
from isornn.experiments.runs import Look, looks, train_all
from isornn.experiments.target import UNTESTED, Answer, Bench, Effect, Measured, Target, Verdict
from isornn.figures import Curve, Mark, Panel
from isornn.tasks import Words, load_ptb, one_pass
from isornn.training import SequenceModel, State

_CELLS = ("LSTM", "T-LSTM", "T-GRU")
_LAST = 50  # updates, whose mean loss is the loss at the end
_GAIN_EVERY = 50


def measure(bench: Bench) -> Measured:
    """By cell and rate, of every seed: norms of the gradient and losses of all updates, until a number is not finite,
    and how much the gradient grows per step back in time."""
    bench, text = with_few_words(bench)
    settings = bench.settings
    held_out = Words(text, "valid", columns=settings["batch"], unroll=settings["unroll"])
    probe = next(iter(one_pass(held_out, settings["batch"])))
    look = Look(1, partial(_norm_loss_gain, probe))
    places = [(name, rate, seed) for name in _CELLS for rate in settings["rates"] for seed in range(settings["seeds"])]
    runs = train_all(bench, [_configuration(bench, *place) for place in places], look=look)
    cells: dict[str, Any] = {name: {str(rate): [] for rate in settings["rates"]} for name in _CELLS}
    for (name, rate, _), run in zip(places, runs, strict=True):
        rows = looks(bench, run)
        cells[name][str(rate)].append(
            {
                "norms": [_number(row[0]) for row in rows],
                "losses": [_number(row[1]) for row in rows],
                "gains": [_number(row[2]) for row in rows[_GAIN_EVERY - 1 :: _GAIN_EVERY]],
                "ended": run.diverged,
            }
        )
    return {"symbols": held_out.inputs, "gain_every": _GAIN_EVERY, "cells": cells}


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _configuration(bench: Bench, name: str, rate: float, seed: int) -> dict[str, Any]:
    settings = bench.settings
    ours, _ = of_mean(settings["unroll"], rate)
    return {
        "task": {"name": "words", "unroll": settings["unroll"], "held_out_columns": settings["batch"]},
        "model": {
            **MODELS[name],
            "hidden": settings["units"],
            "embedding": settings["units"],
            "layers": settings["layers"],
        },
        "start": {"name": "uniform", "bound": settings["bound"]},
        "optimiser": {"name": "sgd", "rate": ours},
        "updates": settings["updates"],
        "batch_size": settings["batch"],
        "validate_every": settings["validate_every"],
        "seed": 1000 * bench.seed + seed,
    }


def _norm_loss_gain(probe: tuple[Tensor, Tensor], state: State) -> list[float]:
    """Of the update's gradient and batch; the gain now and then alone, for time."""
    gain = log_gain(state.model, probe) if state.update % _GAIN_EVERY == 0 else math.nan
    return [state.gradient_norm, state.loss, gain]


def log_gain(model: torch.nn.Module, probe: tuple[Tensor, Tensor]) -> float:
    """ln |d(loss of the last step)/dx_1| less that of x_T, over T - 1 steps, from state 0."""
    assert isinstance(model, SequenceModel)
    x, y = probe
    inputs = model.encoder(x).detach().requires_grad_()
    out, _ = model.recurrent(inputs, None)
    loss = functional.cross_entropy(model.readout(out[-1]), y[-1])
    (gradient,) = torch.autograd.grad(loss, inputs)
    norms = gradient.flatten(1).norm(dim=1).double()
    return float((norms[0].log() - norms[-1].log()) / (len(norms) - 1))


def useless(run: Mapping[str, Any], symbols: int) -> bool:
    """Not finite, or at the end no better than guessing among all words alike."""
    return run["ended"] is not None or _last_loss(run) > math.log(symbols)


def _last_loss(run: Mapping[str, Any]) -> float:
    return statistics.fmean(math.inf if loss is None else loss for loss in run["losses"][-_LAST:])


def judge(measured: Measured) -> Verdict:
    """At some rate the LSTM is useless with every seed, and the T-LSTM with none, nor at any lower rate."""
    cells, symbols = measured["cells"], measured["symbols"]
    lost = {
        name: {float(rate): [useless(run, symbols) for run in runs] for rate, runs in rates.items()}
        for name, rates in cells.items()
    }
    lstm = min((rate for rate, seeds in lost["LSTM"].items() if all(seeds)), default=math.inf)
    answer: Answer
    if lstm < math.inf and not any(any(seeds) for rate, seeds in lost["T-LSTM"].items() if rate <= lstm):
        answer, reason = "holds", f"at rate {lstm:g} the LSTM is useless, the T-LSTM is not"
    elif any(all(seeds) for rate, seeds in lost["T-LSTM"].items() if rate <= lstm):
        answer, reason = (
            "does not hold",
            "the T-LSTM is useless at a rate no higher than the first at which the LSTM is",
        )
    else:
        answer, reason = UNTESTED, "no rate is large enough to end the LSTM's training, or seeds differ"
    details = "; ".join(
        f"{name}, rate {rate}: {_text(runs)} ({sum(lost[name][float(rate)])} of {len(runs)} useless)"
        for name, rates in cells.items()
        for rate, runs in rates.items()
    )
    effects = tuple(
        Effect(f"{name}, rate {rate}: seeds that end useless", sum(lost[name][float(rate)]), seeds=len(runs))
        for name, rates in cells.items()
        for rate, runs in rates.items()
    )
    return Verdict(answer, f"{reason}. Largest gradient norm and loss at the end: {details}", effects)


def _text(runs: list[dict[str, Any]]) -> str:
    if any(run["ended"] is not None for run in runs):
        return f"not finite after {min(len(run['norms']) for run in runs)} updates or more"
    largest = max(max(norm or math.inf for norm in run["norms"]) for run in runs)
    return f"{largest:.3g}, {statistics.fmean(map(_last_loss, runs)):.2f} nats"


def panels(measured: Measured) -> list[Panel]:
    """Gradients over the updates, the first seed; and the gain per step."""
    found, marks = [], [Mark("y", math.log(measured["symbols"]), "guessing")]
    for name, rates in measured["cells"].items():
        curves = [
            Curve(range(1, len(runs[0]["norms"]) + 1), runs[0]["norms"], f"rate {rate}") for rate, runs in rates.items()
        ]
        found.append(Panel(f"{name}, no clipping", "update", "norm of the gradient", curves, log=("y",)))
        curves = [
            Curve(range(1, len(runs[0]["losses"]) + 1), runs[0]["losses"], f"rate {rate}")
            for rate, runs in rates.items()
        ]
        found.append(Panel(f"{name}, no clipping", "update", "loss, nats", curves, marks=marks))
        every = measured["gain_every"]
        curves = [
            Curve([every * k for k in range(1, len(runs[0]["gains"]) + 1)], runs[0]["gains"], f"rate {rate}")
            for rate, runs in rates.items()
        ]
        found.append(Panel(f"{name}: growth back in time", "update", "ln gradient norm per step", curves))
    return found


def data_name(folder: Path | None) -> str:
    """The text's name; how much of it is used is in the settings."""
    return load_ptb(folder).name


_COMMON = {"layers": 2, "batch": 20, "rates": [0.1, 0.3, 1.0], "bound": 0.1}
TARGET = Target(
    id="balduzzi-clipping",
    source="Balduzzi & Ghifary 2016, section 4.2",
    claim="Without clipping an LSTM's gradients explode and it becomes useless at learning rates at which a T-LSTM can "
    "still be trained.",
    published="in words; on Penn Treebank, medium models",
    choices=f"{CHOICE} Two layers, SGD without clipping, LSTM as printed there, all weights from U(-0.1, 0.1). Rates "
    "are of the loss summed over the unrolled steps, as in Zaremba et al.'s code, where 1 is theirs: of this library's "
    "mean over steps they are as many times larger as there are steps. Useless: a number that is not finite, or a mean "
    "loss over the last 50 updates above that of guessing among all words alike. The growth of a gradient per step "
    "back in time, over held-out words, is drawn; the paper's bound is about it, and says nothing of weights that grow "
    "from update to update.",
    settings={
        "small": {
            **_COMMON,
            "lines": 1000,
            "held_out_lines": 600,
            "words": 2000,
            "units": 48,
            "unroll": 20,
            "updates": 150,
            "validate_every": 150,
            "seeds": 2,
        },
        "medium": {
            **_COMMON,
            "rates": [0.3, 0.5, 1.0],
            "units": 200,
            "unroll": 35,
            "updates": 2000,
            "validate_every": 500,
            "seeds": 3,
        },
        "paper": {**_COMMON, "units": 650, "unroll": 35, "updates": 5000, "validate_every": 1000, "seeds": 3},
    },
    measure=measure,
    judge=judge,
    panels=panels,
    data=data_name,
    kind="training",
    untested={
        "small": "150 updates of 48 units on 1000 lines, where the paper trains 650 units on all of Penn Treebank"
    },
)
