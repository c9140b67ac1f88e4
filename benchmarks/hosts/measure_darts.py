"""darts: the cure of a batch by its temperature, two effects of campaigns on sales, and a series with a short season.

    .hosts/darts/bin/python benchmarks/hosts/measure_darts.py

`BlockRNNModel` and `RNNModel` with darts' own defaults: 25 units, Adam at .001, batches of 32, the loss MSE, series
scaled to [0, 1]; one task again at a rate of .01. Tried in the order delayed, short, lasting, cure, lasting at .01.
Some 25 minutes on one core.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from compared import Task, measured
from darts import TimeSeries
from darts.dataprocessing.transformers import Scaler
from darts.models import BlockRNNModel, RNNModel
from pytorch_lightning import Callback

from isornn.integrations.lightning import CriticalStart

DELAY, WIDTH, WINDOW, AHEAD = 120, 5, 180, 7  # days
UPDATES = 50  # of an epoch

Series = Callable[[int, int, int], tuple[list[TimeSeries], list[TimeSeries]]]


class Scores(Callback):
    """The validation loss after each epoch."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.values.append(float(trainer.callback_metrics["val_loss"]))


def delayed(count: int, days: int, seed: int) -> tuple[list[TimeSeries], list[TimeSeries]]:
    """Sales and campaigns: one in 40 days on average, of exponential size, each felt some 120 days later."""
    rng = np.random.default_rng(seed)
    effect = np.exp(-0.5 * ((np.arange(2 * DELAY) - DELAY) / WIDTH) ** 2)
    sales, spent = [], []
    for _ in range(count):
        size = np.where(rng.random(days + 2 * DELAY) < 1 / 40, rng.exponential(1, days + 2 * DELAY), 0)
        felt = np.convolve(size, effect)[2 * DELAY : 2 * DELAY + days] + 0.1 * rng.standard_normal(days)
        sales.append(TimeSeries.from_values(felt.astype(np.float32)))
        spent.append(TimeSeries.from_values(size[2 * DELAY :].astype(np.float32)))
    return sales, spent


def lasting(count: int, days: int, seed: int) -> tuple[list[TimeSeries], list[TimeSeries]]:
    """Sales and campaigns: one in 10 days on average, whose effect shrinks by 1 % a day, under as much noise."""
    rng = np.random.default_rng(seed)
    effect = 0.99 ** np.arange(500)
    sales, spent = [], []
    for _ in range(count):
        size = np.where(rng.random(days + 500) < 1 / 10, rng.exponential(1, days + 500), 0)
        felt = np.convolve(size, effect)[500 : 500 + days] + 3 * rng.standard_normal(days)
        sales.append(TimeSeries.from_values(felt.astype(np.float32)))
        spent.append(TimeSeries.from_values(size[500:].astype(np.float32)))
    return sales, spent


def batches(count: int, seed: int) -> tuple[list[TimeSeries], list[TimeSeries]]:
    """Batches of 180 minutes: their cure, tested at the end, goes with the mean of a temperature that drifts."""
    rng = np.random.default_rng(seed)
    cures, temperatures = [], []
    for _ in range(count):
        temperature = np.zeros(WINDOW + 1)
        for t in range(1, WINDOW + 1):
            temperature[t] = 0.95 * temperature[t - 1] + 0.3 * rng.standard_normal()
        cure = np.zeros(WINDOW + 1)
        cure[-1] = temperature[:-1].mean() / 0.4 + 0.2 * rng.standard_normal()
        cures.append(TimeSeries.from_values(cure.astype(np.float32)))
        temperatures.append(TimeSeries.from_values(temperature.astype(np.float32)))
    return cures, temperatures


def trainer(start: bool, scores: Scores) -> dict[str, Any]:
    callbacks = [CriticalStart(), scores] if start else [scores]
    return {
        "accelerator": "cpu",
        "callbacks": callbacks,
        "enable_progress_bar": False,
        "limit_train_batches": UPDATES,
    }


def cured(seed: int, start: bool) -> list[float]:
    """Validation loss of 40 epochs."""
    (tests, temperatures), (held_tests, held_temperatures) = batches(640, 0), batches(640, 1)
    of_tests, of_temperatures, scores = Scaler(global_fit=True), Scaler(global_fit=True), Scores()
    model = BlockRNNModel(
        WINDOW, 1, model="LSTM", n_epochs=40, random_state=seed, pl_trainer_kwargs=trainer(start, scores)
    )
    model.fit(
        of_tests.fit_transform(tests),
        past_covariates=of_temperatures.fit_transform(temperatures),
        val_series=of_tests.transform(held_tests),
        val_past_covariates=of_temperatures.transform(held_temperatures),
    )
    return scores.values


def promoted(made: Series, rate: float, seed: int, start: bool) -> list[float]:
    """Validation loss of 30 epochs."""
    (sales, spent), (held_sales, held_spent) = made(30, 1000, 0), made(60, WINDOW + AHEAD + 15, 1)
    of_sales, of_spent, scores = Scaler(global_fit=True), Scaler(global_fit=True), Scores()
    model = BlockRNNModel(
        WINDOW,
        AHEAD,
        model="LSTM",
        n_epochs=30,
        optimizer_kwargs={"lr": rate},
        random_state=seed,
        pl_trainer_kwargs=trainer(start, scores),
    )
    model.fit(
        of_sales.fit_transform(sales),
        past_covariates=of_spent.fit_transform(spent),
        val_series=of_sales.transform(held_sales),
        val_past_covariates=of_spent.transform(held_spent),
    )
    return scores.values


def short(seed: int, start: bool) -> list[float]:
    """Validation loss of 30 epochs."""
    rng = np.random.default_rng(0)
    series = [
        TimeSeries.from_values(
            (np.sin(2 * np.pi * np.arange(400) / 12 + phase) + 0.2 * rng.standard_normal(400)).astype(np.float32)
        )
        for phase in np.linspace(0, 6, 20)
    ]
    scaler, scores = Scaler(global_fit=True), Scores()
    train, held = [one[:300] for one in series], [one[300:] for one in series]
    model = RNNModel(
        24,
        model="LSTM",
        training_length=36,
        n_epochs=30,
        random_state=seed,
        pl_trainer_kwargs=trainer(start, scores),
    )
    model.fit(scaler.fit_transform(train), val_series=scaler.transform(held))
    return scores.values


def main() -> None:
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    shared = {"hidden_dim": 25, "n_rnn_layers": 1, "optimiser": "Adam, .001", "batch_size": 32, "epochs": 30}
    shared["not defaults"] = f"n_epochs; limit_train_batches={UPDATES} in pl_trainer_kwargs"
    measured(
        "darts",
        ["darts", "pytorch-lightning"],
        [
            Task(
                "BlockRNNModel LSTM, cure of a batch by its temperature",
                "mean squared error of the test of 640 other batches",
                WINDOW,
                20,
                shared | {"epochs": 40, "not defaults": "n_epochs"},
                cured,
            ),
            Task(
                "BlockRNNModel LSTM, campaigns whose effect shrinks by 1 % a day",
                "mean squared error of 7 days ahead, 60 other series",
                WINDOW,
                UPDATES,
                shared,
                partial(promoted, lasting, 0.001),
            ),
            Task(
                "BlockRNNModel LSTM, campaigns whose effect shrinks by 1 % a day, at a rate of .01",
                "mean squared error of 7 days ahead, 60 other series",
                WINDOW,
                UPDATES,
                shared | {"optimiser": "Adam, .01"},
                partial(promoted, lasting, 0.01),
            ),
            Task(
                "BlockRNNModel LSTM, campaigns felt 120 days later",
                "mean squared error of 7 days ahead, 60 other series",
                WINDOW,
                UPDATES,
                shared,
                partial(promoted, delayed, 0.001),
            ),
            Task(
                "RNNModel LSTM, noisy sine with a period of 12",
                "mean squared error one step ahead, last quarter of the series",
                36,
                UPDATES,
                shared,
                short,
            ),
        ],
    )


if __name__ == "__main__":
    main()
