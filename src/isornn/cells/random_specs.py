"""Random specs from one law, so that "50 random specs" means the same in every test."""

from __future__ import annotations

import math

import torch

from isornn.cells.cell import Cell, Reads
from isornn.cells.laws import Gate, Input
from isornn.cells.roles import roles_of
from isornn.cells.spec import Spec


def random_spec(cell: Cell, generator: torch.Generator) -> Spec:
    """A spec of ``cell`` drawn from the law below, gates in the cell's order; biases "redrawn", ensembles Gaussian.

    Per gate, where it reads them: ``weight_var`` log-uniform on [0.01, 4]; ``input_var`` and ``previous_input_var``
    log-uniform on [0.1, 4]. ``bias_mean`` uniform on [-1, 1], on [-1, 3] for the retention gate. ``bias_var`` 0 or
    uniform on [0, 0.5], each with probability 1/2. Input variance log-uniform on [0.25, 4]; input correlation 1 or
    uniform on [0, 1], each with probability 1/2. Conventions as in :class:`Gate`.

    Nothing is filtered: now and then a network without a fixed point is drawn.

    >>> from isornn.cells import LSTM
    >>> spec = random_spec(LSTM(), torch.Generator().manual_seed(0))
    >>> all(0.01 <= gate.weight_var <= 4 for gate in spec.gates.values())
    True
    """
    gates = {name: _gate(reads, name == roles_of(cell).remember, generator) for name, reads in cell.gates.items()}
    variance = _log_uniform(0.25, 4.0, generator)
    identical = _uniform(0.0, 1.0, generator) < 0.5
    correlation = 1.0 if identical else _uniform(0.0, 1.0, generator)
    return Spec(cell, gates, Input(variance, correlation))


def _gate(reads: Reads, remembers: bool, generator: torch.Generator) -> Gate:
    weight_var = _log_uniform(0.01, 4.0, generator) if reads.state else 0.0
    input_var = _log_uniform(0.1, 4.0, generator) if reads.input else 0.0
    previous_input_var = _log_uniform(0.1, 4.0, generator) if reads.previous_input else 0.0
    bias_mean = _uniform(-1.0, 3.0 if remembers else 1.0, generator)
    spread = _uniform(0.0, 1.0, generator) < 0.5
    bias_var = _uniform(0.0, 0.5, generator) if spread else 0.0
    return Gate(weight_var, input_var, previous_input_var, bias_mean, bias_var)


def _uniform(low: float, high: float, generator: torch.Generator) -> float:
    draw = torch.rand((), generator=generator, dtype=torch.float64, device=generator.device)
    return low + (high - low) * float(draw)


def _log_uniform(low: float, high: float, generator: torch.Generator) -> float:
    # exp may round past an end; the stated law has no value there.
    return min(max(math.exp(_uniform(math.log(low), math.log(high), generator)), low), high)
