"""What the theory expects of a layer with the hyper-parameters that its tensors have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from isornn.cells import Input, SpecError
from isornn.init import ModuleError, spec_of
from isornn.nn.gate_tensors import RecurrentLayer
from isornn.theory import Analysis, TheoryMissing, analyze

NOT_ASKED = "not asked for"
STEPS = 40


@dataclass(frozen=True)
class Predicted:
    """The theory's answer for `spec_of` the layer with the input's second moment and correlation.

    Args:
        analysis: untied, and tied beside it as ``analysis.tied``; ``None`` where there is no answer.
        reason: why, where there is none.
    """

    analysis: Analysis | None
    reason: str | None

    def to_json(self) -> dict[str, Any]:
        """One JSON object."""
        return {"analysis": None if self.analysis is None else self.analysis.to_json(), "reason": self.reason}


def predicted(place: RecurrentLayer, law: Input, length: int) -> Predicted:
    """Ask `analyze` for the layer, profile of ``length`` steps.

    The theory's input is white: independent over steps and features, of mean 0.
    """
    try:
        spec = spec_of(place.module, place.layer, place.direction, law)
        generator = torch.Generator().manual_seed(0)
        analysis = analyze(spec, length=length, tied=True, steps=STEPS, generator=generator)
    except (ModuleError, SpecError, TheoryMissing) as missing:
        return Predicted(None, str(missing))
    return Predicted(analysis, None)
