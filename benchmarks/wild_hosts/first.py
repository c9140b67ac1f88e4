"""The first 30 cases, on which the rules may still be changed. Verdicts were written before they were tried."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wild_hosts.case import (
    VANISHES,
    Built,
    Case,
    as_it_is,
    critical,
    detached,
    forget_3,
    in_pieces,
    keeps,
    nemo,
    on,
    one_nan,
    ones_twice,
    padded,
    raw,
    scaled,
    stacked,
    stuck_open,
    trained,
)
from wild_hosts.forecasting import darts, gluonts_deepar, gluonts_tft, neuralforecast, pytorch_forecasting, sktime
from wild_hosts.policies import recurrent_policy


def block(cell: str, steps: int = 200) -> Built:
    """darts' BlockRNNModel."""
    return darts("BlockRNNModel", model=cell, input_chunk_length=steps, output_chunk_length=4, hidden_dim=32)


def stepwise(cell: str, steps: int = 200) -> Built:
    """darts' RNNModel."""
    return darts("RNNModel", model=cell, input_chunk_length=100, training_length=steps, hidden_dim=32)


def neural(model: str, /, steps: int = 150, **options: Any) -> Built:
    """neuralforecast's."""
    return neuralforecast(model, input_size=steps, scaler_type="standard", **options)


def gru(module: str = "GRU", steps: int = 120, **options: Any) -> Built:
    """sktime's GRU networks."""
    layers = {"n_layers": 1} if module == "GRU" else {"gru_layers": 1}
    made: dict[str, Any] = {
        "input_size": 3,
        "hidden_dim": 48,
        "batch_first": True,
        "num_classes": 2,
        **layers,
        **options,
    }
    return sktime("gru", module, steps, **made)


def year() -> Built:
    """A year of days of white noise through sktime's LSTM-FCN."""
    model, _ = sktime(
        "lstmfcn._lstmfcn_torch", "LSTMFCNNetworkTorch", input_size=5, num_classes=2, lstm_size=128, init_weights=None
    )
    draws = np.random.default_rng(3)
    return model, torch.from_numpy(draws.standard_normal((8, 365, 5)).astype(np.float32))


def square(output: Any) -> Tensor:
    """A loss of the first tensor that an output has."""
    while not isinstance(output, Tensor):
        output = output.prediction if hasattr(output, "prediction") else next(iter(output))
    return (output - 1).square().mean()


def default(name: str, host: str, build: Any) -> Case:
    """torch's start over a long sequence."""
    return Case(name, host, build, as_it_is, "default_start", VANISHES)


def well(name: str, host: str, build: Any) -> Case:
    """The critical start."""
    return Case(f"{name}, critical_", host, build, critical, None)


FIRST: tuple[Case, ...] = (
    default("darts BlockRNNModel LSTM", "darts", partial(block, "LSTM")),
    well("darts BlockRNNModel GRU", "darts", partial(block, "GRU")),
    Case("darts BlockRNNModel GRU, 5 steps", "darts", partial(block, "GRU", 5), as_it_is, None),
    Case(
        "darts RNNModel LSTM, forget bias 14", "darts", partial(stepwise, "LSTM"), stuck_open, "saturated_forget_gate"
    ),
    Case("darts RNNModel RNN, matrices x 6", "darts", partial(stepwise, "RNN"), scaled(6.0), "exploding"),
    Case(
        "darts BlockRNNModel LSTM, graph kept", "darts", partial(block, "LSTM"), keeps(detaches=False), "not_detached"
    ),
    default("neuralforecast LSTM", "neuralforecast", partial(neural, "LSTM", encoder_n_layers=2)),
    well("neuralforecast GRU", "neuralforecast", partial(neural, "GRU", encoder_n_layers=1)),
    default("neuralforecast LSTM recurrent", "neuralforecast", partial(neural, "LSTM", recurrent=True)),
    Case(
        "neuralforecast RNN, matrices x 5",
        "neuralforecast",
        partial(neural, "RNN", encoder_n_layers=1),
        scaled(5.0),
        "exploding",
    ),
    Case(
        "neuralforecast DeepAR, doubled bias",
        "neuralforecast",
        partial(neural, "DeepAR", lstm_n_layers=1),
        nemo,
        "doubled_bias",
    ),
    Case(
        "neuralforecast GRU, in pieces",
        "neuralforecast",
        partial(neural, "GRU", encoder_n_layers=1),
        in_pieces(carried=False),
        "state_not_carried",
    ),
    Case(
        "neuralforecast LSTM, windows",
        "neuralforecast",
        partial(neural, "LSTM", encoder_n_layers=1),
        in_pieces(carried=True),
        "truncated",
    ),
    default(
        "pytorch-forecasting RecurrentNetwork",
        "pytorch-forecasting",
        partial(pytorch_forecasting, "RecurrentNetwork", cell_type="LSTM", hidden_size=32),
    ),
    well("pytorch-forecasting DeepAR", "pytorch-forecasting", partial(pytorch_forecasting, "DeepAR", hidden_size=32)),
    Case(
        "pytorch-forecasting TFT",
        "pytorch-forecasting",
        partial(pytorch_forecasting, "TemporalFusionTransformer", hidden_size=16),
        as_it_is,
        "default_start",
        VANISHES,
    ),
    Case(
        "pytorch-forecasting DeepAR GRU, stacked",
        "pytorch-forecasting",
        partial(pytorch_forecasting, "DeepAR", hidden_size=32, cell_type="GRU"),
        stacked,
        "stacked_orthogonal",
        VANISHES,
    ),
    default("gluonts DeepAR", "gluonts", gluonts_deepar),
    Case(
        "gluonts DeepAR, two forget biases of 1",
        "gluonts",
        gluonts_deepar,
        ones_twice,
        "doubled_bias",
        VANISHES | {"default_start"},
    ),
    well("gluonts DeepAR, one layer", "gluonts", partial(gluonts_deepar, num_layers=1)),
    default("gluonts TFT", "gluonts", gluonts_tft),
    Case("sktime GRU", "sktime", gru, as_it_is, "stacked_orthogonal", VANISHES),
    Case(
        "sktime GRU bidirectional, raw",
        "sktime",
        partial(gru, bidirectional=True),
        on("X", raw),
        "unnormalised_input",
        frozenset({"reverse_at_start"}),  # sktime reads the output at the last step, of both directions
    ),
    Case("sktime GRU, missing value", "sktime", gru, on("X", one_nan), "not_finite"),
    Case("sktime GRU, padded", "sktime", gru, on("X", padded), "padding"),
    Case("sktime LSTM-FCN over a year, forget bias 3", "sktime", year, forget_3, "edge_of_chaos"),
    Case("sktime GRU, trained a little", "sktime", partial(gru, init_weights=False), trained(square), "vanishing"),
    default("sb3-contrib MlpLstmPolicy", "sb3_contrib", recurrent_policy),
    Case(
        "sb3-contrib MlpLstmPolicy, critical_",
        "sb3_contrib",
        partial(recurrent_policy, lstm_hidden_size=64),
        critical,
        None,
    ),
    Case(
        "sb3-contrib MlpLstmPolicy, shared, results detached",
        "sb3_contrib",
        partial(recurrent_policy, lstm_hidden_size=64, shared_lstm=True, enable_critic_lstm=False),
        detached,
        "unused",
    ),
)
