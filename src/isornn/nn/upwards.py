"""Sequences through the layers and directions of a recurrent module, torch's or ours, from the bottom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.nn.gate_tensors import RecurrentLayer
from isornn.nn.rnn import RNN
from isornn.nn.sequences import Sequences


def own_time(sequences: Sequences, values: Tensor, direction: int) -> Tensor:
    """``values`` (T, B, .) in the direction's own order of steps, or back."""
    return sequences.reversed(values) if direction else values


def gate_inputs(layer: RecurrentLayer, x: Tensor, previous: Tensor | None) -> Tensor:
    """What the layer's input matrices multiply: x itself, but for features and previous inputs of isornn's layers."""
    if isinstance(layer.module, RNN):
        return layer.module.gate_inputs(x, layer.layer, layer.direction, previous)
    return x


@dataclass
class LayerPass:
    """One layer and direction that a module's sequences go through, in its own order of steps.

    Args:
        layer: which.
        inputs: (T, B, D), those of the module or what the layers below made of them.
        output: (T, B, .), to be set by the caller of `upwards`.
    """

    layer: RecurrentLayer
    inputs: Tensor
    output: Tensor | None = None

    @property
    def made(self) -> Tensor:
        """The output, which the caller of `upwards` has set."""
        assert self.output is not None
        return self.output


def upwards(layers: Sequence[RecurrentLayer], sequences: Sequences) -> Iterator[LayerPass]:
    """Every layer and direction from the bottom. Each one's output, which the caller sets before it asks for the next,
    is the input of those above, 0 behind the sequences' ends; that of the uppermost is not read."""
    top = max(layer.layer for layer in layers)
    for depth in range(1 + top):
        own = [layer for layer in layers if layer.layer == depth]
        passes = [LayerPass(layer, own_time(sequences, sequences.values, layer.direction)) for layer in own]
        yield from passes
        if depth < top:
            outputs = [own_time(sequences, one.made, one.layer.direction) for one in passes]
            whole = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]  # which a copy of would be as large
            sequences = sequences.with_values(sequences.ended(whole))
