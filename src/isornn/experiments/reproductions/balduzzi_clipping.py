"""Training without clipping, at growing rates: gradients of an LSTM and of a strongly typed one."""

from __future__ import annotations

import statistics
from typing import Any

import torch

from isornn.experiments.target import UNTESTED, Answer, Bench, Measured, Target, Verdict
from isornn.figures import Curve, Panel
from isornn.nn import TLSTM, CoupledLSTM
from isornn.tasks import Characters, load_book, loader
from isornn.training import NonFiniteLoss, SequenceModel, State, train

_LAYERS = {"LSTM": CoupledLSTM, "T-LSTM": TLSTM}
_EXPLODED = 100.0  # times the median of the LSTM's first gradients


def measure(bench: Bench) -> Measured:
    """Norms of all gradients and the losses, for each cell, rate and seed, until a number is not finite."""
    settings = bench.settings
    text = Characters(load_book(bench.data), columns=settings["batch"], unroll=settings["unroll"])
    cells: dict[str, Any] = {name: {} for name in _LAYERS}
    grid = [(name, rate) for name in _LAYERS for rate in settings["rates"]]
    for number, (name, rate) in enumerate(grid):
        bench.progress(f"{name}, rate {rate}", number, len(grid))
        cells[name][str(rate)] = []
        for seed in range(1000 * bench.seed, 1000 * bench.seed + settings["seeds"]):
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                layer = _LAYERS[name](text.inputs, settings["units"], num_layers=settings["layers"])
                model = SequenceModel.of(text, layer)
            cells[name][str(rate)].append(_trained(model, text, rate, settings["updates"], seed))
    return {"cells": cells}


def _trained(model: SequenceModel, text: Characters, rate: float, updates: int, seed: int) -> dict[str, Any]:
    norms: list[float] = []
    losses: list[float] = []

    def after_update(state: State) -> None:
        norms.append(state.gradient_norm)
        losses.append(state.loss)

    state, ended = State(model, torch.optim.SGD(model.parameters(), rate)), None
    try:
        train(state, iter(loader(text, text.columns or 1, seed)), updates, on_update=[after_update])
    except NonFiniteLoss as error:
        ended = str(error)
    return {"norms": norms, "losses": losses, "ended": ended}


def _largest(run: dict[str, Any]) -> float:
    return float("inf") if run["ended"] else max(run["norms"])


def judge(measured: Measured) -> Verdict:
    """Some rate makes the LSTM's gradient explode in every seed, and the typed one's in none, at any rate up to it."""
    cells = measured["cells"]
    first = statistics.median(norm for runs in cells["LSTM"].values() for run in runs for norm in run["norms"][:5])
    bar = _EXPLODED * first
    exploded = {
        name: {rate: sum(_largest(run) > bar for run in runs) for rate, runs in rates.items()}
        for name, rates in cells.items()
    }
    seeds = len(next(iter(cells["LSTM"].values())))
    lstm = [rate for rate, count in exploded["LSTM"].items() if count == seeds]
    typed = [rate for rate, count in exploded["T-LSTM"].items() if count]
    answer: Answer = "does not hold" if typed else "holds" if lstm else UNTESTED
    details = "; ".join(
        f"{name}, rate {rate}: {_norms_text(runs)} ({exploded[name][rate]} of {seeds} exploded)"
        for name, rates in cells.items()
        for rate, runs in rates.items()
    )
    return Verdict(answer, f"largest gradient norm over all updates and seeds, exploded above {bar:.3g}: {details}")


def _norms_text(runs: list[dict[str, Any]]) -> str:
    largest = max(map(_largest, runs))
    return (
        f"{largest:.3g}"
        if largest < float("inf")
        else f"not finite, after {min(len(r['norms']) for r in runs)} updates"
    )


def panels(measured: Measured) -> list[Panel]:
    """Gradients over the updates, the first seed."""
    found = []
    for name, rates in measured["cells"].items():
        curves = [Curve(range(len(runs[0]["norms"])), runs[0]["norms"], f"rate {rate}") for rate, runs in rates.items()]
        found.append(Panel(f"{name}, no clipping", "update", "norm of the gradient", curves, log=("y",)))
    return found


def data_name(folder: Any) -> str:
    """The book's name."""
    return load_book(folder).name


TARGET = Target(
    id="balduzzi-clipping",
    source="Balduzzi & Ghifary 2016, section 4.2",
    claim="Without clipping an LSTM's gradients explode at large learning rates, and those of a T-LSTM do not.",
    published="in words; on Penn Treebank, medium models",
    choices="Characters of War and Peace, two layers, SGD at growing rates, LSTM as printed there; exploded: not "
    "finite, or more than 100 times the median of the LSTM's first five gradients. Neither: one "
    "cannot tell. The paper names no rates. Its bound is on products over steps: it says nothing of weights that grow "
    "from update to update, which too large a rate may do to either cell.",
    settings={
        "small": {
            "units": 48,
            "layers": 2,
            "batch": 20,
            "unroll": 50,
            "updates": 150,
            "rates": [1.0, 10.0, 100.0],
            "seeds": 2,
        },
        "paper": {
            "units": 650,
            "layers": 2,
            "batch": 20,
            "unroll": 35,
            "updates": 5000,
            "rates": [1.0, 10.0, 100.0],
            "seeds": 3,
        },
    },
    measure=measure,
    judge=judge,
    panels=panels,
    data=data_name,
)
