"""Illnesses of the tensors themselves: what was set in them another way than it was meant."""

from __future__ import annotations

import math

from isornn.diagnosis.illnesses.lines import bias_once, orthogonal_by_gate
from isornn.diagnosis.illnesses.starts import TOLERANCE, equal, start_of_layer
from isornn.diagnosis.illnesses.verdict import Verdict
from isornn.diagnosis.records import LayerDiagnosis
from isornn.diagnosis.weights import GateWeights, WeightFacts

# Two vectors that were set alike agree in their means to this many standard errors, or to 10 %.
_ERRORS, _ALIKE = 3, 0.1


def stacked_orthogonal(layer: LayerDiagnosis, length: int) -> Verdict | None:
    """The stacked (k N, P) matrix has orthonormal columns, the gates' own matrices have not."""
    stacked = layer.weights.stacked_singular_values
    own = {name: g.singular_values for name, g in layer.weights.gates.items() if len(g.singular_values) > 0}
    loose = {name: values for name, values in own.items() if len(values) > 1 and not equal(values)}
    if len(own) < 2 or not equal(stacked) or not loose:
        return None
    name, worst = min(loose.items(), key=lambda item: float(item[1][-1]))
    span = f"{float(worst[-1]):.2g} to {float(worst[0]):.2g}"
    return Verdict(
        "stacked_orthogonal",
        layer.place.name,
        f"Orthogonal initialisation was applied to the {len(own)} gates' matrices stacked, so each gate's own is not "
        f"orthogonal: singular values of {name} go from {span}.",
        {
            "singular values of the stacked matrix": f"{float(stacked[-1]):.4g} to {float(stacked[0]):.4g} "
            f"(bar: equal to {TOLERANCE:.0%})",
            f"singular values of gate {name}": f"{span} (bar: equal to {TOLERANCE:.0%})",
        },
        orthogonal_by_gate(layer),
    )


def doubled_bias(layer: LayerDiagnosis, length: int) -> Verdict | None:
    """Both bias vectors, which add, carry the remember gate's bias, in a layer as it was drawn."""
    name = layer.memory.gate
    drawn = start_of_layer(layer)
    if name is None or drawn is None or name not in doubled_gates(layer.weights, layer.place.hidden):
        return None
    gate = layer.weights.gates[name]
    first, second = (f"{mean:.3g}" for mean in gate.bias_means)
    bound = 1 / math.sqrt(layer.place.hidden)
    return Verdict(
        "doubled_bias",
        layer.place.name,
        f"The bias of gate {name} is set in both vectors, which add: {first} in bias_ih and {second} in bias_hh make "
        f"{gate.bias_mean:.3g}.",
        {
            f"mean of gate {name} in bias_ih, bias_hh": f"{first}, {second} (bar: both beyond ±{bound:.2g}, where "
            f"torch's own draw ends)",
            "the layer is as it was drawn": drawn,
        },
        bias_once(layer, doubled_gates(layer.weights, layer.place.hidden)),
    )


def doubled_gates(weights: WeightFacts, hidden: int) -> list[str]:
    """All gates whose two bias vectors were set: who doubles the remember gate's doubles its mirror's too."""
    return [name for name, gate in weights.gates.items() if _twice(gate, hidden)]


def _twice(gate: GateWeights, hidden: int) -> bool:
    """Whether two bias vectors were set, and alike.

    Beyond ±1/sqrt(N) a vector is not torch's own draw.
    """
    if len(gate.bias_means) != 2:
        return False
    first, second = gate.bias_means
    error = math.sqrt(sum(gate.bias_vars) / hidden)
    close = abs(first - second) <= max(_ERRORS * error, _ALIKE * max(abs(first), abs(second)))
    return min(abs(first), abs(second)) > 1 / math.sqrt(hidden) and first * second > 0 and close
