"""Modules and named starts for tests, and what is read of a layer's gates."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from isornn.cells import (
    Gate,
)
from isornn.init import (
    chrono_,
    doubled_chrono_,
    forget_bias_3_,
    forget_bias_3_to_6_,
    glorot_,
    identity_,
    orthogonal_,
    stacked_orthogonal_,
    standard_,
    uniform_gate_,
)
from isornn.nn.gate_tensors import RecurrentLayer

D, N = 24, 48

STACKS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
STEPPERS: dict[str, Callable[..., nn.RNNCellBase]] = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "vanilla": nn.RNNCell}
BASELINES: dict[str, Callable[..., nn.Module]] = {
    "standard": standard_,
    "orthogonal": orthogonal_,
    "glorot": glorot_,
    "identity": identity_,
    "chrono": lambda module, **options: chrono_(module, 100, **options),
    "uniform_gate": uniform_gate_,
    "stacked_orthogonal": stacked_orthogonal_,
    "forget_bias_3": forget_bias_3_,
    "forget_bias_3_to_6": forget_bias_3_to_6_,
    "doubled_chrono": lambda module, **options: doubled_chrono_(module, 100, **options),
}
NEEDS_BIAS = ("standard", "chrono", "uniform_gate", "forget_bias_3", "forget_bias_3_to_6", "doubled_chrono")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tensors_of(layer: RecurrentLayer, gate: str) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """(recurrent, input, summed bias) of one gate in float64."""
    found = layer.gates[gate]
    double = [None if w is None else w.detach().double() for w in (found.recurrent, found.input)]
    return double[0], double[1], torch.stack([b.detach().double() for b in found.biases]).sum(0)


def bias_variance(gate: Gate) -> float:
    """Over units, of the law that `spec_of` has read."""
    return 0.0 if gate.bias_law is None else float(torch.tensor(gate.bias_law.values).double().var(correction=0))


def assert_recovered(found: Gate, wanted: Gate, hidden: int, inputs: int) -> None:
    """Within five standard errors of the sample; a mean square of n normal entries has relative error sqrt(2/n)."""
    for value, true, entries in (
        (found.weight_var, wanted.weight_var, hidden * hidden),
        (found.input_var, wanted.input_var, hidden * inputs),
        (found.previous_input_var, wanted.previous_input_var, hidden * inputs),
        (bias_variance(found), wanted.bias_var, hidden),
    ):
        assert abs(float(value) - float(true)) <= 5 * float(true) * math.sqrt(2 / entries) + 1e-12
    error = math.sqrt(float(wanted.bias_var) / hidden)
    assert abs(float(found.bias_mean) - float(wanted.bias_mean)) <= 5 * error + 1e-6
