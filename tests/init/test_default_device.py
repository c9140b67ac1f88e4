"""Starts where the user's default device is not the CPU; that of torch's meta tensors stands for a GPU's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import isornn

T, B, D, N = 9, 4, 3, 8
STARTS = {
    "critical_": lambda rnn, x: isornn.init.critical_(rnn, batch=x),
    "standard_": lambda rnn, x: isornn.init.standard_(rnn),
    "chrono_": lambda rnn, x: isornn.init.chrono_(rnn, 20),
    "stacked_orthogonal_": lambda rnn, x: isornn.init.stacked_orthogonal_(rnn),
}


@pytest.mark.parametrize("name", STARTS)
def test_a_default_device_of_the_users_changes_nothing(name):
    drawn = []
    for device in ("cpu", "meta"):
        torch.manual_seed(0)
        rnn, x = nn.GRU(D, N), torch.randn(T, B, D)
        with torch.device(device):
            STARTS[name](rnn, x)
            isornn.init.spec_of(rnn)
        drawn.append([parameter.detach() for parameter in rnn.parameters()])
    for one, other in zip(*drawn, strict=True):
        assert torch.equal(one, other)
