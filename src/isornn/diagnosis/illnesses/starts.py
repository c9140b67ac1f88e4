"""Whether a layer's weights are still a random start, or have been trained."""

from __future__ import annotations

from torch import Tensor

from isornn.diagnosis.records import LayerDiagnosis
from isornn.diagnosis.weights import DefaultDraw, WeightFacts

# As `measured_gate` recognises orthogonal matrices: half precision rounds to 4e-3.
TOLERANCE = 1e-2
# What float32 leaves of an orthogonal matrix is closer than this, and already a little training is not.
_EXACT = 1e-4
_ROUNDING = 1e-12
# Of fewer entries all may stay within torch's bounds through some training.
_ENOUGH = 64


def start_of(weights: WeightFacts) -> str | None:
    """What shows that a layer is as it was drawn; ``None`` where nothing does, so that it counts as trained.

    Every step of an optimiser moves entries apart, so these do not outlive training: torch's own uniform law with its
    sharp bounds; recurrent matrices that are orthogonal, gate by gate or stacked; biases that are equal over units, in
    two gates at least, as a trained layer brought from elsewhere may have one vector that is 0.
    """
    recurrent = [gate.singular_values for gate in weights.gates.values() if len(gate.singular_values) > 0]
    if _own_draw(weights.recurrent_default, sum(len(values) ** 2 for values in recurrent)):
        return "the recurrent matrices are torch's own draw"
    exact = [equal(values, _EXACT) for values in recurrent]
    if equal(weights.stacked_singular_values, _EXACT) or (exact and all(exact)):
        return "the recurrent matrices are orthogonal"
    if _own_draw(weights.bias_default, sum(len(values) for values in recurrent)):
        return "the biases are torch's own draw"
    biased = {name: gate for name, gate in weights.gates.items() if gate.bias_means}
    alike = [name for name, gate in biased.items() if gate.bias_var <= _ROUNDING * gate.bias_mean**2]
    if alike and len(alike) >= min(2, len(biased)):
        return f"biases are the same for all units in {', '.join(alike)}"
    return None


def start_of_layer(layer: LayerDiagnosis) -> str | None:
    """`start_of` its weights; what a parametrisation computes keeps its form through training, so it shows nothing."""
    return None if layer.place.parametrised else start_of(layer.weights)


def drawn_or_trained(layer: LayerDiagnosis) -> dict[str, str]:
    """What `start_of_layer` says, as evidence."""
    found = start_of_layer(layer)
    return {"weights": "trained, or no start that shows" if found is None else f"as drawn: {found}"}


def _own_draw(draw: DefaultDraw | None, entries: int) -> bool:
    return draw is not None and draw.likely and entries >= _ENOUGH


def equal(singular_values: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Whether they are all the same: the columns are orthogonal and of one length.

    >>> import torch
    >>> equal(torch.tensor([1.0, 0.999])), equal(torch.tensor([1.0, 0.5]))
    (True, False)
    """
    if len(singular_values) < 2 or not singular_values[0] > 0:
        return False
    return bool(singular_values[-1] > (1 - tolerance) * singular_values[0])
