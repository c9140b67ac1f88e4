"""A few steps of torch's LSTM, GRU and tanh or ReLU network on a CPU, by torch's own cells.

A cell of torch is one operation in C++, and so is its derivative. A kernel repays the some fifty operations that are
called from Python around it only after a few steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from isornn.nn.stepped import Weights

_FEW_STEPS = 3


def runs_torch_cells(inputs: Tensor, weights: Weights) -> bool:
    """Whether torch's own cell, where there is one, computes these steps; not in half precision, which it would round
    at each operation."""
    if torch.compiler.is_compiling() or inputs.device.type != "cpu" or len(inputs) > _FEW_STEPS:
        return False
    return inputs.dtype in (torch.float32, torch.float64) and weights.projection is None


def by_torch_cells(mode: str, inputs: Tensor, weights: Weights, initial: Sequence[Tensor]) -> list[Tensor]:
    """The states over a sequence, each (T, B, N), differentiable any number of times."""
    advance: Any = getattr(torch, f"{mode.lower()}_cell")
    offset = weights.offset
    recurrent = weights.recurrent
    assert recurrent is not None
    if offset is not None:  # of the last of the gates that read the state
        offset = torch.cat([offset.new_zeros(len(recurrent) - len(offset)), offset])
    states, record = list(initial), []
    for x in inputs.unbind(0):
        given = states if len(states) > 1 else states[0]
        found = advance(x, given, weights.matrix, recurrent, weights.bias, offset)
        states = [found] if isinstance(found, Tensor) else list(found)
        record.append(states)
    return [torch.stack(values) for values in zip(*record, strict=True)]
