"""Which layers a training's start leaves alone."""

import pytest
import torch
from torch import nn

from isornn.integrations.start import trained


@pytest.mark.parametrize("units", [1, 2, 16])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_trained_layers_of_any_width_are_left_alone(kind, units):
    layer = kind(3, units)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(units)).mul_(3)
    assert trained(layer) == f"{kind.__name__} l0 looks trained"


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_new_layers_are_not(kind):
    assert trained(kind(3, 32)) is None
    assert trained(kind(3, 2)) == f"{kind.__name__} l0: too few weights to tell whether they are trained"
