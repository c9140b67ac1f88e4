"""Ask the theory about a stack of layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isornn.cells import Spec, Values
from isornn.cells.arguments import seeded, whole_number
from isornn.modes import usual_modes
from isornn.theory.analysis import refusal_of
from isornn.theory.depth.impulse import impulse_responses
from isornn.theory.depth.input_law import InputLaw
from isornn.theory.depth.layerwise import Solved, external_input, output_law, solved
from isornn.theory.depth.stack import (
    NO_INPUT_LAW,
    Directions,
    ImpulseResponse,
    Layer,
    StackAnalysis,
    TiedLayer,
    checked,
)
from isornn.theory.population.jacobian import StateStructure
from isornn.theory.population.settling import Moments
from isornn.theory.population.units import Draws
from isornn.theory.records import Analysis
from isornn.theory.tied.moments import certain, input_moments, lines_of
from isornn.theory.tied.paths import GivenInput, InputMoments, Paths, TiedLaws

REPLICATES = 8
# Units in each replicate: more where fewer leave some E[h^2] less certain than it should be.
UNITS = (2048, 16384)


def tied_stack(
    stack: Sequence[Directions], steps: int, generator: torch.Generator
) -> tuple[tuple[TiedLayer, ...], ...]:
    """Moments of every layer and direction over ``steps`` steps from state 0."""
    shape = _shape(stack)
    # the bottom layer has one sequence or two of it, and all above what it has
    whole = [tuple(_expanded(spec, shape) for spec in directions) for directions in stack]
    for units in UNITS:
        moments = _followed(whole, shape, steps, units, generator)
        if all(certain(layer) for directions in moments for layer in directions):
            break
    return tuple(tuple(TiedLayer(**lines_of(layer)) for layer in directions) for directions in moments)


def _shape(stack: Sequence[Directions]) -> torch.Size:
    """The whole stack's batch."""
    return torch.broadcast_shapes(*(spec.batch_shape for directions in stack for spec in directions))


def _expanded(spec: Spec, shape: torch.Size) -> Spec:
    """``spec`` with the whole stack's batch."""
    variance = torch.as_tensor(spec.input.variance, dtype=torch.float64).expand(shape)
    return spec.replace("input.variance", variance)


def _followed(
    stack: Sequence[Directions], shape: torch.Size, steps: int, units: int, generator: torch.Generator
) -> list[list[Moments]]:
    """Layer after layer."""
    found: list[list[Moments]] = []
    covariance: Tensor | None = None
    for directions in stack:
        moments, outputs = [], []
        for turn, spec in enumerate(directions):
            laws = TiedLaws.of(spec)
            draws = Draws(laws.units.batch, REPLICATES, units, generator)
            input = (
                input_moments(laws, [laws.units.input_correlation]) if covariance is None else GivenInput(covariance)
            )
            means, output = _run(laws, _reversed(input) if turn else input, draws, steps)
            moments.append(Moments.of(means, shape))
            outputs.append(_in_reverse(output) if turn else output)
        found.append(moments)
        covariance = torch.stack(outputs).mean(0)
    return found


def _run(laws: TiedLaws, input: InputMoments, draws: Draws, steps: int) -> tuple[Tensor, Tensor]:
    """Means of h, h^2, h_a h_b at times 0 .. steps ``(G, R, T + 1, 3)``; the output's ``(G, R, T, S, T, S)``."""
    cell = laws.units.cell
    with torch.no_grad():
        paths = Paths(laws, input, draws, StateStructure.of(cell).persistent)
        means, outputs = [paths.units.moments(cell.states[0])], []
        for _ in range(steps):
            u, x = paths.drawn()
            paths.move(u, x)
            means.append(paths.units.moments(cell.states[0]))
            outputs.append(cell.output(Values(**paths.units.states), u).expand(input.copies, *draws.shape))
        over_time = torch.stack(outputs).permute(2, 3, 0, 1, 4).flatten(2, 3)
        covariance = over_time @ over_time.mT / over_time.shape[-1]
    times = (steps, input.copies)
    return torch.stack(means, 2), covariance.unflatten(-1, times).unflatten(2, times)


def _reversed(input: InputMoments) -> InputMoments:
    """The input in the order of a backward layer: white noise is the same in reverse."""
    return GivenInput(_in_reverse(input.covariance)) if isinstance(input, GivenInput) else input


def _in_reverse(covariance: Tensor) -> Tensor:
    return covariance.flip(-4, -2)


@usual_modes()
def analyze_stack(
    layers: Sequence[Layer],
    *,
    length: int = 100,
    tied: bool = False,
    steps: int = 60,
    generator: torch.Generator | None = None,
) -> StackAnalysis:
    """How far signals and gradients survive in a stack of layers of infinite width, each reading the one below.

    Layer l's ``u_k = W_k r + U_k o_t + V_k o_(t-1) + b_k`` with o the output of layer l-1 at the same step, D its width
    (2N if it is bidirectional), ``U_ij ~ N(0, input_var / D)``; `Gate` has the other variances. So layer l is `analyze`
    of its own spec with the input variance ``E[o^2]`` and the input correlation ``E[o_a o_b] / E[o^2]``. States at one
    step depend on those of the layers above at none, so the stack's Jacobian is block triangular, chi the largest of
    the layers'. The response to a change at the bottom, read at the top, is the convolution of the layers' own: stacks
    remember longer than their slowest layer, though at last they forget at its rate.

    Args:
        layers: from the bottom, each a spec or a `Bidirectional`; batch shapes broadcast. The first's ``input`` is the
            stack's, the others have none of their own.
        length: steps of the profiles.
        tied: also follow the stack of networks whose weights and biases are drawn once, from state 0.
        steps: how many steps of those, at least 2.
        generator: randomness of the populations; seeded with 0 by default, so that equal calls agree.

    Raises:
        SpecError: a stack that the theory does not cover: see `Bidirectional`; no layer, an input law above the first
            layer, shapes that do not broadcast, a pointwise input (minimalRNN) above the first layer; fewer than 2
            steps, a length below 1, a generator that is none.
        TheoryMissing: identity matrices, or a cell that is not pointwise.

    Source: layers in turn: Gilboa et al. 2019 eqs. 3-4 with the layer below in the input's place; tied: Yang 2019
    (Tensor Programs I).

    >>> from isornn.cells import Gate, Spec, Vanilla
    >>> layer = Spec(Vanilla(), {"h": Gate(weight_var=1.0, input_var=1.0)})
    >>> answer = analyze_stack([layer, layer])
    >>> [round(layer.xi.number(), 2) for layer, in answer.layers]
    [1.09, 1.44]
    >>> round(answer.xi.number(), 2), round(answer.reach.number(), 1)
    (1.44, 3.0)
    """
    length = whole_number("length", length, what="number of steps")
    steps = whole_number("steps", steps, 2, "number of steps")
    stack = checked(layers)
    generator = seeded(generator)
    found: list[list[Solved]] = []
    for directions in stack:
        law = output_law(found[-1]) if found else external_input(directions[0])
        if any(refusal_of(spec) is not None for spec in directions):
            return _unanswered(stack, found, law, length, generator)
        found.append([solved(spec, law, length, generator) for spec in directions])
    forward, backward = impulse_responses(found, length)
    return StackAnalysis(
        layers=tuple(tuple(layer.analysis for layer in directions) for directions in found),
        forward=forward,
        backward=backward,
        tied=tied_stack(stack, steps, generator) if tied else None,
    )


def _unanswered(
    stack: Sequence[Directions],
    below: Sequence[Sequence[Solved]],
    law: InputLaw,
    length: int,
    generator: torch.Generator,
) -> StackAnalysis:
    """The answer where no engine covers a layer: the layers below it, the reason, and nothing of those above.

    Args:
        below: the layers under the first that is not covered.
        law: the input of that layer.
    """
    shape = _shape(stack)
    layers = [tuple(layer.analysis for layer in directions) for directions in below]
    for place, directions in enumerate(stack[len(below) :]):
        answers = []
        for spec in directions:
            refusal = refusal_of(spec)
            if refusal is None and place == 0:
                answers.append(solved(spec, law, length, generator).analysis)
            else:
                answers.append(Analysis.missing(_expanded(spec, shape), refusal or NO_INPUT_LAW, length))
        layers.append(tuple(answers))
    reason = next(refusal for spec in stack[len(below)] if (refusal := refusal_of(spec)) is not None)
    response = ImpulseResponse.missing(reason, shape, length)
    two_sided = any(len(directions) == 2 for directions in stack)
    return StackAnalysis(tuple(layers), response, response if two_sided else None)
