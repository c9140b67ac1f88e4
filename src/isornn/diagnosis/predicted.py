"""What the theory expects of a layer with the hyper-parameters that its tensors have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from isornn.cells import Input, Spec, SpecError
from isornn.diagnosis.numbers import quantity_json
from isornn.init import ModuleError, spec_of
from isornn.nn.gate_tensors import RecurrentLayer
from isornn.theory import Analysis, Quantity, TheoryMissing, analyze
from isornn.theory.population.units import Draws
from isornn.theory.tied.analysis import lyapunov_exponent
from isornn.theory.tied.following import follow_tied
from isornn.theory.tied.moments import input_moments
from isornn.theory.tied.paths import TiedLaws

NOT_ASKED = "not asked for"
LENGTH, STEPS, NETWORKS = 100, 40, 16


@dataclass(frozen=True)
class TiedPrediction:
    """Networks of the layer's own width with one draw of weights, followed over ``steps`` steps from state 0.

    Args:
        steps, width: how many steps, and units of each network: N rounded to a power of two.
        lyapunov: growth of ln |ds| per step over the later half of the steps; the mean over networks.
    """

    steps: int
    width: int
    lyapunov: Quantity

    def to_json(self) -> dict[str, Any]:
        """One JSON object."""
        return {"steps": self.steps, "width": self.width, "lyapunov": quantity_json(self.lyapunov)}


@dataclass(frozen=True)
class Predicted:
    """The theory's answer for `spec_of` the layer with the input's second moment and correlation.

    Args:
        untied: infinite width, weights fresh at every step; ``None`` where there is no answer.
        tied: one draw of weights; likewise.
        reason: why there is none.
    """

    untied: Analysis | None
    tied: TiedPrediction | None
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """One JSON object."""
        return {
            "untied": None if self.untied is None else self.untied.to_json(),
            "tied": None if self.tied is None else self.tied.to_json(),
            "reason": self.reason,
        }


def predicted(place: RecurrentLayer, law: Input) -> Predicted:
    """Ask the theory for the layer; its input is white: independent over steps and features, of mean 0.

    Response profiles reach over 100 steps; `analyze` has longer ones, and tied networks in full.
    """
    try:
        spec = spec_of(place.module, place.layer, place.direction, law)
        untied = analyze(spec, length=LENGTH, generator=torch.Generator().manual_seed(0))
        return Predicted(untied, _tied(spec, place.hidden))
    except (ModuleError, SpecError, TheoryMissing) as missing:
        return Predicted(None, None, str(missing))


def _tied(spec: Spec, hidden: int) -> TiedPrediction:
    width = 2 ** max(4, min(11, round(torch.tensor(float(hidden)).log2().item())))
    laws = TiedLaws.of(spec)
    draws = Draws(laws.units.batch, NETWORKS, width, torch.Generator().manual_seed(0))
    followed = follow_tied(laws, input_moments(laws, [laws.units.input_correlation]), draws, STEPS, tilted=False)
    return TiedPrediction(STEPS, width, lyapunov_exponent(followed, spec.batch_shape))
