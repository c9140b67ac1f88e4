"""Torch layers for every cell, including the user's own."""

from isornn.nn import soft_constraints, spectral, typed
from isornn.nn.layers import (
    GRU,
    LSTM,
    SCRN,
    TGRU,
    TLSTM,
    TMR,
    TRNN,
    ChoGRU,
    CoupledLSTM,
    GersLSTM,
    MinimalRNN,
    PeepholeLSTM,
    VanillaRNN,
)
from isornn.nn.layout import GateTensors
from isornn.nn.own_steps import OwnSteps
from isornn.nn.rnn import RNN
from isornn.nn.scan import linear_scan
from isornn.nn.spectral import parametrize_spectral_
from isornn.nn.spectral_rnn import SpectralRNN
from isornn.nn.step import step

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "SCRN",
    "TGRU",
    "TLSTM",
    "TMR",
    "TRNN",
    "ChoGRU",
    "CoupledLSTM",
    "GateTensors",
    "GersLSTM",
    "MinimalRNN",
    "OwnSteps",
    "PeepholeLSTM",
    "SpectralRNN",
    "VanillaRNN",
    "linear_scan",
    "parametrize_spectral_",
    "soft_constraints",
    "spectral",
    "step",
    "typed",
]
