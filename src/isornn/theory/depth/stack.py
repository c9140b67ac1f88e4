"""What a stack of layers is, and which stacks the theory covers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from isornn.cells import Input, Spec
from isornn.cells.spec import SpecError
from isornn.theory.errors import TheoryMissing
from isornn.theory.reasons import IDENTITY, NOT_POINTWISE


@dataclass(frozen=True)
class Bidirectional:
    """Two layers over the same inputs, one from the first step to the last and one from the last to the first.

    Their outputs are concatenated: what reads them has D = 2N inputs.

    Args:
        forward, backward: the laws of the two, each with matrices of its own; both name the same input.

    Raises:
        SpecError: the inputs differ.

    >>> from isornn.cells import Gate, Vanilla
    >>> spec = Spec(Vanilla(), {"h": Gate(weight_var=1.0, input_var=1.0)})
    >>> Bidirectional(spec, spec.replace("input.variance", 2.0))
    Traceback (most recent call last):
    ...
    isornn.cells.spec.SpecError: backward.input: Input(variance=2.0, correlation=1.0) is not allowed; it is forward's
    """

    forward: Spec
    backward: Spec

    def __post_init__(self) -> None:
        if not _same(self.forward.input, self.backward.input):
            raise SpecError("backward.input", self.backward.input, "it is forward's")


Layer = Spec | Bidirectional
Directions = tuple[Spec, ...]


def checked(layers: Sequence[Layer]) -> tuple[Directions, ...]:
    """The specs of every layer by direction, if the theory covers the stack.

    Raises:
        SpecError: no layer at all, an input law above the first layer, batch shapes that do not broadcast, or, above
            the first layer, a cell whose input enters pointwise.
        TheoryMissing: identity matrices, or a cell that is not pointwise.
    """
    if isinstance(layers, (Spec, Bidirectional)) or not layers:
        raise SpecError("layers", layers, "it is a sequence of at least one Spec or Bidirectional")
    stack = tuple((layer,) if isinstance(layer, Spec) else (layer.forward, layer.backward) for layer in layers)
    for place, directions in enumerate(stack):
        for spec in directions:
            if any(gate.ensemble == "identity" for gate in spec.gates.values()):
                raise TheoryMissing(f"layers[{place}]: {IDENTITY}")
            if not spec.cell.pointwise:
                raise TheoryMissing(f"layers[{place}]: {NOT_POINTWISE}")
    for place, directions in enumerate(stack[1:], 1):
        for spec in directions:
            if not _same(spec.input, Input()):
                allowed = "above the first layer it is left out: the input is the output of the layer below"
                raise SpecError(f"layers[{place}].input", spec.input, allowed)
            if spec.cell.input_enters_pointwise:
                allowed = (
                    "its input enters pointwise, so each unit would hear the one unit below it, which is neither "
                    "Gaussian nor independent over time; such a cell can be the first layer"
                )
                raise SpecError(f"layers[{place}].cell", spec.cell.name, allowed)
    shapes = [spec.batch_shape for directions in stack for spec in directions]
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        raise SpecError("layers", [tuple(shape) for shape in shapes], "batch shapes broadcast together") from None
    return stack


def _same(one: Input, other: Input) -> bool:
    pairs = ((one.variance, other.variance), (one.correlation, other.correlation))
    return all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in pairs)
