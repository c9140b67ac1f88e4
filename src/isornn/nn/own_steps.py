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
        layers: one for each step, alike in sizes; none of them bidirectional or with the batch first.

    >>> from isornn.cells import LSTM
    >>> layer = OwnSteps([RNN(LSTM(), 3, 5) for _ in range(7)])
    >>> out, (h, c) = layer(torch.zeros(7, 2, 3))
    >>> out.shape, c.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))
    """

    def __init__(self, layers: Sequence[RNN]) -> None:
        super().__init__()
        self.steps = nn.ModuleList(layers)
        first = layers[0]
        self.input_size, self.hidden_size, self.num_layers = first.input_size, first.hidden_size, first.num_layers

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Outputs (T, B, N) and the last state, as `RNN` gives them.

        Raises:
            ValueError: another number of steps.
        """
        if len(x) != len(self.steps):
            raise ValueError(f"x: {len(x)} steps are not allowed; {len(self.steps)} have parameters")
        outputs = []
        for layer, x_t in zip(self.steps, x.split(1), strict=True):
            out, state = layer(x_t, state)
            outputs.append(out)
        return torch.cat(outputs), state
