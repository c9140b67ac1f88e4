"""One row a layer: what is read first."""

from __future__ import annotations

from isornn.diagnosis import Diagnosis, LayerDiagnosis
from isornn.formatting import share, with_error
from isornn.reports.decades import left_after
from isornn.theory import Quantity
from isornn.theory.reasons import UNENDING

COLUMNS = ("layer", "gradient after T", "ξ", "reach", "reach in theory", "Lyapunov", "units > T/2", "saturated")
NO_START = "none known: trained, or drawn by another law"
MEANING = (
    "Gradient of the layer's last output with respect to its state: its norm T steps back relative to one step back; "
    "ξ: steps in which its square falls to 1/e, by a fitted rate; reach: measured steps, after the first, until its "
    "square has fallen to 1/e. Then the share of units with a time constant above T/2, and the gate that is saturated "
    "most often. ± is a standard error, over sequences and the random direction that each has; numbers without one are "
    "exact for this batch."
)


def rows(diagnosis: Diagnosis) -> tuple[tuple[str, ...], ...]:
    """Under `COLUMNS`, in the order of the diagnosis."""
    return tuple(row(layer) for layer in diagnosis.layers)


def meaning(diagnosis: Diagnosis) -> str:
    """What the columns are, each layer's T where they differ, and why layers have no reach in theory."""
    without: dict[str, list[str]] = {}
    of_length: dict[int, list[str]] = {}
    for layer in diagnosis.layers:
        of_length.setdefault(layer.length, []).append(layer.info.name)
        if layer.predicted.untied is None:
            without.setdefault(str(layer.predicted.reason), []).append(layer.info.name)
    sentences = [MEANING]
    if len(of_length) > 1:
        lengths = (f"{length:,} for {', '.join(names)}" for length, names in of_length.items())
        sentences.append(f"T is {' and '.join(lengths)}.")
    sentences += [f"No reach in theory for {', '.join(names)}: {reason}." for reason, names in without.items()]
    return " ".join(sentences)


def starts(diagnosis: Diagnosis) -> tuple[str, ...]:
    """A line for each start that layers have, and one for those that have none."""
    having: dict[str, list[str]] = {}
    for layer in diagnosis.layers:
        start = NO_START if layer.start is None else str(layer.start)
        having.setdefault(start, []).append(layer.info.name)
    return tuple(f"start of {', '.join(names)}: {start}" for start, names in having.items())


def unmeasured(diagnosis: Diagnosis) -> tuple[str, ...]:
    """A line for each recurrent module that could not be measured, with the reason."""
    return tuple(f"{one.module or one.kind} ({one.kind}): not measured, {one.reason}" for one in diagnosis.unmeasured)


def row(layer: LayerDiagnosis) -> tuple[str, ...]:
    """Of one layer, under `COLUMNS`."""
    untied, memory = layer.predicted.untied, layer.memory
    near, beyond = memory.near.number(), memory.beyond.number()
    slow = "no such gate" if near is None or beyond is None else share(near + beyond)
    most = max(layer.gates.items(), key=lambda gate: gate[1].saturated, default=None)
    return (
        layer.info.name,
        left_after(layer.backward, layer.length),
        _short(layer.backward.xi),
        _short(layer.backward.reach),
        "-" if untied is None else _short(untied.reach),
        _short(layer.lyapunov.exponents[0]),
        slow,
        "no gates" if most is None else f"{most[0]} {share(most[1].saturated)}",
    )


def _short(quantity: Quantity) -> str:
    """The number, or the reason in a word or two; the layer's own section has all of it."""
    reason = quantity.reason()
    if reason is None:
        return with_error(quantity)
    if reason == UNENDING:
        return "infinite"
    if reason.startswith("beyond"):
        return f"> {reason.split()[2]}"
    return "undefined"
