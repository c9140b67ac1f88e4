"""Illnesses of what a model's first layers hear: padding, and numbers of the wrong size."""

from __future__ import annotations

import math

from isornn.diagnosis.gates import EDGE
from isornn.diagnosis.illnesses.kept import BAR
from isornn.diagnosis.illnesses.lines import normalise, pack
from isornn.diagnosis.illnesses.verdict import Verdict
from isornn.diagnosis.records import LayerDiagnosis

# One step in twenty; values that are often repeated anyway are as much so at the start.
PADDED = 0.05
# An input of this size alone saturates a gate's typical unit: ln(0.99 / 0.01).
LOUD = math.log((1 - EDGE) / EDGE)
QUIET = math.exp(-BAR)
# A mean of ten standard deviations: the loss is a hundred times more curved along it than along what varies.
OFFSET = 10.0


def padding(layer: LayerDiagnosis, length: int) -> Verdict | None:
    """Sequences end in rows that only repeat, and their lengths are not told."""
    inputs, place = layer.inputs, layer.place
    excess = inputs.padding - inputs.leading_padding
    if place.layer > 0 or excess <= PADDED:
        return None
    return Verdict(
        "padding",
        place.name,
        f"Padding is counted as input: {inputs.padding:.0%} of the steps only repeat their sequence's last row, on "
        f"average the last {inputs.padding * place.steps:.0f} of {place.steps}, and the layer goes on through them.",
        {
            "steps that repeat the last row": f"{inputs.padding:.1%} (bar: {PADDED:.0%} more than at the start)",
            "steps at the start that repeat the first": f"{inputs.leading_padding:.1%}",
        },
        pack(place),
    )


def unnormalised_input(layer: LayerDiagnosis, length: int) -> Verdict | None:
    """The inputs are so large, so small, or so far from mean 0 that the input weights cannot deal with them.

    Judged where the data is heard, by what the input weights make of it: ``input_var R`` is the variance of what a
    gate's pre-activation has from the input. Weights that would saturate a gate by inputs of unit size are not the
    data's fault.
    """
    inputs = layer.inputs
    gains = [math.sqrt(gate.input_var) for gate in layer.weights.gates.values() if 0 < gate.input_var <= LOUD**2]
    if layer.place.layer > 0 or not gains:
        return None
    gain = max(gains)
    heard = gain * math.sqrt(inputs.second_moment)
    varying = math.sqrt(float(inputs.feature_stds.square().mean()))
    shared = math.sqrt(float(inputs.feature_means.square().mean()))
    if varying == 0:
        return None  # the same at all steps, which nothing normalises
    if heard > LOUD:
        wrong = f"they drive pre-activations by {heard:.3g} (root mean square), where {LOUD:.2g} saturates a gate"
    elif heard < QUIET:
        wrong = f"they move pre-activations by {heard:.2g} (root mean square), too little to be heard"
    elif shared > OFFSET * varying and gain * shared > 1:
        wrong = f"what all steps share is {shared / varying:.0f} times what varies"
    else:
        return None
    size = f"mean {inputs.mean:.4g}, standard deviation {inputs.std:.3g}"
    return Verdict(
        "unnormalised_input",
        layer.place.name,
        f"The inputs are not normalised ({size}): {wrong}.",
        {
            "inputs": f"{size}, largest {inputs.largest:.3g}",
            "drive, sqrt(input_var E[x^2])": f"{heard:.3g} (bars: {QUIET:.2g} and {LOUD:.3g})",
            "mean beside standard deviation, by feature": f"{shared / varying:.3g} (bar: {OFFSET:g}, where the mean "
            f"drives by more than 1; here by {gain * shared:.3g})",
        },
        normalise(),
    )
