"""How much of the gradient a layer keeps over the steps that it should bridge, and the bar that this is held to."""

from __future__ import annotations

import math
from dataclasses import dataclass

from isornn.diagnosis.facts import Profile
from isornn.diagnosis.records import LayerDiagnosis
from isornn.formatting import power_of_ten

# A thousandth, 2^-10, is the resolution of half precision and of TF32, in which cuDNN multiplies: a smaller gradient is
# lost when it is added to that of the last steps, and one larger by as much hides them.
BAR = 10 * math.log(2)
ERRORS = 2


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


def retention(layer: LayerDiagnosis) -> GradientRetention | None:
    return GradientRetention.of(layer.backward, layer.length)
