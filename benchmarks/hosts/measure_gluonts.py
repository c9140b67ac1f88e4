"""gluonts: support tickets after releases, by DeepAR that reads the last value and no further lags.

    .hosts/gluonts/bin/python benchmarks/hosts/measure_gluonts.py

`DeepAREstimator` with its defaults: 2 layers of 40 units, dropout .1, Adam at .001, 50 batches of 32 an epoch. Some 6
minutes on one core.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from typing import Any

import numpy as np
import torch
from compared import Task, measured
from gluonts.dataset.common import ListDataset
from gluonts.torch.distributions import NegativeBinomialOutput
from gluonts.torch.model.deepar import DeepAREstimator
from lightning.pytorch import Callback, seed_everything

from isornn.integrations.lightning import CriticalStart

CONTEXT, AHEAD, HALF_LIFE, EPOCHS = 200, 24, 70, 10  # hours


class Scores(Callback):
    """The validation loss after each epoch."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.values.append(float(trainer.callback_metrics["val_loss"]))


def tickets(count: int, hours: int, seed: int) -> ListDataset:
    """Tickets an hour, 5 on average and more after a release: one in 60 hours, whose effect has a half-life of 70."""
    rng = np.random.default_rng(seed)
    before = 10 * HALF_LIFE
    effect = 8 * 0.5 ** (np.arange(before) / HALF_LIFE)
    series = []
    for _ in range(count):
        release = np.where(rng.random(hours + before) < 1 / 60, rng.exponential(1, hours + before), 0)
        rate = 5 + np.convolve(release, effect)[before : before + hours]
        series.append({"start": "2024-01-01", "target": rng.poisson(rate), "feat_dynamic_real": release[None, before:]})
    return ListDataset(series, freq="h")


def deepar(seed: int, start: bool) -> list[float]:
    """Validation loss of 10 epochs."""
    seed_everything(seed)
    scores = Scores()
    with tempfile.TemporaryDirectory() as folder:
        estimator = DeepAREstimator(
            freq="h",
            prediction_length=AHEAD,
            context_length=CONTEXT,
            num_feat_dynamic_real=1,
            distr_output=NegativeBinomialOutput(),
            lags_seq=[1],
            trainer_kwargs={
                "max_epochs": EPOCHS,
                "accelerator": "cpu",
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "logger": False,
                "default_root_dir": folder,
                "callbacks": [CriticalStart(), scores] if start else [scores],
            },
        )
        estimator.train(tickets(100, 1500, 0), tickets(300, CONTEXT + AHEAD + 1, 1))
    return scores.values


def main() -> None:
    for name in ("lightning.pytorch", "gluonts"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    settings = {
        "hidden_size": 40,
        "num_layers": 2,
        "dropout_rate": 0.1,
        "optimiser": "Adam, .001",
        "distr_output": "negative binomial",
        "max_epochs": EPOCHS,
        "not defaults": "context_length, lags_seq, distr_output, max_epochs",
        "lags_seq": [1],
    }
    task = Task(
        "DeepAR with lags [1], tickets after releases",
        "negative log likelihood, 300 other series",
        CONTEXT + AHEAD - 1,
        50,
        settings,
        deepar,
    )
    measured("gluonts", ["gluonts", "lightning"], [task])


if __name__ == "__main__":
    main()
