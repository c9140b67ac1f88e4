"""A layer's step, taken out of its module."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from isornn.cells import Cell, Reads, Values
from isornn.nn import RNN
from isornn.nn.gate_tensors import recurrent_layers
from isornn.nn.layer_step import LayerStep

T, B, D, N = 4, 3, 2, 5


class PreviousOnly(Cell):
    """Its one gate reads the state and the previous input."""

    name = "previous_only"
    gates = {"h": Reads(input=False, previous_input=True)}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.tanh(u.h)}


@pytest.mark.parametrize("cell", [PreviousOnly()], ids=lambda cell: cell.name)
def test_it_runs_as_the_layer(cell: Cell) -> None:
    layer = RNN(cell, D, N, dtype=torch.float64)
    x = torch.randn(T, B, D, dtype=torch.float64)
    (found,) = recurrent_layers(layer)
    torch.testing.assert_close(LayerStep.of(found).run(layer.gate_inputs(x)), layer(x)[0])
