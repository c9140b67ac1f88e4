"""Laws of a gate's bias over units, other than the normal law: each is a function of one uniform variate per unit.

All laws of one cell share the unit's variate ``v`` (uniform on (0, 1)), so that a law with ``sign = -1``
on another gate is the exact mirror of the first, as chrono initialisation has b_i = -b_f unit by unit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isornn.cells.arguments import is_number
from isornn.cells.errors import SpecError

SPREAD = 1 / 3  # of the units, over whose octaves a capped law spreads time scales; the others are at its high end
LARGEST_END = 1e300  # also of whole numbers, which Python has beyond the floats
_SHAPES = ("timescale", "log_timescale", "capped_timescale")
WITH_ENDS = (*_SHAPES, *(f"hard_{shape}" for shape in _SHAPES))  # laws whose ends are free
_KINDS = ("chrono", *WITH_ENDS, "uniform_gate", "empirical")


@dataclass(frozen=True)
class BiasLaw:
    """The bias at which a gate is open to ``r / (1 + r)``, r drawn per unit: a unit forgets in about r steps.

    Added to ``bias_mean`` and the normal part ``bias_var``. For the logistic gate the bias is ``sign * log(r)``, for
    `hard_sigmoid` ``sign * (2.5 - 5/(1 + r))``; for others the cell's own inverse (`isornn.cells.openings.bias_of`).

    Args:
        kind: ``"chrono"``: r ~ U(1, T-1) (Tallec & Ollivier 2018); ``"timescale"``: r ~ U(low, high), the same
            with both ends free; ``"log_timescale"``: ln r ~ U(ln low, ln high), as many units in each octave of time
            scales; ``"capped_timescale"``: a third of the units so, and the others at r = high: ln r ~ U(ln low,
            ln(high^3 / low^2)), capped at ln high; ``"hard_timescale"``, ``"hard_log_timescale"``,
            ``"hard_capped_timescale"``: the same with the bias of `hard_sigmoid`, whatever the cell's gate is;
            ``"uniform_gate"``: r / (1 + r) ~ U(0, 1) (Gu et al. 2020); ``"empirical"``: the bias itself is one of
            ``values``, each as likely: those of the N units of a network, in one order of units in all gates, so that
            a unit's biases of several gates stay together.
        low, high: the ends of r, 0 < low <= high; 1 and T - 1 > 1 of chrono; unused for the last two.
        sign: +1 or -1.
        values: of the empirical law, at least one.

    Raises:
        SpecError: names the field that is not allowed.

    >>> import torch
    >>> BiasLaw("chrono", 1.0, 99.0).quantile(torch.tensor([0.5])).exp().round()
    tensor([50.])
    >>> BiasLaw("log_timescale", 1.0, 100.0).quantile(torch.tensor([0.5])).exp().round()
    tensor([10.])
    >>> BiasLaw("capped_timescale", 1.0, 100.0).quantile(torch.tensor([1 / 6, 1 / 3, 2 / 3])).exp().round()
    tensor([ 10., 100., 100.])
    >>> BiasLaw("empirical", values=(-1.0, 0.0, 5.0)).quantile(torch.tensor([0.3, 0.5, 0.9]))
    tensor([-1.,  0.,  5.])
    """

    kind: str
    low: float = 0.0
    high: float = 0.0
    sign: int = 1
    values: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise SpecError("bias_law.kind", self.kind, f"it must be one of {', '.join(_KINDS)}")
        if isinstance(self.sign, bool) or self.sign not in (1, -1):
            raise SpecError("bias_law.sign", self.sign, "it must be 1 or -1")
        ends = self.low, self.high
        if self.kind == "chrono" and not (all(map(_is_number, ends)) and 1 == self.low < self.high):
            raise SpecError("bias_law", ends, "the ends of chrono are 1 and T - 1, with T > 2")
        if self.kind in WITH_ENDS and not (all(map(_is_number, ends)) and 0 < self.low <= self.high):
            raise SpecError(
                "bias_law", ends, f"the ends of {self.kind} are numbers with 0 < low <= high <= {LARGEST_END}"
            )
        if self.kind == "empirical" and not (self.values and all(map(_is_number, self.values))):
            raise SpecError("bias_law.values", self.values, "it must have at least one number, all of them finite")

    def quantile(self, v: Tensor) -> Tensor:
        """``sign ln r`` of the unit with the uniform variate ``v``, a logistic gate's bias.

        Of the empirical and the hard kinds the bias itself.
        """
        if self.kind == "empirical":
            unit = (v * len(self.values)).long().clamp(0, len(self.values) - 1)
            return self.sign * torch.tensor(self.values, dtype=torch.float64, device=v.device)[unit].to(v)
        if self.kind == "uniform_gate":
            return self.sign * (v / (1 - v)).log()
        shape = self.kind.removeprefix("hard_")
        if shape in ("log_timescale", "capped_timescale"):
            octaves = v if shape == "log_timescale" else (v / SPREAD).clamp(max=1)
            # high / low may be beyond what a float holds
            log_odds = math.log(self.low) + octaves * (math.log(self.high) - math.log(self.low))
        else:
            log_odds = (self.low + (self.high - self.low) * v).log()
        return self.sign * (5 * log_odds.sigmoid() - 2.5 if self.kind.startswith("hard") else log_odds)

    def to_json(self) -> dict[str, Any]:
        """The form that spec files hold."""
        whole: dict[str, Any] = {"chrono": self.high + 1, "uniform_gate": True, "empirical": list(self.values)}
        return {self.kind: whole.get(self.kind, [self.low, self.high])} | ({"sign": -1} if self.sign < 0 else {})


def bias_law_from_json(value: Any) -> BiasLaw | None:
    """Read a spec file's ``bias_law``; ``None`` is the normal law.

    Raises:
        ValueError: with what is allowed.

    >>> bias_law_from_json({"chrono": 200, "sign": -1})
    BiasLaw(kind='chrono', low=1.0, high=199.0, sign=-1, values=())
    """
    allowed = (
        f'"normal", {{"chrono": T}} with T > 2, {{"uniform_gate": true}}, or one of {", ".join(WITH_ENDS)} as '
        '{"timescale": [low, high]} with 0 < low <= high, or {"empirical": [number, ...]}; each object may have '
        '"sign": 1 or -1'
    )
    if value is None or value == "normal":
        return None
    if not isinstance(value, dict):
        raise ValueError(allowed)
    sign = value.get("sign", 1)
    named = [key for key in value if key != "sign"]
    if isinstance(sign, bool) or sign not in (1, -1) or len(named) != 1:
        raise ValueError(allowed)
    try:
        return _of_json(named[0], value[named[0]], int(sign))
    except (SpecError, TypeError):
        raise ValueError(allowed) from None


def _of_json(kind: str, argument: Any, sign: int) -> BiasLaw:
    """The law of ``{kind: argument}``.

    Raises:
        TypeError: the argument is of another form.
        SpecError: values that are not allowed.
    """
    numbers = list(map(float, argument)) if isinstance(argument, list) and all(map(_is_number, argument)) else []
    if kind == "uniform_gate" and argument is True:
        return BiasLaw(kind, sign=sign)
    if kind == "chrono" and _is_number(argument):
        return BiasLaw(kind, 1.0, float(argument) - 1.0, sign)
    if kind == "empirical":
        return BiasLaw(kind, sign=sign, values=tuple(numbers))
    if kind in WITH_ENDS and len(numbers) == 2:
        return BiasLaw(kind, numbers[0], numbers[1], sign)
    raise TypeError(kind)


def _is_number(value: Any) -> bool:
    return is_number(value) and abs(value) <= LARGEST_END
