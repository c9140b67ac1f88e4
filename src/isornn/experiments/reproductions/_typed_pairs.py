"""Strongly typed and classical cells with equal numbers of parameters: tables 1 to 4 of Balduzzi & Ghifary."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from isornn.cells import cell_named
from isornn.experiments.reproductions import _by_seeds as seeds
from isornn.experiments.target import Bench
from isornn.nn import RNN
from isornn.training import RunRecord, SequenceModel
from isornn.training.metrics import read_metrics
from isornn.training.model import OneHot

MODELS: Mapping[str, Mapping[str, Any]] = {
    "RNN": {"name": "vanilla", "nonlinearity": "sigmoid"},
    "T-RNN": {"name": "t_rnn"},
    "LSTM": {"name": "lstm_coupled"},
    "T-LSTM": {"name": "t_lstm"},
    "GRU": {"name": "gru_cho"},
    "T-GRU": {"name": "t_gru"},
}
"""As printed: a logistic RNN, an LSTM with coupled gates and a tanh for its output gate, and Cho's GRU."""
PAIRS = tuple((name, f"T-{name}") for name in ("RNN", "LSTM", "GRU"))
"""Classical, typed."""

_MOST_UNITS = 4096


def parameters(name: str, units: int, layers: int, symbols: int, embedded: bool) -> int:
    """How many numbers the model of a row trains, readout and embedding of symbols counted.

    Args:
        name: of the row in `MODELS`.
        units: N of each layer, and the embedding's dimension.
        layers: how many.
        symbols: of the alphabet or vocabulary.
        embedded: one-hot symbols if false.
    """
    cell = cell_named(MODELS[name]["name"], {key: value for key, value in MODELS[name].items() if key != "name"})
    with torch.device("meta"):
        encoder = nn.Embedding(symbols, units) if embedded else OneHot(symbols)
        recurrent = RNN(cell, units if embedded else symbols, units, layers)
        model = SequenceModel(recurrent, symbols, encoder=encoder, every_step=True)
    return sum(parameter.numel() for parameter in model.parameters())


def matched_units(name: str, layers: int, symbols: int, embedded: bool, budget: int) -> int:
    """The N whose number of parameters is nearest to ``budget``; otherwise as `parameters`.

    >>> budget = parameters("LSTM", 64, 1, 90, embedded=False)
    >>> [matched_units(name, 1, 90, False, budget) for name in MODELS]
    [119, 131, 64, 56, 64, 56]
    """

    def count(units: int) -> int:
        return parameters(name, units, layers, symbols, embedded)

    enough = 1 + bisect_left(range(1, _MOST_UNITS), budget, key=count)
    return min((max(enough - 1, 1), enough), key=lambda units: abs(count(units) - budget))


def row(bench: Bench, by_dropout: Mapping[float, Sequence[RunRecord]]) -> dict[str, Any]:
    """What a table says of the dropout that validates best: losses of all seeds, ``None`` where a run ended without.

    The training loss is the mean over the updates since the last validation but one, with dropout if there is some.
    A training is unstable whose loss rises from one validation to the next.
    """
    best = min(by_dropout, key=lambda dropout: seeds.mean(seeds.known([_loss(r.best) for r in by_dropout[dropout]])))
    runs = by_dropout[best]
    return {
        "units": runs[0].configuration.model["hidden"],
        "parameters": runs[0].parameters,
        "dropout": best,
        "unstable": [_rises(bench, run) for run in runs],
        "train": [_training_loss(bench, run) for run in runs],
        "test": [_loss(run.test) for run in runs],
    }


def _rises(bench: Bench, run: RunRecord) -> bool:
    """Whether the training loss between two validations was ever above that before by more than a hundredth."""
    losses = [row["training"]["loss"] for row in read_metrics(bench.folder / run.configuration.hash)]
    return run.diverged is not None or any(later > 1.01 * before for before, later in pairwise(losses))


def _loss(metrics: Mapping[str, float] | None) -> float | None:
    return None if metrics is None else metrics["loss"]


def _training_loss(bench: Bench, run: RunRecord) -> float | None:
    if run.diverged is not None:
        return None
    loss: float = read_metrics(bench.folder / run.configuration.hash)[-1]["training"]["loss"]
    return loss
