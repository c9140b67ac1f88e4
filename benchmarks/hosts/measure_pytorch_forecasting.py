"""pytorch-forecasting: the final test of a production batch, from its recipe at the start and its temperature since.

    .hosts/pytorch-forecasting/bin/python benchmarks/hosts/measure_pytorch_forecasting.py

`RecurrentNetwork` with units, learning rate and clipping as in the host's tutorial for DeepAR: 2 layers of 30 units,
.01, gradients clipped at .1; dropout .1 and the optimiser are the defaults. Some 12 minutes on one core.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import torch
from compared import Task, measured
from pytorch_forecasting import GroupNormalizer, RecurrentNetwork, TimeSeriesDataSet

from isornn.integrations.lightning import CriticalStart

STEPS, EPOCHS, BATCH = 180, 20, 32
BATCHES = 640  # of production, to train on; 20 updates an epoch


class Scores(pl.Callback):
    """The validation loss after each epoch."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.values.append(float(trainer.callback_metrics["val_loss"]))


def production(count: int, seed: int) -> pd.DataFrame:
    """Batches of 180 minutes and a final test, to which recipe and mean temperature contribute alike.

    The recipe, one of three, is set at one of the first 20 minutes; deviations of the temperature last 20 minutes.
    """
    rng = np.random.default_rng(seed)
    frames = []
    for batch in range(count):
        temperature = np.zeros(STEPS + 1)
        for t in range(1, STEPS + 1):
            temperature[t] = 0.95 * temperature[t - 1] + 0.3 * rng.standard_normal()
        recipe, when = rng.integers(3), rng.integers(20)
        setting = np.full(STEPS + 1, "none")
        setting[when] = "abc"[recipe]
        test = np.zeros(STEPS + 1)
        test[-1] = (recipe - 1) / 0.8 + temperature[:-1].mean() / 0.4 + 0.3 * rng.standard_normal()
        columns = {"minute": np.arange(STEPS + 1), "temperature": temperature, "setting": setting, "test": test}
        frames.append(pd.DataFrame(columns).assign(batch=str(batch)))
    return pd.concat(frames, ignore_index=True)


def dataset(data: pd.DataFrame) -> TimeSeriesDataSet:
    return TimeSeriesDataSet(
        data,
        time_idx="minute",
        target="test",
        group_ids=["batch"],
        min_encoder_length=STEPS,
        max_encoder_length=STEPS,
        max_prediction_length=1,
        time_varying_known_reals=["temperature"],
        time_varying_known_categoricals=["setting"],
        time_varying_unknown_reals=["test"],
        target_normalizer=GroupNormalizer(),
    )


def trained(seed: int, start: bool) -> list[float]:
    """Validation loss of 20 epochs."""
    pl.seed_everything(seed)
    train = dataset(production(BATCHES, 0))
    held_out = TimeSeriesDataSet.from_dataset(train, production(BATCHES, 1))
    scores = Scores()
    model = RecurrentNetwork.from_dataset(train, hidden_size=30, rnn_layers=2, dropout=0.1, learning_rate=0.01)
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            max_epochs=EPOCHS,
            gradient_clip_val=0.1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            callbacks=[CriticalStart(), scores] if start else [scores],
        )
        trainer.fit(
            model,
            train.to_dataloader(train=True, batch_size=BATCH),
            held_out.to_dataloader(train=False, batch_size=320),
        )
    return scores.values


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    settings = {
        "hidden_size": 30,
        "rnn_layers": 2,
        "dropout": 0.1,
        "optimiser": "the default, .01",
        "gradient_clip_val": 0.1,
        "batch_size": BATCH,
        "epochs": EPOCHS,
        "not defaults": "hidden_size, the rate (.001), gradient_clip_val, batch_size, epochs",
    }
    task = Task(
        "RecurrentNetwork LSTM, final test of a batch",
        f"MAE of the test of {BATCHES} other batches",
        STEPS - 1,  # the host's encoder reads each value with the next step's settings
        BATCHES // BATCH,
        settings,
        trained,
    )
    measured("pytorch-forecasting", ["pytorch-forecasting", "lightning"], [task])


if __name__ == "__main__":
    main()
