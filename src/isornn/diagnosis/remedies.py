"""Do to a model what its verdicts advise, as far as that lies in its weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import nn

from isornn.cells import Cell, Spec, Vanilla
from isornn.cells.starts import start
from isornn.diagnosis.illnesses.start_tensors import doubled_gates
from isornn.diagnosis.illnesses.starts import start_of
from isornn.diagnosis.illnesses.verdict import CANNOT_TELL, Verdict
from isornn.diagnosis.layers import recurrent_modules
from isornn.diagnosis.records import layer_name
from isornn.diagnosis.weights import weight_facts
from isornn.nn import draws
from isornn.nn.gate_tensors import ModuleError, RecurrentLayer, check_writable
from isornn.theory.critical_points.point import critical

_OF_MEMORY = ("default_start", "exploding", "saturated_forget_gate", "vanishing")
_NOT_WEIGHTS = {
    "padding": "lies in the data",
    "unnormalised_input": "lies in the data",
    "denormals": "is torch's mode, not the weights",
}


@torch.no_grad()
def fix_(
    model: nn.Module, verdicts: Sequence[Verdict], length: int, generator: torch.Generator | None = None
) -> list[str]:
    """Mend in place what verdicts name, layer by layer, where the layer is still as it was drawn.

    - default_start, vanishing, exploding, saturated_forget_gate: the layer is drawn again as
      `isornn.init.critical_` draws it for ``length`` steps (a relu network: the identity), which mends the next two as
      well.
    - stacked_orthogonal: each gate's own matrix is drawn again, orthogonal.
    - doubled_bias: the second of two vectors that add is set to 0 in the gates that have both.
    - padding, unnormalised_input lie in the data, cannot_tell in too little of it, denormals in torch's mode: what to
      do is in the remedy.

    A layer that looks trained (`start_of` finds no trace of a draw) is left alone, whatever ails it; so is one whose
    weights cannot be written to.

    Args:
        model: whose verdicts these are.
        verdicts: of `verdicts`.
        length: T, the number of steps to bridge, from 2 to 1e6.
        generator: source of all draws; torch's global one if ``None``.

    Returns:
        What was done and what was left, one sentence for each layer or verdict.

    Raises:
        ValueError: a verdict's place is no layer of the model.
        SpecError: length.

    >>> model = nn.RNN(4, 32, batch_first=True)
    >>> ill = Verdict("default_start", "RNN l0", "", {}, "")
    >>> fix_(model, [ill], 60, torch.Generator().manual_seed(0))
    ['RNN l0: drawn again by the critical start (default_start).']
    """
    places = _places(model)
    # Solved once for all layers of a cell.
    bridging = functools.cache(lambda cell: critical(cell, length).spec)
    done = []
    told = [verdict for verdict in verdicts if verdict.illness != CANNOT_TELL]
    for name in dict.fromkeys(verdict.place for verdict in told):
        if name is None or name not in places:
            raise ValueError(f"verdicts: place {name!r} is not allowed; the model has {', '.join(places)}")
        illnesses = [verdict.illness for verdict in told if verdict.place == name]
        done += [f"{name}: {sentence}" for sentence in _mended(places[name], illnesses, bridging, generator)]
    untold = [verdict for verdict in verdicts if verdict.illness == CANNOT_TELL]
    return done + [f"{verdict.place}: left alone, nothing could be told." for verdict in untold]


def _places(model: nn.Module) -> dict[str, RecurrentLayer]:
    return {
        layer_name(module.name, module.kind, place.layer, place.direction): place
        for module in recurrent_modules(model)
        for place in module.places
    }


def _mended(
    place: RecurrentLayer,
    illnesses: Sequence[str],
    bridging: Callable[[Cell], Spec],
    generator: torch.Generator | None,
) -> list[str]:
    others = [f"left alone, {name} {_NOT_WEIGHTS[name]}: see the remedy." for name in illnesses if name in _NOT_WEIGHTS]
    of_weights = [name for name in illnesses if name not in _NOT_WEIGHTS]
    if not of_weights:
        return others
    named = ", ".join(of_weights)
    try:
        check_writable(place)
    except ModuleError as refused:
        return [*others, f"left alone ({named}): {refused}."]
    if start_of(weight_facts(place)) is None:
        return [*others, f"left alone ({named}): it looks trained; a new start would throw away what it has learnt."]
    if any(name in _OF_MEMORY for name in of_weights):
        found = _new_start(place, bridging)
        if found is None:
            return [*others, f"left alone ({named}): its gates have no biases to be held open by; build it with some."]
        name, spec = found
        draws.redraw(place, spec, generator)
        return [*others, f"drawn again by the {name} start ({named})."]
    return [*others, *(_mended_tensors(place, name, generator) for name in of_weights)]


def _new_start(place: RecurrentLayer, bridging: Callable[[Cell], Spec]) -> tuple[str, Spec] | None:
    """What the layer is drawn from again, and its name; ``None`` where it needs biases that the layer lacks."""
    if isinstance(place.cell, Vanilla) and place.cell.nonlinearity == "relu":
        return "identity", start("identity", place.cell, place.hidden, place.inputs)
    spec = bridging(place.cell)
    needy = [name for name, gate in spec.gates.items() if gate.bias_law is not None or gate.bias_mean != 0]
    return ("critical", spec) if all(place.gates[name].biases for name in needy) else None


def _mended_tensors(place: RecurrentLayer, illness: str, generator: torch.Generator | None) -> str:
    if illness == "stacked_orthogonal":
        for gate in place.gates.values():
            if gate.recurrent is not None:
                gate.recurrent.copy_(draws.haar(tuple(gate.recurrent.shape), generator))
        return "each gate's own recurrent matrix is drawn orthogonal (stacked_orthogonal)."
    both = doubled_gates(weight_facts(place), place.hidden)
    for name in both:
        place.gates[name].biases[1].zero_()
    return f"the second bias of {', '.join(both)} is 0 now (doubled_bias)."
