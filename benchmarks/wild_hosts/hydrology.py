"""neuralhydrology."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from wild_hosts.case import Built


def neuralhydrology(model: str, /, steps: int = 365, **options: Any) -> Built:
    """A model of ``neuralhydrology.modelzoo`` by ``get_model`` of a Config, and the dict that its forward takes.

    Inputs are standardised, as its data sets make them: five dynamic ones, correlated from day to day, and two static.
    """
    config = import_module("neuralhydrology.utils.config").Config
    dynamic, shifted = ["prcp", "srad", "tmax", "tmin", "vp"], ["q_shift1"] if model == "arlstm" else []
    forecast = "forecast" in model
    settings = {
        "model": model,
        "head": "regression",
        "dynamic_inputs": dynamic,
        "static_attributes": ["area", "slope"],
        "target_variables": ["q"],
        "hidden_size": 64,
        "output_dropout": 0.4,
        "seq_length": steps,
        "predict_last_n": 1,
        "loss": "mse",
        **({"autoregressive_inputs": shifted} if shifted else {}),
        **({"hindcast_inputs": dynamic, "forecast_inputs": dynamic, "forecast_seq_length": 30} if forecast else {}),
        **options,
    }
    torch.manual_seed(0)
    made = import_module("neuralhydrology.modelzoo").get_model(config(settings))
    generator = torch.Generator().manual_seed(1)
    days = {name: _daily(8, steps, generator) for name in (*dynamic, *shifted)}
    key = ("x_d_hindcast", "x_d_forecast") if forecast else ("x_d",)
    data: dict[str, Any] = {"x_s": torch.randn(8, 2, generator=generator)}
    for name in key:
        data[name] = {one: values[:, -30:] if name == "x_d_forecast" else values for one, values in days.items()}
    return made, {"data": data}


def _daily(count: int, steps: int, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(count, steps, 1, generator=generator)
    for t in range(1, steps):
        noise[:, t] = 0.7 * noise[:, t - 1] + 0.714 * noise[:, t]
    return noise
