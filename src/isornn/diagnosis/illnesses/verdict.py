"""What a verdict says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CANNOT_TELL = "cannot_tell"

# The gravest first: what stops training at once, what spoils the input of all layers, what shortens their memory, what
# only takes time.
ILLNESSES = (
    "exploding",
    "unnormalised_input",
    "padding",
    "default_start",
    "stacked_orthogonal",
    "saturated_forget_gate",
    "vanishing",
    "doubled_bias",
    "denormals",
)


@dataclass(frozen=True)
class Verdict:
    """One thing that is wrong, in plain words, and what it rests on.

    Args:
        illness: one of `ILLNESSES`, or ``"cannot_tell"``.
        place: the layer's name as `Place.name` has it, or an unmeasured module's; ``None`` for the whole model.
        sentence: what is wrong, with the numbers.
        evidence: by what was measured: its value, with its error unless it is exact, and the bar it is held to.
        remedy: Python that mends it, to be run as it stands where ``model`` and ``length`` are known; empty where more
            data is all that helps.
    """

    illness: str
    place: str | None
    sentence: str
    evidence: Mapping[str, str]
    remedy: str

    def to_json(self) -> dict[str, Any]:
        """One JSON object."""
        return {**vars(self), "evidence": dict(self.evidence)}
