"""Tables and a sentence about a stack of layers."""

from __future__ import annotations

from collections.abc import Iterator

from isornn.cli.show import print_table
from isornn.formatting import rounded, with_error_of
from isornn.theory.depth.stack import StackAnalysis
from isornn.theory.quantity import Quantity

_COLUMNS = ("layer", "cell", "input variance", "E[h^2]", "chi", "xi, steps", "why not")


def print_stack(stack: StackAnalysis) -> None:
    """A row for each layer, then the response of the whole stack's output to a perturbation of the input."""
    print_table("Layers from the bottom; the input of each is the output of the one below", _COLUMNS, _layers(stack))
    print_table("The stack", ("quantity", "value", "why not"), _numbers(stack))
    reach = stack.reach.number()
    if reach is None:
        print(f"No number of steps can be given: {stack.reach.reason()}.")
    else:
        print(f"The output's response to an input falls to 1/e of its maximum {rounded(reach)} steps after the input.")
    if stack.tied is not None:
        steps = stack.tied[0][0].second_moment.value.shape[-1]
        title = f"Tied weights, from state 0: E[h^2] after {steps} steps"
        print_table(title, ("layer", "tied", "untied fixed point"), _tied(stack))


def _layers(stack: StackAnalysis) -> Iterator[tuple[str, ...]]:
    for place, directions in enumerate(stack.layers, 1):
        for layer in directions:
            second = layer.fixed_point.second_moment
            yield (
                str(place),
                layer.spec.cell.name,
                with_error_of(float(layer.spec.input.variance)),
                *(_number(quantity) for quantity in (second, layer.chi, layer.xi)),
                layer.xi.reason() or "",
            )


def _numbers(stack: StackAnalysis) -> Iterator[tuple[str, str, str]]:
    labels = {"chi": "chi, factor per step in the end", "xi": "xi = -1/ln chi, steps", "reach": "reach, steps to 1/e"}
    for name, quantity in stack.forward.numbers():
        yield labels[name], _number(quantity), quantity.reason() or ""


def _tied(stack: StackAnalysis) -> Iterator[tuple[str, str, str]]:
    assert stack.tied is not None
    for place, (tied, untied) in enumerate(zip(stack.tied, stack.layers, strict=True), 1):
        for layer, fixed in zip(tied, untied, strict=True):
            line = layer.second_moment
            last = with_error_of(float(line.value[-1]), float(line.stderr[-1])) if bool(line.defined[-1]) else "-"
            yield str(place), last, _number(fixed.fixed_point.second_moment)


def _number(quantity: Quantity) -> str:
    return with_error_of(quantity.number(), quantity.error())
