"""How much of a gradient is left after the wanted number of steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from isornn.diagnosis.profiles import Profile
from isornn.formatting import or_why, power_of_ten

# A thousandth, 2^-10, is the resolution of half precision and of TF32, in which cuDNN multiplies: what is smaller is
# lost beside what comes from the last steps, and what is larger by as much loses them.
BAR = 10 * math.log(2)
ERRORS = 2


@dataclass(frozen=True)
class Kept:
    """Norm of the gradient that comes back over ``length`` steps beside its norm after one: ln of the ratio.

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

    @property
    def told(self) -> bool:
        """Whether what was measured reaches half the length, or has passed the bar already."""
        return 2 * self.steps >= self.length or abs(self.measured) > BAR

    @property
    def vanishes(self) -> bool:
        """Below the bar by more than two standard errors."""
        return self.told and self.log + ERRORS * self.error < -BAR

    @property
    def explodes(self) -> bool:
        """Above the bar by more than two standard errors."""
        return self.told and self.log - ERRORS * self.error > BAR

    def evidence(self, bar: str) -> dict[str, str]:
        """The ratio, and the bar it is held to."""
        how = "measured" if self.steps >= self.length else f"the last {self.length - self.steps} steps by the fit"
        value = "exactly 0" if math.isinf(self.log) else f"{self.plain}, ln of it {self.log:.4g} ± {self.error:.2g}"
        return {f"gradient after {self.length} steps beside after one": f"{value} ({how}; bar: {bar})"}

    @property
    def plain(self) -> str:
        """The ratio."""
        return power_of_ten(self.log / math.log(10))


def kept(profile: Profile, length: int) -> Kept | None:
    """From a backward profile; ``None`` where it is too short to have a rate.

    >>> import torch
    >>> from isornn.diagnosis.profiles import profile_of
    >>> slopes = torch.tensor([-0.5, -0.52], dtype=torch.float64)
    >>> decay = profile_of({"all": torch.arange(31.0).unsqueeze(1) * slopes})
    >>> found = kept(decay, 30)
    >>> round(found.log, 1), found.vanishes
    (-14.7, True)
    """
    values = profile.log_norm["all"]
    if len(values) < 2:
        return None
    lags = profile.lags.tolist()
    place = max(number for number, lag in enumerate(lags) if lag <= length)
    steps = int(lags[place])
    # Where lags are thinned the last one may stand a little before the length, but not before the sequence's end.
    measured = -math.inf if math.isinf(float(values[1])) else float(values[place] - values[1])
    rate, error = profile.rate.number(), profile.rate.error()
    if math.isinf(measured):
        return Kept(length, steps, measured, 0.0, measured)
    if rate is None or error is None:
        return None
    return Kept(length, steps, measured + rate * (length - steps), error * (length - 1), measured)


def rate_evidence(profile: Profile) -> dict[str, str]:
    """Growth per step, and xi, as fitted."""
    return {"growth of ln gradient per step": or_why(profile.rate), "xi in steps": or_why(profile.xi)}
