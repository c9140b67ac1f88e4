"""Separate, trained parameters for every step: untied networks as the papers train them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isornn.nn.rnn import RNN


class OwnSteps(nn.Module):
    """Step t of a sequence by layer t: ``h_t = cell(W^t, U^t, b^t; h_(t-1), x_t)``.

    `RNN(untied=True)` permutes one set of parameters anew in every call, so a step's weights cannot be trained; here
    they can. Sequences have as many steps as there are layers.

    Args:
        layers: one for each step, at least one, alike in cell and sizes. None is bidirectional or has the batch first,
            and layers of a cell that reads x_(t-1) are single.

    Raises:
        ValueError: names what is not allowed.

    >>> from isornn.cells import LSTM
    >>> layer = OwnSteps([RNN(LSTM(), 3, 5) for _ in range(7)])
    >>> out, (h, c) = layer(torch.zeros(7, 2, 3))
    >>> out.shape, c.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))
    """

    def __init__(self, layers: Sequence[RNN]) -> None:
        super().__init__()
        if not layers:
            raise ValueError("layers: there is none, and each step has one")
        first = layers[0]
        for place, layer in enumerate(layers):
            _check(f"layers[{place}]", layer, first)
        self.steps = nn.ModuleList(layers)
        self._reads_previous = bool(first.layout.stacks["weight_ph"])
        self.input_size, self.hidden_size, self.num_layers = first.input_size, first.hidden_size, first.num_layers

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Outputs (T, B, N) and the last state, as `RNN` gives them.

        Raises:
            ValueError: another number of steps, or no tensor: all sequences have all steps.
        """
        if not isinstance(x, Tensor):
            raise ValueError(f"x: {type(x).__name__} is not allowed; it must be a tensor, (steps, batch, features)")
        if len(x) != len(self.steps):
            raise ValueError(f"x: {len(x)} steps are not allowed; {len(self.steps)} have parameters")
        outputs, previous = [], None  # before the first step, as the layer has it
        for layer, x_t in zip(self.steps, x.split(1), strict=True):
            out, state = layer(x_t, state, previous=previous)
            outputs.append(out)
            previous = x_t[0] if self._reads_previous else None
        return torch.cat(outputs), state


def _check(name: str, layer: RNN, first: RNN) -> None:
    """That ``layer`` is one step's, and like the first."""
    if layer.bidirectional or layer.batch_first:
        raise ValueError(f"{name}: {layer} is not allowed; it must have one direction and the batch second")
    if layer.num_layers > 1 and layer.layout.stacks["weight_ph"]:
        raise ValueError(f"{name}: {layer} is not allowed; a cell that reads the previous input must have one layer")
    if _kind(layer) != _kind(first):
        raise ValueError(f"{name}: {layer} is not allowed; it must have the cell and the sizes of the first, {first}")


def _kind(layer: RNN) -> tuple[Any, ...]:
    return layer.cell, layer.input_size, layer.hidden_size, layer.num_layers, layer.proj_size
