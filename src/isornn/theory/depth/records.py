"""What the theory answers about a stack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from isornn.theory.quantities import Quantity
from isornn.theory.records import Analysis

NO_INPUT_LAW = "the layer below has no stationary output, so the law of this one's input is not known"
UNSURE = "what it rests on is not known finely enough to say whether it exists"
NOT_REACHED = "no change of the input reaches the output"
BEYOND = "the response does not fall to 1/e within the steps followed, and is not known to be an exponential"


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
    """

    profile: Quantity
    chi: Quantity
    xi: Quantity
    reach: Quantity

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
            it hears from the layer below, and its standard errors count how well that is known.
        forward: the output at and after the step at which the input is changed.
        backward: the output at and before it, where a layer is bidirectional; else ``None``.
        tied: the layers with one draw of weights, by direction too, where that was asked for.
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
