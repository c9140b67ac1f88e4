"""The LSTM with torch's equations on a CPU, where no gradients are wanted: by oneDNN, as torch.nn calls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from isornn.nn.autocast import without_autocast
from isornn.nn.recording import recording
from isornn.nn.stepped import Weights

_FEW = 8  # steps times sequences, below which torch's cells are faster


def runs_onednn(mode: str | None, inputs: Tensor, weights: Weights, lengths: Tensor | None) -> bool:
    """Whether oneDNN computes this: 50 steps of 64 sequences, D = 32 and N = 128, took it 3.3 ms and the kernel 6.3
    (one thread of an AMD EPYC). It returns only the last c, so not with ``lengths``, and has no projected states."""
    if torch.is_grad_enabled() or recording():
        return False
    few = inputs.shape[0] * inputs.shape[1] < _FEW
    if few or inputs.device.type != "cpu" or inputs.dtype != torch.float32 or mode != "LSTM":
        return False
    plain = lengths is None and weights.tied and weights.projection is None
    return plain and bool(torch.backends.mkldnn.enabled) and torch.backends.mkldnn.is_available()


def lstm_by_onednn(inputs: Tensor, weights: Weights, initial: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Outputs (T, B, N) and the last h and c, (B, N) each."""
    function: Any = torch._VF.lstm
    flat = [weights.matrix, weights.recurrent]
    if weights.bias is not None:
        flat += [weights.bias, torch.zeros_like(weights.bias)]
    state = [value.unsqueeze(0).contiguous() for value in initial]
    with without_autocast("cpu"):
        out, *last = function(inputs, state, flat, weights.bias is not None, 1, 0.0, False, False, False)
    return out, tuple(value.squeeze(0) for value in last)
