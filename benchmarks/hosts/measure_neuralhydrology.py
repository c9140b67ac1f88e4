"""neuralhydrology's CudaLSTM with and without the critical start, on a catchment whose flow comes from a slow store.

The settings are those of the host's own tutorial for one basin, which sets the forget gate's bias to 3; the second task
leaves it as torch draws it. The flow is made here: 70 % of what does not evaporate goes through a linear store of 150
days, the rest through one of 3 days, and precipitation below freezing waits as snow. NSE is 1 minus the mean squared
error over the variance.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from compared import Run, Task, measured
from neuralhydrology.training.basetrainer import BaseTrainer
from neuralhydrology.utils.config import Config

from isornn import init

BASIN, EPOCHS, UPDATES = "made", 12, 13
TUTORIAL: dict[str, Any] = {
    "model": "cudalstm",
    "head": "regression",
    "output_activation": "linear",
    "hidden_size": 20,
    "initial_forget_bias": 3,
    "output_dropout": 0.4,
    "optimizer": "Adam",
    "loss": "MSE",
    "learning_rate": {0: 1e-2},
    "batch_size": 256,
    "clip_gradient_norm": 1,
    "predict_last_n": 1,
    "seq_length": 365,
}


def catchment(days: int, generator: np.random.Generator) -> pd.DataFrame:
    """Daily precipitation and temperature, and the flow out of two linear stores, all in mm and degrees."""
    date = pd.date_range("1990-10-01", periods=days, name="date")
    season = np.sin(2 * np.pi * (np.arange(days) - 200) / 365.25)
    temperature = 9 + 10 * season + generator.normal(0, 3, days)
    wet = np.zeros(days, bool)
    for day in range(1, days):
        wet[day] = generator.random() < (0.65 if wet[day - 1] else 0.2)
    precipitation = wet * generator.exponential(8.0, days)
    snow = slow = fast = 0.0
    flow = np.zeros(days)
    for day in range(days):
        cold = temperature[day] < 0
        melt = 0.0 if cold else min(snow, 3.0 * temperature[day])
        snow += (precipitation[day] if cold else 0.0) - melt
        water = (0.0 if cold else precipitation[day]) + melt
        water = max(water - 0.15 * max(temperature[day], 0.0), 0.0)
        slow += 0.7 * water - slow / 150
        fast += 0.3 * water - fast / 3
        flow[day] = slow / 150 + fast / 3
    return pd.DataFrame({"precipitation": precipitation, "temperature": temperature, "flow": flow}, index=date)


def write_data(folder: Path) -> None:
    """The layout of the host's generic data set: one netCDF file for each basin, and a list of basins."""
    (folder / "time_series").mkdir(parents=True)
    series = catchment(15 * 366, np.random.default_rng(0))
    series.to_xarray().to_netcdf(folder / "time_series" / f"{BASIN}.nc", engine="scipy")
    (folder / "basins.txt").write_text(f"{BASIN}\n")


def config(folder: Path, seed: int, settings: dict[str, Any]) -> Config:
    """Ten years to train on, of which the first fills the windows, and three to validate on."""
    basins = str(folder / "basins.txt")
    return Config(
        {
            **settings,
            "experiment_name": "made",
            "run_dir": str(folder / "runs"),
            "dataset": "generic",
            "data_dir": str(folder),
            "dynamic_inputs": ["precipitation", "temperature"],
            "target_variables": ["flow"],
            "clip_targets_to_zero": ["flow"],
            **{f"{period}_basin_file": basins for period in ("train", "validation", "test")},
            "train_start_date": "01/10/1991",
            "train_end_date": "30/09/2000",
            "validation_start_date": "01/10/2000",
            "validation_end_date": "30/09/2003",
            "test_start_date": "01/10/2003",
            "test_end_date": "30/09/2004",
            "epochs": EPOCHS,
            "validate_every": 1,
            "validate_n_random_basins": 1,
            "cache_validation_data": True,
            "save_weights_every": EPOCHS,
            "metrics": ["NSE"],
            "seed": seed,
            "device": "cpu",
            "num_workers": 0,
            "verbose": 0,
        }
    )


def run_of(settings: dict[str, Any]) -> Run:
    def run(seed: int, start: bool) -> Sequence[float]:
        with tempfile.TemporaryDirectory() as folder:
            write_data(Path(folder))
            trainer = BaseTrainer(config(Path(folder), seed, settings))
            trainer.initialize_training()
            scores = keep_scores(trainer)
            if start:
                generator = torch.Generator().manual_seed(seed)
                init.critical_(trainer.model, batch=next(iter(trainer.loader)), generator=generator)
                torch.manual_seed(seed)  # the loader and dropout then draw as without the start's batch
            else:
                torch.manual_seed(seed)
            trainer.train_and_validate()
        return scores

    return run


def keep_scores(trainer: BaseTrainer) -> list[float]:
    """A list that gets the NSE of each of the trainer's own validations."""
    scores: list[float] = []
    evaluate = trainer.validator.evaluate

    def kept(**arguments: Any) -> Any:
        results = evaluate(**arguments)
        scores.append(float(results[BASIN]["1D"]["NSE"]))
        return results

    trainer.validator.evaluate = kept
    return scores


def task(name: str, settings: dict[str, Any], note: str) -> Task:
    return Task(
        name=f"CudaLSTM, {name}",
        score="NSE of three other years",
        length=settings["seq_length"],
        updates=UPDATES,
        settings={**settings, "epochs": EPOCHS, "note": note},
        run=run_of(settings),
        higher=True,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    measured(
        "neuralhydrology",
        ["neuralhydrology", "numpy", "pandas"],
        [
            task("forget bias 3", TUTORIAL, "settings of the host's tutorial"),
            task("torch's biases", {**TUTORIAL, "initial_forget_bias": None}, "the tutorial's but for the bias"),
        ],
    )
