"""What a check is, and what it gives: a finding with its sentence, evidence and fix."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from isornn.diagnosis.advice import Advice
from isornn.diagnosis.facts import Profile
from isornn.diagnosis.fixes import Fix
from isornn.diagnosis.records import LayerDiagnosis
from isornn.diagnosis.weights import layer_evidence
from isornn.formatting import or_why, power_of_ten, with_error
from isornn.theory import Quantity

CANNOT_TELL, NOT_FINITE = "cannot_tell", "not_finite"

# A thousandth, 2^-10, is the resolution of half precision and of TF32, in which cuDNN multiplies: a smaller gradient is
# lost when it is added to that of the last steps, and one larger by as much hides them.
BAR = 10 * math.log(2)
ERRORS = 2


@dataclass(frozen=True)
class Finding:
    """Something measured that limits training: a sentence with numbers, its evidence and its fix.

    Args:
        kind: one of `KINDS`, or ``"cannot_tell"``.
        layer: the layer's name as `LayerInfo.name` has it, or an unmeasured module's; ``None`` for the whole model.
        sentence: what was found, with numbers and units.
        evidence: by what was measured: its value, with its error unless it is exact, and the bar it is held to.
        fix: a correction of the layer that `fix_` can make, or code for the user to place; ``None`` where only other
            data or a look at the model helps.

    >>> finding = Finding("vanishing", "LSTM l0", "LSTM l0: gradients vanish.", {"xi": "1.01(7) steps"})
    >>> finding.sentence
    'LSTM l0: gradients vanish.'
    """

    kind: str
    layer: str | None
    sentence: str
    evidence: Mapping[str, str]
    fix: Fix | Advice | None = None

    @property
    def remedy(self) -> str:
        """Python that corrects it where ``model`` and ``batch`` are what was measured; empty without a fix."""
        return "" if self.fix is None else self.fix.code

    def to_json(self) -> dict[str, Any]:
        """One JSON object."""
        plain = {name: getattr(self, name) for name in ("kind", "layer", "sentence", "remedy")}
        return {**plain, "evidence": dict(self.evidence)}


@dataclass(frozen=True)
class GradientRetention:
    """Norm of the gradient after ``length`` steps back relative to its norm after one: ln of the ratio.

    Args:
        length: the number of steps to bridge.
        steps: how many of them the sequences have.
        log: the ratio's logarithm after ``length`` steps; beyond ``steps`` along the fitted rate.
        error: standard error of the fitted rate, over ``length`` steps.
        measured: the logarithm after ``steps``.
    """

    length: int
    steps: int
    log: float
    error: float
    measured: float

    @staticmethod
    def of(profile: Profile, length: int) -> GradientRetention | None:
        """From a backward profile; ``None`` where it is too short to have a rate.

        >>> import torch
        >>> from isornn.diagnosis.profiles import profile_of
        >>> slopes = torch.tensor([-0.5, -0.52], dtype=torch.float64)
        >>> decay = profile_of({"all": torch.arange(31.0).unsqueeze(1) * slopes})
        >>> found = GradientRetention.of(decay, 30)
        >>> round(found.log, 1), found.vanishes
        (-14.7, True)
        """
        values = profile.log_norm["all"]
        if len(values) < 2:
            return None
        lags = profile.lags.tolist()
        # Where lags are thinned the last one may be a little before the length, but not before the sequence's end.
        at = max(number for number, lag in enumerate(lags) if lag <= length)
        steps = int(lags[at])
        measured = -math.inf if math.isinf(float(values[1])) else float(values[at] - values[1])
        rate, error = profile.rate.number(), profile.rate.error()
        if math.isinf(measured):
            return GradientRetention(length, steps, measured, 0.0, measured)
        if rate is None or error is None:
            return None
        return GradientRetention(length, steps, measured + rate * (length - steps), error * (length - 1), measured)

    @property
    def conclusive(self) -> bool:
        """Whether what was measured covers half the length, or has passed the bar already."""
        return 2 * self.steps >= self.length or abs(self.measured) > BAR

    @property
    def vanishes(self) -> bool:
        """Below the bar by more than two standard errors."""
        return self.conclusive and self.log + ERRORS * self.error < -BAR

    @property
    def explodes(self) -> bool:
        """Above the bar by more than two standard errors."""
        return self.conclusive and self.log - ERRORS * self.error > BAR

    def evidence(self, bar: str) -> dict[str, str]:
        """The ratio, and the bar it is held to."""
        how = "measured" if self.steps >= self.length else f"the last {self.length - self.steps} steps by the fit"
        value = "exactly 0" if math.isinf(self.log) else f"{self.ratio}, ln of it {self.log:.4g} ± {self.error:.2g}"
        return {f"gradient after {self.length} steps relative to one": f"{value} ({how}; bar: {bar})"}

    @property
    def ratio(self) -> str:
        """The ratio."""
        return power_of_ten(self.log / math.log(10))

    @property
    def against_one(self) -> str:
        """The ratio, as a clause; where more than a tenth of the steps are not in the batch, it says so."""
        beyond = self.length - self.steps
        fitted = f" (at the fitted rate: the batch has {self.steps} steps)" if beyond > 0.1 * self.length else ""
        return f"after {self.length} steps its norm is {self.ratio} of that after one step{fitted}"


class Check(ABC):
    """One condition on a measured layer.

    ``explains`` names findings of the same layer that follow from this one, and are not reported with it.
    """

    kind: ClassVar[str]
    explains: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def find(self, layer: LayerDiagnosis) -> Finding | None:
        """The finding, where the condition holds."""

    def finding(
        self, layer: LayerDiagnosis, sentence: str, evidence: Mapping[str, str], fix: Fix | Advice | None
    ) -> Finding:
        """A finding of this check's kind."""
        return Finding(self.kind, layer.info.name, sentence, evidence, fix)


def retention(layer: LayerDiagnosis) -> GradientRetention | None:
    return GradientRetention.of(layer.backward, layer.length)


def rates(layer: LayerDiagnosis) -> dict[str, str]:
    """Growth per step, and xi, as fitted."""
    backward = layer.backward
    return {"growth of ln gradient per step": or_why(backward.rate), "xi in steps": or_why(backward.xi)}


def xi(layer: LayerDiagnosis) -> str:
    """As a clause."""
    xi = layer.backward.xi
    return f"the time scale xi is {with_error(xi)} steps" if not xi.reason() else f"xi has no value: {xi.reason()}"


def weights(layer: LayerDiagnosis) -> dict[str, str]:
    """Whether they are as initialised, as evidence."""
    found = layer_evidence(layer)
    return {"weights": "trained, or no trace of an initialisation" if found is None else f"as initialised: {found}"}


def positive(quantity: Quantity) -> bool:
    """Whether it is above 0 by two errors."""
    number, error = quantity.number(), quantity.error()
    if number is None or error is None:
        return False
    # From few steps the exponent's error is not known.
    return number > (ERRORS * error if math.isfinite(error) else 0.0)


def above(quantity: Quantity, bar: float) -> bool:
    """Whether it is above the bar, or within two errors of it; an error that is not known counts as 0."""
    number, error = quantity.number(), quantity.error()
    if number is None or error is None:
        return False
    return number + (ERRORS * error if math.isfinite(error) else 0.0) >= bar
