"""Illnesses of a layer's memory: what comes back over the wanted number of steps, and what the forget gate does."""

from __future__ import annotations

import math

from isornn.diagnosis.gates import EDGE
from isornn.diagnosis.illnesses.kept import ERRORS, kept, rate_evidence
from isornn.diagnosis.illnesses.lines import clip, restart
from isornn.diagnosis.illnesses.starts import drawn_or_trained, start_of_layer
from isornn.diagnosis.illnesses.verdict import CANNOT_TELL, Verdict
from isornn.diagnosis.records import LayerDiagnosis
from isornn.formatting import or_why
from isornn.theory import Quantity

# A gate that would stay open for a hundred lengths forgets less than 1 % over one, and its slope f (1 - f) is so small
# that over all the steps together a change of its pre-activation by 1 changes what is kept by less than that.
BEYOND = 100
MOST = 0.5
# Shut at every fourth step, a unit is wiped after four of them on average, whatever it does in between.
SHUT = 0.25


def vanishing(layer: LayerDiagnosis, length: int) -> Verdict | None:
    """Less than 2^-10 of the gradient is left after ``length`` steps."""
    found = kept(layer.backward, length)
    if found is None or not found.vanishes:
        return None
    return Verdict(
        "vanishing",
        layer.place.name,
        f"The gradient vanishes: after {length} steps {found.plain} is left of what there is after one, less than "
        f"1/1024; its time scale xi is {or_why(layer.backward.xi)} steps.",
        {**found.evidence("2^-10"), **rate_evidence(layer.backward), **drawn_or_trained(layer)},
        restart(layer),
    )


def default_start(layer: LayerDiagnosis, length: int) -> Verdict | None:
    """The recurrent matrices are torch's own draw, with which the gradient vanishes within ``length`` steps."""
    draw, found = layer.weights.recurrent_default, kept(layer.backward, length)
    if draw is None or not draw.likely or found is None or not found.vanishes:
        return None
    bound = f"1/sqrt({layer.place.hidden})"
    return Verdict(
        "default_start",
        layer.place.name,
        f"The weights are still torch's default draw, which sees {or_why(layer.backward.xi)} steps (xi) of the "
        f"{length} to bridge: {found.plain} of the gradient is left after them.",
        {
            "recurrent entries": f"all within ±{bound}; distance {draw.distance:.2g} from the uniform law, which "
            f"{draw.p_value:.2g} of such draws exceed (bar: 0.001)",
            **found.evidence("2^-10"),
            **rate_evidence(layer.backward),
        },
        restart(layer),
    )


def exploding(layer: LayerDiagnosis, length: int) -> Verdict | None:
    """The gradient grows more than 2^10 times over ``length`` steps, and nearby states part."""
    found, rate = kept(layer.backward, length), layer.backward.rate
    leading = layer.lyapunov.exponents[0]
    if found is None or not found.explodes or not _positive(rate) or not _positive(leading):
        return None
    trained = start_of_layer(layer) is None
    return Verdict(
        "exploding",
        layer.place.name,
        f"The gradient explodes: over {length} steps it grows {found.plain} times, by {or_why(rate)} per step in "
        f"its logarithm, and nearby states part at {or_why(leading)} per step.",
        {
            **found.evidence("2^10"),
            **rate_evidence(layer.backward),
            "leading Lyapunov exponent": f"{or_why(leading)} (bar: above 0 by {ERRORS} errors)",
            **drawn_or_trained(layer),
        },
        clip() if trained else restart(layer),
    )


def saturated_forget_gate(layer: LayerDiagnosis, length: int) -> Verdict | None:
    """The forget gate never forgets nor learns to, or it is shut so often that the gradient vanishes."""
    name, scales = layer.memory.gate, layer.memory.time_constants
    if name is None or scales is None or name not in layer.gates:
        return None
    gate, found = layer.gates[name], kept(layer.backward, length)
    wiped, wiping, keeping = gate.closed, f"below {EDGE}", f"above {1 - EDGE}"
    if layer.memory.sign < 0:
        wiped, wiping, keeping = gate.open, keeping, wiping
    beyond = float((scales > BEYOND * length).double().mean())
    if beyond > MOST:
        wrong = (
            f"{beyond:.0%} of its units would keep their state for more than {BEYOND} times the {length} steps to "
            f"bridge, so they neither forget nor learn to"
        )
    elif wiped > SHUT and found is not None and found.vanishes:
        wrong = (
            f"{wiped:.0%} of its values are {wiping}, which wipes a unit every {1 / wiped:.1f} steps "
            f"on average, and {found.plain} of the gradient is left after {length}"
        )
    else:
        return None
    return Verdict(
        "saturated_forget_gate",
        layer.place.name,
        f"The forget gate {name} is saturated: {wrong}; {gate.saturated:.0%} of its values have hardly any slope.",
        {
            f"units that keep for {BEYOND} times the length": f"{beyond:.1%} (bar: {MOST:.0%})",
            f"gate {name} {wiping}": f"{wiped:.1%} of values (bar: {SHUT:.0%}, where the gradient vanishes)",
            f"gate {name} {keeping}": f"{gate.saturated - wiped:.1%} of values (no bar: a long memory needs it)",
            f"pre-activation of {name}": f"mean {gate.pre_activation_mean:.3g}, "
            f"standard deviation {gate.pre_activation_std:.3g}",
            **({} if found is None else found.evidence("2^-10")),
            **drawn_or_trained(layer),
        },
        restart(layer),
    )


def cannot_tell(layer: LayerDiagnosis, length: int) -> Verdict | None:
    """The sequences are too short to see ``length`` steps."""
    found = kept(layer.backward, length)
    if found is not None and found.told:
        return None
    steps = layer.place.steps
    why = f"rate: {layer.backward.rate.reason()}" if found is None else f"e^({found.measured:.3g}) is left after them"
    return Verdict(
        CANNOT_TELL,
        layer.place.name,
        f"Whether {length} steps are bridged cannot be told from sequences of {steps}; give a batch with longer ones.",
        {"steps measured": f"{steps} (bar: half the length, {length / 2:g})", "gradient": why},
        "",
    )


def _positive(quantity: Quantity) -> bool:
    number, error = quantity.number(), quantity.error()
    if number is None or error is None:
        return False
    # From few steps the exponent's error is not known.
    return number > (ERRORS * error if math.isfinite(error) else 0.0)
