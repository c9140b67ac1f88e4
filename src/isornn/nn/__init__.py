"""Networks of finite width: a torch layer for each cell, and for a user's own."""

from isornn.nn import typed
from isornn.nn.layers import GRU, LSTM, TGRU, TLSTM, TRNN, ChoGRU, MinimalRNN, PeepholeLSTM, VanillaRNN
from isornn.nn.layout import GateTensors
from isornn.nn.rnn import RNN
from isornn.nn.step import gates_on_plain_state, step

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "TGRU",
    "TLSTM",
    "TRNN",
    "ChoGRU",
    "GateTensors",
    "MinimalRNN",
    "PeepholeLSTM",
    "VanillaRNN",
    "gates_on_plain_state",
    "step",
    "typed",
]
