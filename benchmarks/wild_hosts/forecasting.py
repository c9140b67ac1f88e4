"""darts, neuralforecast, pytorch-forecasting, gluonts and sktime."""

from __future__ import annotations

import logging
import warnings
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wild_hosts.case import Built, caught

warnings.filterwarnings("ignore")
for name in ("pytorch_lightning", "lightning.pytorch", "lightning", "darts"):
    logging.getLogger(name).setLevel(logging.ERROR)
QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}


def series(count: int, steps: int, seed: int = 0) -> np.ndarray:
    """(count, steps): a daily and a weekly wave and autoregressive noise, of mean 0 and variance near 1."""
    draws = np.random.default_rng(seed)
    time = np.arange(steps)
    waves = np.sin(2 * np.pi * (time[None] / 24 + draws.random((count, 1))))
    noise = draws.standard_normal((count, steps))
    for t in range(1, steps):
        noise[:, t] += 0.6 * noise[:, t - 1]
    return ((waves + 0.6 * noise) / 1.2).astype(np.float32)


# ---- darts ----


def darts(model: str, /, **options: Any) -> Built:
    """``darts.models.<model>`` fitted on three series; its module and first batch."""
    models, TimeSeries = import_module("darts.models"), import_module("darts").TimeSeries
    torch.manual_seed(0)
    lightning = {**QUIET, "max_epochs": 1}
    made = getattr(models, model)(batch_size=8, n_epochs=1, random_state=0, pl_trainer_kwargs=lightning, **options)
    data = [TimeSeries.from_values(values) for values in series(3, 520)]
    kind = import_module("darts.models.forecasting." + _DARTS[model][0])
    return caught(getattr(kind, _DARTS[model][1]), lambda: made.fit(data, max_samples_per_ts=8))


_DARTS = {
    "RNNModel": ("rnn_model", "_RNNModule"),
    "BlockRNNModel": ("block_rnn_model", "_BlockRNNModule"),
    "TFTModel": ("tft_model", "_TFTModule"),
}


# ---- neuralforecast ----


def neuralforecast(model: str, /, **options: Any) -> Built:
    """``neuralforecast.models.<model>`` fitted on three series; itself and its first batch."""
    pandas = import_module("pandas")
    kind = getattr(import_module("neuralforecast.models"), model)
    forecast = import_module("neuralforecast").NeuralForecast
    frames = [
        pandas.DataFrame({"unique_id": f"s{n}", "ds": pandas.date_range("2020", periods=520, freq="h"), "y": values})
        for n, values in enumerate(series(3, 520))
    ]
    made = kind(h=12, max_steps=1, batch_size=3, windows_batch_size=8, random_seed=1, **QUIET, **options)
    return caught(kind, lambda: forecast(models=[made], freq="h").fit(pandas.concat(frames)))


# ---- pytorch-forecasting ----


def pytorch_forecasting(model: str, /, steps: int = 200, **options: Any) -> Built:
    """``pytorch_forecasting.<model>`` from a TimeSeriesDataSet, and the first batch of its loader."""
    pandas, package = import_module("pandas"), import_module("pytorch_forecasting")
    values = series(3, 420)
    frame = pandas.concat(
        [
            pandas.DataFrame({"time": np.arange(420), "group": str(n), "value": own, "other": np.roll(own, 7)})
            for n, own in enumerate(values)
        ],
        ignore_index=True,
    )
    data = package.TimeSeriesDataSet(
        frame,
        time_idx="time",
        target="value",
        group_ids=["group"],
        max_encoder_length=steps,
        min_encoder_length=steps,
        max_prediction_length=12,
        time_varying_unknown_reals=["value"],
        time_varying_known_reals=["other"] if model != "RecurrentNetwork" else [],
        target_normalizer=package.data.GroupNormalizer(groups=["group"]),
    )
    torch.manual_seed(0)
    made = getattr(package, model).from_dataset(data, **options)
    x, _ = next(iter(data.to_dataloader(train=True, batch_size=8, num_workers=0)))
    return made, {"x": x}


# ---- gluonts ----


def gluonts_deepar(steps: int = 150, **options: Any) -> Built:
    """``DeepARModel`` with lags of a day, and the arguments of its forward."""
    kind = import_module("gluonts.torch.model.deepar.module").DeepARModel
    torch.manual_seed(0)
    lags = [1, 2, 24]
    model = kind(freq="h", context_length=steps, prediction_length=6, lags_seq=lags, num_parallel_samples=2, **options)
    past = steps + max(lags)
    values = torch.from_numpy(series(8, past))
    return model, {
        "feat_static_cat": torch.zeros(8, 1, dtype=torch.long),
        "feat_static_real": torch.zeros(8, 1),
        "past_time_feat": _clock(8, past, 0),
        "past_target": values,
        "past_observed_values": torch.ones(8, past),
        "future_time_feat": _clock(8, 6, past),
    }


def _clock(batch: int, steps: int, start: int) -> Tensor:
    hours = torch.sin(2 * torch.pi * (start + torch.arange(steps)) / 24)
    return hours.expand(batch, steps).unsqueeze(-1).clone()


def gluonts_tft(steps: int = 150) -> Built:
    """The TFT's recurrent encoder and decoder, ``TemporalFusionTransformerModel``, and the arguments of its forward."""
    kind = import_module("gluonts.torch.model.tft.module").TemporalFusionTransformerModel
    torch.manual_seed(0)
    model = kind(context_length=steps, prediction_length=12, d_past_feat_dynamic_real=[1], d_feat_dynamic_real=[1])
    return model, {
        "past_target": torch.from_numpy(series(8, steps)),
        "past_observed_values": torch.ones(8, steps),
        "feat_static_real": torch.zeros(8, 1),
        "feat_static_cat": torch.zeros(8, 1, dtype=torch.long),
        "feat_dynamic_real": _clock(8, steps + 12, 0),
        "feat_dynamic_cat": None,
        "past_feat_dynamic_real": _clock(8, steps, 5),
    }


# ---- sktime ----


def sktime(module: str, kind: str, /, steps: int = 120, **options: Any) -> Built:
    """A network of ``sktime.networks`` and a batch (B, T, 3)."""
    torch.manual_seed(0)
    model = getattr(import_module("sktime.networks." + module), kind)(**options)
    x = torch.from_numpy(np.stack([series(8, steps, seed) for seed in range(3)], -1))
    return model, x
