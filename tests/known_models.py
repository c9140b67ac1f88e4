"""Models that have one known flaw each, and sound ones, as people build them.

What is wrong is done with plain torch, as a user would do it, and by nothing that the diagnosis measures with. Beside
its own kind a model may show what follows from it (``also``): a network whose gates are shut does vanish.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import isornn
from model_parts import (
    Branched,
    Encoder,
    FirstOutput,
    FromStatics,
    KnownModel,
    LastOfPacked,
    LastOutput,
    PaddedFurther,
    Reader,
    Stateful,
    StatesReshaped,
    StatesTransposed,
    as_packed,
    critical_,
    filled,
    noise,
    padded,
    scaled,
    seeded,
    stacked,
)

KINDS = (
    "along_batch",
    "amplified",
    "axes_mixed",
    "default_start",
    "doubled_bias",
    "edge_of_chaos",
    "exploding",
    "forward_at_start",
    "heavy_tails",
    "not_detached",
    "not_reached",
    "padding",
    "reverse_at_start",
    "saturated_forget_gate",
    "shorter_unread",
    "small_features",
    "stacked_orthogonal",
    "state_carried",
    "state_not_carried",
    "states_exchanged",
    "truncated",
    "unnormalised_input",
    "unnormalised_state",
    "unused",
    "vanishing",
    "zero_gradient",
)


# ---- flawed ----


def vanishing_rnn() -> KnownModel:
    rnn = nn.RNN(8, 64)
    isornn.init.orthogonal_(rnn, generator=seeded(1))
    scaled(rnn, "weight_hh", 0.5)
    return KnownModel("vanishing_rnn", "vanishing", Reader(rnn, 64), noise(100, 16, 8), 100)


def vanishing_lstm() -> KnownModel:
    lstm = nn.LSTM(20, 96, batch_first=True)
    isornn.init.standard_(lstm, generator=seeded(2))
    filled(lstm, "bias_ih", 1, 4, -2.0)
    # As much is forgotten by a shut gate: what it is called is a matter of taste.
    also = frozenset({"saturated_forget_gate"})
    return KnownModel("vanishing_lstm", "vanishing", Reader(lstm, 96), noise(16, 100, 20), 100, also)


def vanishing_gru() -> KnownModel:
    gru = nn.GRU(12, 64, num_layers=2)
    isornn.init.standard_(gru, generator=seeded(3))
    filled(gru, "bias_ih", 1, 3, -3.0)
    also = frozenset({"saturated_forget_gate"})
    return KnownModel("vanishing_gru", "vanishing", Reader(gru, 64), noise(200, 8, 12), 200, also)


def exploding_relu() -> KnownModel:
    rnn = nn.RNN(8, 64, nonlinearity="relu")
    isornn.init.identity_(rnn, generator=seeded(4))
    scaled(rnn, "weight_hh", 1.3)
    return KnownModel("exploding_relu", "exploding", Reader(rnn, 64), noise(60, 16, 8), 60)


def exploding_tanh() -> KnownModel:
    rnn = nn.RNN(8, 128, batch_first=True)
    isornn.init.orthogonal_(rnn, generator=seeded(5))
    scaled(rnn, "weight_hh", 4.0)
    return KnownModel("exploding_tanh", "exploding", Reader(rnn, 128), noise(16, 80, 8), 80)


def exploding_lstm() -> KnownModel:
    lstm = nn.LSTM(16, 128)
    isornn.init.standard_(lstm, generator=seeded(6))
    filled(lstm, "bias_ih", 1, 4, 3.0)
    scaled(lstm, "weight_hh", 12.0)
    also = frozenset({"saturated_forget_gate"})
    return KnownModel("exploding_lstm", "exploding", Reader(lstm, 128), noise(100, 8, 16), 100, also)


def coupled_relu() -> KnownModel:
    """One large entry: a gradient grows a million times over the first step back, and hardly from there on."""
    rnn = nn.RNN(8, 64, nonlinearity="relu")
    isornn.init.identity_(rnn, generator=seeded(39))
    scaled(rnn, "weight_hh", 0.98)
    with torch.no_grad():
        rnn.weight_hh_l0[0, 1] = 1e6
    return KnownModel("coupled_relu", "amplified", Reader(rnn, 64), noise(60, 16, 8), 60)


def stuck_open_lstm() -> KnownModel:
    lstm = nn.LSTM(10, 64)
    isornn.init.standard_(lstm, generator=seeded(7))
    filled(lstm, "bias_ih", 1, 4, 14.0)
    return KnownModel("stuck_open_lstm", "saturated_forget_gate", Reader(lstm, 64), noise(120, 16, 10), 120)


def stuck_open_gru() -> KnownModel:
    gru = nn.GRU(10, 64, batch_first=True, bidirectional=True)
    isornn.init.standard_(gru, generator=seeded(8))
    filled(gru, "bias_ih", 1, 3, 16.0)
    also = frozenset({"vanishing"})  # nothing is written either
    return KnownModel("stuck_open_gru", "saturated_forget_gate", Reader(gru, 128), noise(16, 100, 10), 100, also)


def flapping_lstm() -> KnownModel:
    lstm = nn.LSTM(10, 64)
    critical_(lstm, 100, seeded(9))
    with torch.no_grad():
        lstm.weight_ih_l0[64:128] = 40 * noise(64, 10, seed=10)
    also = frozenset({"vanishing"})
    return KnownModel("flapping_lstm", "saturated_forget_gate", Reader(lstm, 64), noise(100, 16, 10), 100, also)


def default_lstm() -> KnownModel:
    torch.manual_seed(11)
    model = Reader(nn.LSTM(28, 128, batch_first=True), 128)
    return KnownModel("default_lstm", "default_start", model, noise(8, 300, 28), 300, frozenset({"vanishing"}))


def default_gru() -> KnownModel:
    torch.manual_seed(12)
    model = Encoder(nn.GRU(24, 48, num_layers=2, batch_first=True, bidirectional=True), 24, 96)
    return KnownModel("default_gru", "default_start", model, noise(8, 150, 24), 150, frozenset({"vanishing"}))


def default_rnn() -> KnownModel:
    torch.manual_seed(13)
    model = Reader(nn.RNN(6, 100), 100)
    return KnownModel("default_rnn", "default_start", model, noise(80, 16, 6), 80, frozenset({"vanishing"}))


def stacked_lstm() -> KnownModel:
    model = Reader(stacked(nn.LSTM(16, 64)), 64)
    return KnownModel("stacked_lstm", "stacked_orthogonal", model, noise(50, 16, 16), 50, frozenset({"vanishing"}))


def stacked_gru() -> KnownModel:
    model = Encoder(stacked(nn.GRU(16, 64, batch_first=True, bidirectional=True)), 16, 128)
    return KnownModel("stacked_gru", "stacked_orthogonal", model, noise(16, 60, 16), 60, frozenset({"vanishing"}))


def stacked_deep_lstm() -> KnownModel:
    lstm = stacked(nn.LSTM(32, 80, num_layers=3, batch_first=True))
    filled(lstm, "bias_ih", 1, 4, 1.0)
    model = Reader(lstm, 80)
    return KnownModel("stacked_deep_lstm", "stacked_orthogonal", model, noise(8, 40, 32), 40, frozenset({"vanishing"}))


def doubled_lstm() -> KnownModel:
    lstm = nn.LSTM(16, 64, batch_first=True)
    isornn.init.orthogonal_(lstm, generator=seeded(16))
    filled(lstm, "bias", 1, 4, 1.0)
    return KnownModel("doubled_lstm", "doubled_bias", Reader(lstm, 64), noise(16, 30, 16), 30, frozenset({"vanishing"}))


def doubled_deep_gru() -> KnownModel:
    gru = nn.GRU(16, 64, num_layers=2)
    isornn.init.orthogonal_(gru, generator=seeded(17))
    filled(gru, "bias", 1, 3, 2.0)
    return KnownModel(
        "doubled_deep_gru", "doubled_bias", Reader(gru, 64), noise(40, 16, 16), 40, frozenset({"vanishing"})
    )


def doubled_chrono() -> KnownModel:
    lstm = nn.LSTM(12, 128)
    isornn.init.orthogonal_(lstm, generator=seeded(18))
    drawn = torch.log(1 + 198 * torch.rand(128, generator=seeded(19)))
    with torch.no_grad():
        for bias in (lstm.bias_ih_l0, lstm.bias_hh_l0):
            bias[128:256], bias[:128] = drawn, -drawn
    return KnownModel("doubled_chrono", "doubled_bias", Reader(lstm, 128), noise(200, 8, 12), 200)


def forget_bias_3() -> KnownModel:
    """neuralhydrology's start, over the year that it is used for."""
    torch.manual_seed(40)
    lstm = nn.LSTM(5, 128)
    with torch.no_grad():
        lstm.bias_hh_l0[128:256] = 3
    return KnownModel("forget_bias_3", "edge_of_chaos", Reader(lstm, 128), noise(365, 8, 5), 365)


def dropped_result() -> KnownModel:
    def dropped(gru: nn.Module, x: Tensor) -> None:
        gru(x)

    return KnownModel("dropped_result", "unused", Branched(dropped), noise(8, 100, 6), 100)


def detached_result() -> KnownModel:
    model = Branched(lambda gru, x: gru(x)[0].detach())
    return KnownModel("detached_result", "unused", model, noise(8, 100, 6), 100)


def never_called() -> KnownModel:
    return KnownModel("never_called", "not_reached", Branched(lambda gru, x: None), noise(8, 100, 6), 100)


def pieces_without_state() -> KnownModel:
    model = Branched(lambda gru, x: torch.cat([gru(part)[0] for part in x.chunk(4, 1)], 1))
    return KnownModel("pieces_without_state", "state_not_carried", model, noise(8, 100, 6), 100)


def steps_without_state() -> KnownModel:
    model = Branched(lambda gru, x: torch.cat([gru(x[:, t : t + 1])[0] for t in range(x.shape[1])], 1))
    return KnownModel("steps_without_state", "state_not_carried", model, noise(8, 100, 6), 100)


def exchanged_states() -> KnownModel:
    def forward(lstm: nn.Module, x: Tensor) -> Tensor:
        out, state = [], None
        for part in x.chunk(4, 1):
            output, (h, c) = lstm(part, state)
            out.append(output)
            state = c, h
        return torch.cat(out, 1)

    return KnownModel("exchanged_states", "states_exchanged", Branched(forward, nn.LSTM), noise(8, 100, 6), 100)


def kept_state() -> KnownModel:
    return KnownModel("kept_state", "state_carried", Stateful(detached=True), noise(8, 100, 6), 100)


def kept_graph() -> KnownModel:
    return KnownModel("kept_graph", "not_detached", Stateful(detached=False), noise(8, 100, 6), 100)


def short_windows() -> KnownModel:
    def windows(gru: nn.Module, x: Tensor) -> Tensor:
        outputs, state = [], None
        for part in x.chunk(5, 1):
            out, state = gru(part, state)
            state = state.detach()
            outputs.append(out)
        return torch.cat(outputs, 1)

    return KnownModel("short_windows", "truncated", Branched(windows), noise(8, 100, 6), 100)


def padded_lstm() -> KnownModel:
    lstm = nn.LSTM(10, 64, batch_first=True)
    critical_(lstm, 120, seeded(20))
    x = padded(noise(12, 120, 10), [120, 110, 90, 80, 70, 60, 55, 50, 45, 40, 30, 20], 0.0)
    return KnownModel("padded_lstm", "padding", Reader(lstm, 64), x, 120)


def padded_gru() -> KnownModel:
    gru = nn.GRU(5, 64, batch_first=True)
    isornn.init.chrono_(gru, 100, generator=seeded(21))
    x = padded(noise(8, 100, 5), [100, 95, 60, 50, 50, 40, 30, 25], -1.0)
    return KnownModel("padded_gru", "padding", Reader(gru, 64), x, 100)


def padded_steps_first() -> KnownModel:
    lstm = nn.LSTM(6, 48, num_layers=2)
    critical_(lstm, 80, seeded(22))
    x = padded(noise(10, 80, 6), [80, 75, 60, 50, 45, 40, 35, 30, 20, 10], 0.0)
    return KnownModel("padded_steps_first", "padding", Reader(lstm, 48), x.transpose(0, 1).contiguous(), 80)


def raw_pixels() -> KnownModel:
    lstm = nn.LSTM(28, 64, batch_first=True)
    critical_(lstm, 60, seeded(23))
    x = torch.randint(0, 256, (16, 60, 28), generator=seeded(24)).float()
    also = frozenset({"saturated_forget_gate", "vanishing", "exploding"})
    return KnownModel("raw_pixels", "unnormalised_input", Reader(lstm, 64), x, 60, also)


def raw_sensor() -> KnownModel:
    gru = nn.GRU(4, 64)
    isornn.init.standard_(gru, generator=seeded(25))
    x = 1013.0 + 5.0 * noise(100, 16, 4)
    also = frozenset({"saturated_forget_gate", "vanishing", "exploding"})
    return KnownModel("raw_sensor", "unnormalised_input", Reader(gru, 64), x, 100, also)


def tiny_volts() -> KnownModel:
    lstm = nn.LSTM(8, 64)
    critical_(lstm, 80, seeded(26))
    return KnownModel("tiny_volts", "unnormalised_input", Reader(lstm, 64), 1e-5 * noise(80, 16, 8), 80)


def batch_as_time() -> KnownModel:
    gru = nn.GRU(5, 32)
    critical_(gru, 100, seeded(120))
    return KnownModel("batch_as_time", "along_batch", LastOutput(gru, 32), noise(24, 100, 5), 100)


def states_reshaped() -> KnownModel:
    gru = nn.GRU(5, 32, 2, batch_first=True)
    critical_(gru, 100, seeded(123))
    return KnownModel("states_reshaped", "axes_mixed", StatesReshaped(gru, 64), noise(6, 100, 5), 100)


def beyond_the_ends() -> KnownModel:
    lstm = nn.LSTM(5, 32, batch_first=True)
    critical_(lstm, 100, seeded(124))
    batch = as_packed(noise(6, 100, 5), [100, 33, 70, 41, 98, 60])
    return KnownModel("beyond_the_ends", "zero_gradient", PaddedFurther(lstm, 32), batch, 100)


def padding_read() -> KnownModel:
    lstm = nn.LSTM(5, 32, batch_first=True)
    critical_(lstm, 60, seeded(121))
    batch = as_packed(noise(6, 60, 5), [60, 33, 60, 41, 38, 60])
    return KnownModel("padding_read", "shorter_unread", LastOutput(lstm, 32), batch, 60)


def reverse_read_early() -> KnownModel:
    lstm = nn.LSTM(5, 32, batch_first=True, bidirectional=True)
    critical_(lstm, 60, seeded(122))
    return KnownModel("reverse_read_early", "reverse_at_start", LastOutput(lstm, 64), noise(6, 60, 5), 60)


def forward_read_early() -> KnownModel:
    lstm = nn.LSTM(5, 32, 2, batch_first=True)
    critical_(lstm, 60, seeded(124))
    return KnownModel("forward_read_early", "forward_at_start", FirstOutput(lstm, 32), noise(6, 60, 5), 60)


def large_start() -> KnownModel:
    gru = nn.GRU(5, 32, batch_first=True)
    critical_(gru, 100, seeded(123))
    return KnownModel("large_start", "unnormalised_state", FromStatics(gru, 32, 1000.0), noise(6, 100, 5), 100)


def features_in_other_units() -> KnownModel:
    """Two of six columns in kilometres, the others in metres, and all of them centred."""
    gru = nn.GRU(6, 64, batch_first=True)
    critical_(gru, 100, seeded(124))
    batch = noise(16, 100, 6) * torch.tensor([1.0, 1.0, 1e-3, 2.0, 1e-3, 0.5])
    return KnownModel("features_in_other_units", "small_features", Reader(gru, 64), batch, 100)


def trading_volumes() -> KnownModel:
    """Standardised, and yet with most values close to one number and a few far beyond it."""
    lstm = nn.LSTM(3, 64, batch_first=True)
    critical_(lstm, 100, seeded(125))
    volumes = (2 * noise(32, 100, 3)).exp()
    batch = (volumes - volumes.mean((0, 1))) / volumes.std((0, 1))
    return KnownModel("trading_volumes", "heavy_tails", Reader(lstm, 64), batch, 100)


# ---- sound ----


def critical_lstm() -> KnownModel:
    lstm = nn.LSTM(49, 128)
    critical_(lstm, 200, seeded(30))
    return KnownModel("critical_lstm", None, Reader(lstm, 128), noise(200, 8, 49), 200)


def critical_deep_bidirectional() -> KnownModel:
    lstm = nn.LSTM(16, 64, num_layers=2, batch_first=True, bidirectional=True)
    critical_(lstm, 100, seeded(31))
    return KnownModel("critical_deep_bidirectional", None, Encoder(lstm, 16, 128), noise(8, 100, 16), 100)


def critical_gru() -> KnownModel:
    gru = nn.GRU(10, 64, batch_first=True)
    critical_(gru, 150, seeded(32))
    return KnownModel("critical_gru", None, Reader(gru, 64), noise(8, 150, 10), 150)


def packed_gru() -> KnownModel:
    """Sequences of several lengths, packed: their padding is nobody's input."""
    gru = nn.GRU(10, 64, batch_first=True)
    critical_(gru, 100, seeded(33))
    x = padded(noise(6, 100, 10), [100, 90, 60, 50, 40, 30], 0.0)
    packed = pack_padded_sequence(x, torch.tensor([100, 90, 60, 50, 40, 30]), batch_first=True)
    return KnownModel("packed_gru", None, LastOfPacked(gru, 64), packed, 100)


def one_hot_characters() -> KnownModel:
    """Inputs of small variance by their nature; the same character may come several times in a row at the end."""
    lstm = nn.LSTM(50, 96, batch_first=True)
    critical_(lstm, 100, seeded(34))
    codes = torch.randint(0, 50, (12, 100), generator=seeded(35))
    codes[0, -3:] = 7
    x = nn.functional.one_hot(codes, 50).float()
    return KnownModel("one_hot_characters", None, Reader(lstm, 96), x, 100)


def orthogonal_relu() -> KnownModel:
    """IRNN: the identity and relu; neither grows nor decays along what stays positive."""
    rnn = nn.RNN(4, 100, nonlinearity="relu")
    isornn.init.identity_(rnn, generator=seeded(36))
    scaled(rnn, "weight_ih", 0.3)
    return KnownModel("orthogonal_relu", None, Reader(rnn, 100), noise(60, 8, 4).abs(), 60)


def critical_peephole() -> KnownModel:
    layer = isornn.nn.PeepholeLSTM(16, 64)
    critical_(layer, 150, seeded(37))
    return KnownModel("critical_peephole", None, Reader(layer, 64), noise(150, 8, 16), 150)


def critical_typed() -> KnownModel:
    layer = isornn.nn.TLSTM(16, 64)
    critical_(layer, 100, seeded(38))
    return KnownModel("critical_typed", None, Reader(layer, 64), noise(100, 8, 16), 100)


def start_of_usual_size() -> KnownModel:
    gru = nn.GRU(5, 32, batch_first=True)
    critical_(gru, 100, seeded(124))
    return KnownModel("start_of_usual_size", None, FromStatics(gru, 32, 1.0), noise(6, 100, 5), 100)


def states_transposed() -> KnownModel:
    gru = nn.GRU(5, 32, 2, batch_first=True)
    critical_(gru, 100, seeded(125))
    return KnownModel("states_transposed", None, StatesTransposed(gru, 64), noise(6, 100, 5), 100)


def head_of_zeros() -> KnownModel:
    lstm = nn.LSTM(5, 32, batch_first=True)
    critical_(lstm, 100, seeded(126))
    model = LastOutput(lstm, 32)
    nn.init.zeros_(model.readout.weight)
    return KnownModel("head_of_zeros", None, model, noise(6, 100, 5), 100)


FLAWED: tuple[Callable[[], KnownModel], ...] = (
    *(vanishing_rnn, vanishing_lstm, vanishing_gru),
    *(exploding_relu, exploding_tanh, exploding_lstm, coupled_relu),
    *(stuck_open_lstm, stuck_open_gru, flapping_lstm),
    *(default_lstm, default_gru, default_rnn),
    *(stacked_lstm, stacked_gru, stacked_deep_lstm),
    *(doubled_lstm, doubled_deep_gru, doubled_chrono),
    *(dropped_result, detached_result, never_called),
    *(pieces_without_state, steps_without_state, exchanged_states, kept_state, kept_graph, short_windows),
    forget_bias_3,
    *(padded_lstm, padded_gru, padded_steps_first),
    *(raw_pixels, raw_sensor, tiny_volts),
    *(batch_as_time, states_reshaped, beyond_the_ends, padding_read, reverse_read_early, forward_read_early),
    large_start,
    *(features_in_other_units, trading_volumes),
)

SOUND: tuple[Callable[[], KnownModel], ...] = (
    critical_lstm,
    critical_deep_bidirectional,
    critical_gru,
    packed_gru,
    one_hot_characters,
    orthogonal_relu,
    critical_peephole,
    critical_typed,
    start_of_usual_size,
    states_transposed,
    head_of_zeros,
)
