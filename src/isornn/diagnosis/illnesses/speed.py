"""What makes a layer slower than it need be."""

from __future__ import annotations

from isornn.diagnosis.denormals import MANY, SLOWER
from isornn.diagnosis.illnesses.lines import flush
from isornn.diagnosis.illnesses.verdict import Verdict
from isornn.diagnosis.records import LayerDiagnosis


def denormals(layer: LayerDiagnosis, length: int) -> Verdict | None:
    """Denormal numbers, measured once for all layers of a module, and reported for its first."""
    found = layer.denormals
    if found is None or not found.costly or layer.place.layer or layer.place.direction:
        return None
    return Verdict(
        "denormals",
        layer.place.name,
        found.sentence,
        {
            "denormal numbers in the gradient of its inputs": f"{found.gradients:.1%} (bar: {MANY:.0%})",
            "denormal numbers in its outputs": f"{found.states:.1%} (bar: {MANY:.0%})",
            "seconds of a pass": f"{found.seconds:.3g}, {found.flushed_seconds:.3g} with denormal numbers flushed to "
            f"0 (bar: {SLOWER:g} times)",
            "device": found.device,
        },
        flush(),
    )
