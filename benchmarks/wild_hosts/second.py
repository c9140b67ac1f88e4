"""The last 30 cases. Verdicts were written before they were tried; nothing was changed afterwards."""

from __future__ import annotations

from functools import partial

import torch

from wild_hosts.audio import encodec, encodec_encoder, masker, recurrent, separator
from wild_hosts.case import (
    VANISHES,
    Case,
    as_it_is,
    critical,
    forget_3,
    keeps,
    on,
    one_nan,
    stacked,
    trained,
)
from wild_hosts.first import default, neural, square, stepwise, well
from wild_hosts.forecasting import darts, sktime
from wild_hosts.hydrology import neuralhydrology
from wild_hosts.policies import recurrent_policy

HYDROLOGY, ASTEROID, SB3 = "neuralhydrology", "asteroid", "sb3_contrib"
cudalstm = partial(neuralhydrology, "cudalstm", hidden_size=128)
forecast = {"hiddens": [16, 8], "activation": "tanh", "dropout": 0.0}
multihead = partial(neuralhydrology, "multihead_forecast_lstm", forecast_network=forecast)
handoff = partial(
    neuralhydrology,
    "handoff_forecast_lstm",
    hindcast_hidden_size=128,
    forecast_hidden_size=128,
    state_handoff_network=forecast,
    initial_forget_bias=3,
)
policy = partial(recurrent_policy, lstm_hidden_size=32, enable_critic_lstm=False)
tft = partial(darts, "TFTModel", input_chunk_length=100, output_chunk_length=8, hidden_size=16, add_relative_index=True)
dprnn = partial(masker, "DPRNN", bn_chan=24, hid_size=24, chunk_size=60, n_repeats=1)
relu = partial(
    sktime,
    "rnn._rnn_torch",
    "RNNNetworkTorch",
    input_size=3,
    num_classes=2,
    hidden_dim=32,
    n_layers=1,
    activation_hidden=torch.nn.ReLU(),
)
grufcn = partial(sktime, "gru", "GRUFCNN", input_size=3, hidden_dim=16, gru_layers=1, batch_first=True, num_classes=2)

SECOND: tuple[Case, ...] = (
    Case(
        "neuralhydrology CudaLSTM, initial_forget_bias 3",
        HYDROLOGY,
        partial(cudalstm, initial_forget_bias=3),
        as_it_is,
        "edge_of_chaos",
    ),
    default("neuralhydrology CudaLSTM", HYDROLOGY, cudalstm),
    well("neuralhydrology CudaLSTM", HYDROLOGY, cudalstm),
    default("neuralhydrology GRU", HYDROLOGY, partial(neuralhydrology, "gru")),
    Case(
        "neuralhydrology ARLSTM, initial_forget_bias 3, 60 steps",
        HYDROLOGY,
        partial(neuralhydrology, "arlstm", 60, initial_forget_bias=3),
        as_it_is,
        None,
    ),
    well("neuralhydrology MultiHeadForecastLSTM", HYDROLOGY, multihead),
    Case("neuralhydrology HandoffForecastLSTM, bias 3", HYDROLOGY, handoff, as_it_is, "edge_of_chaos"),
    Case(
        "neuralhydrology EmbCudaLSTM, missing value",
        HYDROLOGY,
        partial(neuralhydrology, "embcudalstm"),
        on("prcp", one_nan),
        "not_finite",
    ),
    well("asteroid SingleRNN", ASTEROID, partial(recurrent, "SingleRNN", "LSTM", 24, 32, bidirectional=True)),
    default("asteroid MulCatRNN", ASTEROID, partial(recurrent, "MulCatRNN", "LSTM", 24, 32)),
    well("asteroid StackedResidualRNN", ASTEROID, partial(recurrent, "StackedResidualRNN", "GRU", 24, 2)),
    Case(
        "asteroid StackedResidualBiRNN, forget bias 3, 30 steps",
        ASTEROID,
        partial(recurrent, "StackedResidualBiRNN", "LSTM", 24, 2, steps=30),
        forget_3,
        None,
    ),
    well("asteroid DPRNN", ASTEROID, dprnn),
    default("asteroid DPRNN", ASTEROID, dprnn),
    Case(
        "asteroid LSTMMasker, stacked",
        ASTEROID,
        partial(masker, "LSTMMasker", n_layers=2, hid_size=32),
        stacked,
        "stacked_orthogonal",
        VANISHES,
    ),
    default("asteroid LSTMTasNet", ASTEROID, partial(separator, "LSTMTasNet", hid_size=32, n_layers=1, n_filters=32)),
    well(
        "asteroid DPTNet",
        ASTEROID,
        partial(separator, "DPTNet", n_filters=16, n_repeats=1, ff_hid=16, chunk_size=50),
    ),
    Case(
        "transformers EncodecModel, codes between",
        "transformers",
        encodec,
        as_it_is,
        "unused",
        VANISHES | {"default_start"},
    ),
    well("transformers EncodecModel's encoder", "transformers", encodec_encoder),
    default("sb3-contrib MlpLstmPolicy, two layers", SB3, partial(recurrent_policy, n_lstm_layers=2)),
    Case("sb3-contrib MlpLstmPolicy, state kept", SB3, policy, keeps(detaches=True), "state_carried"),
    Case("sb3-contrib MlpLstmPolicy, 8 steps", SB3, partial(policy, steps=4), as_it_is, None),
    default("darts TFTModel", "darts", tft),
    well("darts TFTModel", "darts", tft),
    Case(
        "darts RNNModel GRU, trained a little",
        "darts",
        partial(stepwise, "GRU"),
        trained(square, 20),
        "vanishing",
        frozenset({"default_start"}),
    ),
    default(
        "neuralforecast TFT with GRUs",
        "neuralforecast",
        partial(neural, "TFT", 100, hidden_size=16, rnn_type="gru"),
    ),
    default("neuralforecast DilatedRNN", "neuralforecast", partial(neural, "DilatedRNN", 100, encoder_hidden_size=32)),
    Case(
        "neuralforecast RNN, critical_",
        "neuralforecast",
        partial(neural, "RNN", 100, encoder_hidden_size=32),
        critical,
        None,
    ),
    Case("sktime RNN with relu", "sktime", relu, as_it_is, "vanishing"),
    Case("sktime GRU-FCN", "sktime", grufcn, as_it_is, "vanishing"),
)
