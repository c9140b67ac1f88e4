"""Populations that several tests sample: slow ones, and how what is measured is compared."""

from __future__ import annotations

import torch

from checked import law
from isornn.cells import LSTM, BiasLaw, Gate, Spec
from isornn.theory.population.engine import Population

LSTM_SLOW = Spec(LSTM(), law(i=(1e-5, 1, 0, 0), f=(1e-5, 0, 0, 5), g=(1e-5, 1, 0, 0), o=(1, 0, 0, 0)))
FORGETS = {"i": Gate(1e-6, 1), "f": Gate(1e-6, bias_mean=2, bias_var=1), "g": Gate(1e-6, 1)}


def population(spec: Spec, seed: int = 0, **options: int) -> Population:
    return Population(spec, generator=torch.Generator().manual_seed(seed), **options)


def close(value: torch.Tensor, error: torch.Tensor, expected: float, relative: float = 0.01) -> bool:
    return bool((value - expected).abs() <= 4 * error + relative * abs(expected))


def spread(longest: float, write_input: float, weight: float = 1e-5) -> Spec:
    """An LSTM with time scales uniform from 1 to ``longest``, its write gate the mirror of its forget gate."""
    gates = {
        "i": Gate(weight, write_input, bias_law=BiasLaw("timescale", 1.0, longest, -1)),
        "f": Gate(weight, weight // 1, bias_law=BiasLaw("timescale", 1.0, longest)),
        "g": Gate(weight, 1.0),
        "o": Gate(1.0),
    }
    return Spec(LSTM(), gates, biases="fixed")
