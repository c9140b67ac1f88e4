"""What a stack of layers is, which stacks the theory covers, and what it answers of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from isornn.cells import Input, Spec
from isornn.cells.errors import SpecError
from isornn.cells.laws import INPUT_FIELDS
from isornn.cells.spec import check_spec
from isornn.theory.assumptions import check_assumptions
from isornn.theory.quantity import Quantity
from isornn.theory.records import Analysis


@dataclass(frozen=True)
class Bidirectional:
    """Two layers over the same inputs, one from the first step to the last and one from the last to the first.

    Their outputs are concatenated: what reads them has D = 2N inputs.

    Args:
        forward, backward: the laws of the two, each with matrices of its own; both name the same input.

    Raises:
        SpecError: one is no spec; the inputs differ.

    >>> from isornn.cells import Gate, Vanilla
    >>> spec = Spec(Vanilla(), {"h": Gate(weight_var=1.0, input_var=1.0)})
    >>> Bidirectional(spec, spec.replace("input.variance", 2.0))
    Traceback (most recent call last):
    ...
    isornn.cells.errors.SpecError: backward.input: Input(variance=2.0) is not allowed; it must be forward's
    """

    forward: Spec
    backward: Spec

    def __post_init__(self) -> None:
        for spec in (self.forward, self.backward):
            check_spec(spec)
        if not _same(self.forward.input, self.backward.input):
            raise SpecError("backward.input", self.backward.input, "it must be forward's")


Layer = Spec | Bidirectional
Directions = tuple[Spec, ...]


def checked(layers: Sequence[Layer]) -> tuple[Directions, ...]:
    """The specs of every layer by direction, if the theory covers the stack; the first layer's in the shape of all.

    Raises:
        SpecError: no layer at all, one that is none, an input law above the first layer, batch shapes that do not
            broadcast, or, above the first layer, a cell whose input enters pointwise.
        TheoryMissing: identity matrices, or a cell that is not pointwise.
    """
    if isinstance(layers, (Spec, Bidirectional)) or not layers:
        raise SpecError("layers", layers, "it must be a sequence of at least one Spec or Bidirectional")
    for place, layer in enumerate(layers):
        if not isinstance(layer, (Spec, Bidirectional)):
            raise SpecError(f"layers[{place}]", layer, "it must be a Spec or a Bidirectional")
    stack = tuple((layer,) if isinstance(layer, Spec) else (layer.forward, layer.backward) for layer in layers)
    for place, directions in enumerate(stack):
        for spec in directions:
            check_assumptions(spec, f"layers[{place}]")
            if spec.input.remembers:
                allowed = "it must be 0: in a stack a layer's input is taken to be independent over time"
                raise SpecError(f"layers[{place}].input.autocorrelation", spec.input.autocorrelation, allowed)
    for place, directions in enumerate(stack[1:], 1):
        for spec in directions:
            if not _same(spec.input, Input()):
                allowed = "above the first layer it is left out: the input is the output of the layer below"
                raise SpecError(f"layers[{place}].input", spec.input, allowed)
            if spec.cell.input_enters_pointwise:
                allowed = (
                    "its input enters pointwise, so each unit would read the one unit below it, which is neither "
                    "Gaussian nor independent over time; such a cell can be the first layer"
                )
                raise SpecError(f"layers[{place}].cell", spec.cell.name, allowed)
    shapes = [spec.batch_shape for directions in stack for spec in directions]
    try:
        shape = torch.Size(np.broadcast_shapes(*shapes))
    except ValueError:
        raise SpecError("layers", [tuple(shape) for shape in shapes], "batch shapes broadcast together") from None
    # What the layers above read has its shape, so that all have the stack's.
    return (tuple(_in_shape(spec, shape) for spec in stack[0]), *stack[1:])


def _in_shape(spec: Spec, shape: torch.Size) -> Spec:
    """``spec`` as a batch of this shape."""
    if spec.batch_shape == shape:
        return spec
    variance = torch.as_tensor(spec.input.variance, dtype=torch.float64).expand(shape)
    return replace(spec, input=replace(spec.input, variance=variance))


def _same(one: Input, other: Input) -> bool:
    pairs = ((getattr(one, name), getattr(other, name)) for name in INPUT_FIELDS)
    return all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in pairs)


NO_INPUT_LAW = "the layer below has no stationary output, so the law of this one's input is not known"
UNSURE = "what it rests on is not known finely enough to say whether it exists"
NOT_REACHED = "no change of the input reaches the output"


@dataclass(frozen=True)
class ImpulseResponse:
    """How a stack's output answers a change of its input at one step.

    Args:
        profile: d E[o_a o_b] of the output t steps away by d E[x_a x_b] of the input at one step, t = 0 .. length on
            the last axis; o is the top layer's output, in the middle of a long sequence.
        chi: the factor per step that it tends to, the largest of the layers'.
        xi: ``-1/ln chi`` steps.
        reach: steps from the change until the profile has fallen to 1/e of its largest value, which in a stack comes
            some steps after the change; xi where it is exponential from the start.

    >>> from isornn.cells import Gate, Vanilla
    >>> from isornn.theory import analyze_stack
    >>> found = analyze_stack([Spec(Vanilla(), {"h": Gate(weight_var=0.5, input_var=1.0)})] * 2, length=20)
    >>> found.forward.profile.value.shape
    torch.Size([21])
    """

    profile: Quantity
    chi: Quantity
    xi: Quantity
    reach: Quantity

    @staticmethod
    def missing(reason: str, shape: torch.Size, length: int) -> ImpulseResponse:
        """A response that says only why there is none, of a batch of this shape."""
        blank, no_curve = (
            Quantity.of(torch.zeros(size, dtype=torch.float64), reasons={reason: True})
            for size in (shape, (*shape, length + 1))
        )
        return ImpulseResponse(profile=no_curve, chi=blank, xi=blank, reach=blank)

    def numbers(self) -> Iterator[tuple[str, Quantity]]:
        """The quantities that are one number for each spec, by name."""
        for name in ("chi", "xi", "reach"):
            yield name, getattr(self, name)

    def to_json(self) -> dict[str, Any]:
        """One JSON object, for a single stack."""
        return _json(dict(self.numbers()) | {"profile": self.profile})


@dataclass(frozen=True)
class TiedLayer:
    """A layer whose weights and biases are drawn once, from state 0, as part of a stack of such layers.

    Args:
        mean, second_moment, correlation: of the state that is read, at times 1 .. steps (last axis) of its own
            direction: a backward layer's time 1 is the last step.

    >>> from isornn.cells import Gate, Vanilla
    >>> from isornn.theory import analyze_stack
    >>> found = analyze_stack([Spec(Vanilla(), {"h": Gate(0.5, 1.0)})] * 2, length=20, tied=True)
    >>> found.tied[1][0].second_moment.value.shape
    torch.Size([60])
    """

    mean: Quantity
    second_moment: Quantity
    correlation: Quantity

    def to_json(self) -> dict[str, Any]:
        """One JSON object, for a single stack."""
        return _json({name: getattr(self, name) for name in ("mean", "second_moment", "correlation")})


@dataclass(frozen=True)
class StackAnalysis:
    """All that `analyze_stack` says.

    Args:
        layers: from the bottom, one `Analysis` for each direction of the layer; its ``spec.input`` is the law of what
            it receives from the layer below, and its standard errors count how well that is known.
        forward: the output at and after the step at which the input is changed.
        backward: the output at and before it, where a layer is bidirectional; else ``None``.
        tied: the layers with one draw of weights, by direction too, where that was asked for.

    >>> from isornn.cells import Gate, Vanilla
    >>> from isornn.theory import analyze_stack
    >>> found = analyze_stack([Spec(Vanilla(), {"h": Gate(weight_var=0.5, input_var=1.0)})] * 2, length=20)
    >>> len(found.layers), found.chi.number() < 1
    (2, True)
    """

    layers: tuple[tuple[Analysis, ...], ...]
    forward: ImpulseResponse
    backward: ImpulseResponse | None
    tied: tuple[tuple[TiedLayer, ...], ...] | None = None

    @property
    def chi(self) -> Quantity:
        """The stack's growth per step forward in time: the largest of the layers'."""
        return self.forward.chi

    @property
    def xi(self) -> Quantity:
        """The stack's time scale, ``-1/ln chi`` steps."""
        return self.forward.xi

    @property
    def reach(self) -> Quantity:
        """Steps until what an input did to the output has fallen to 1/e."""
        return self.forward.reach

    def to_json(self) -> dict[str, Any]:
        """One JSON object, for a single stack; what does not exist is null and its reason stands beside it."""
        return {
            "layers": [[layer.to_json() for layer in directions] for directions in self.layers],
            "forward": self.forward.to_json(),
            **({} if self.backward is None else {"backward": self.backward.to_json()}),
            **({} if self.tied is None else {"tied": [[layer.to_json() for layer in row] for row in self.tied]}),
        }


def _json(quantities: Mapping[str, Quantity]) -> dict[str, Any]:
    return {
        **{name: quantity.listed() for name, quantity in quantities.items()},
        "stderr": {name: quantity.listed_errors() for name, quantity in quantities.items()},
        "undefined": {name: [reason for reason, _ in q.reasons] for name, q in quantities.items() if q.reasons},
    }
