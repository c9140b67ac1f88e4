"""neuralforecast: indoor temperature of heavy buildings without its own past, and the airline passengers.

    .hosts/neuralforecast/bin/python benchmarks/hosts/measure_neuralforecast.py

`LSTM` with Adam at .001 and the loss MAE, its defaults. Some 6 minutes on one core.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
import pandas as pd
import torch
from compared import Task, measured
from neuralforecast import NeuralForecast
from neuralforecast.models import LSTM
from neuralforecast.utils import AirPassengersPanel
from pytorch_lightning import Callback

from isornn.integrations.lightning import CriticalStart

WINDOW, LAG = 200, 100  # hours
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "logger": False,
}


class Scores(Callback):
    """The loss of every validation."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.values.append(float(trainer.callback_metrics["ptl/val_loss"]))


def callbacks(start: bool) -> list[Any]:
    return [Scores(), CriticalStart()] if start else [Scores()]


def scores(model: LSTM, data: pd.DataFrame, freq: str, val_size: int) -> list[float]:
    """Train; neuralforecast does that with a copy of the model and of its callbacks."""
    forecast = NeuralForecast([model], freq=freq)
    forecast.fit(data, val_size=val_size)
    found: list[float] = forecast.models[0].trainer_kwargs["callbacks"][0].values
    return found


def buildings() -> pd.DataFrame:
    """20 buildings for 1500 hours: their temperature comes 1 % an hour nearer to what weather and heating make it."""
    rng = np.random.default_rng(0)
    hours, frames = np.arange(2000), []
    for building in range(20):
        outside, noise = np.zeros(2000), 0.2 * rng.standard_normal(2000)
        for t in hours[1:]:
            outside[t] = 0.98 * outside[t - 1] + noise[t]
        outside += 0.7 * np.sin(2 * np.pi * hours / 24)
        heating = (rng.random(2000) < 0.3).astype(float)
        inside = np.zeros(2000)
        for t in hours[1:]:
            inside[t] = inside[t - 1] + (outside[t] + 5 * (heating[t] - 0.3) - inside[t - 1]) / LAG
        inside += 0.05 * rng.standard_normal(2000)
        columns = {"y": inside, "outside": outside, "heating": heating}
        frames.append(
            pd.DataFrame({name: values[500:] for name, values in columns.items()}).assign(
                unique_id=str(building), ds=pd.date_range("2024-01-01", periods=1500, freq="h")
            )
        )
    data = pd.concat(frames, ignore_index=True)
    for name in ("y", "outside", "heating"):
        data[name] = ((data[name] - data[name].mean()) / data[name].std()).astype(np.float32)
    return data


def sensor(seed: int, start: bool) -> list[float]:
    """Validation loss of 25 times 20 updates."""
    model = LSTM(
        h=12,
        input_size=WINDOW,
        encoder_n_layers=1,
        encoder_hidden_size=32,
        hist_exog_list=["outside", "heating"],
        exclude_insample_y=True,
        scaler_type="identity",
        windows_batch_size=32,
        max_steps=500,
        val_check_steps=20,
        random_seed=seed,
        callbacks=callbacks(start),
        **QUIET,
    )
    return scores(model, buildings(), "h", 36)


def airline(seed: int, start: bool) -> list[float]:
    """Validation loss of 30 times 10 updates."""
    model = LSTM(
        h=12,
        input_size=24,
        max_steps=300,
        val_check_steps=10,
        random_seed=seed,
        callbacks=callbacks(start),
        **QUIET,
    )
    return scores(model, AirPassengersPanel[["unique_id", "ds", "y"]], "ME", 24)


def main() -> None:
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    shared = {"optimiser": "Adam, .001", "loss": "MAE"}
    measured(
        "neuralforecast",
        ["neuralforecast", "pytorch-lightning"],
        [
            Task(
                "LSTM, temperature of heavy buildings from weather and heating",
                "MAE of 12 hours ahead, last 36 hours of 20 buildings",
                WINDOW,
                20,
                shared
                | {
                    "encoder_hidden_size": 32,
                    "encoder_n_layers": 1,
                    "windows_batch_size": 32,
                    "scaler_type": "identity",
                    "exclude_insample_y": True,
                    "max_steps": 500,
                    "not defaults": "all of these but the optimiser and the loss",
                },
                sensor,
            ),
            Task(
                "LSTM, airline passengers",
                "MAE of 12 months ahead, last 24 months of 2 series",
                24,
                10,
                shared | {"max_steps": 300, "not defaults": "max_steps"},
                airline,
            ),
        ],
    )


if __name__ == "__main__":
    main()
