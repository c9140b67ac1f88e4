"""Ask the theory about a stack of layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from isornn.modes import usual_modes
from isornn.theory.depth.impulse import impulse_responses
from isornn.theory.depth.in_turn import Solved, given, heard, solved
from isornn.theory.depth.records import StackAnalysis
from isornn.theory.depth.stack import Layer, checked
from isornn.theory.depth.tied import tied_stack

SEED = 0


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
            layer, shapes that do not broadcast, a pointwise input (minimalRNN) above the first layer.
        TheoryMissing: identity matrices, or a cell that is not pointwise.
        ValueError: fewer than 2 steps, a length below 1.

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
    if steps < 2:
        raise ValueError(f"steps: {steps} is not allowed; it is at least 2")
    if length < 1:
        raise ValueError(f"length: {length} is not allowed; it is at least 1")
    stack = checked(layers)
    generator = torch.Generator().manual_seed(SEED) if generator is None else generator
    found: list[list[Solved]] = []
    for directions in stack:
        law = heard(found[-1]) if found else given(directions[0])
        found.append([solved(spec, law, length, generator) for spec in directions])
    forward, backward = impulse_responses(found, length)
    return StackAnalysis(
        layers=tuple(tuple(layer.analysis for layer in directions) for directions in found),
        forward=forward,
        backward=backward,
        tied=tied_stack(stack, steps, generator) if tied else None,
    )
