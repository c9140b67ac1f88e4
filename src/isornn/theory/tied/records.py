"""What the theory of tied networks answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from isornn.theory.quantities import Quantity

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True)
class Tied:
    """Networks with one draw of weights and biases for all time, from state 0, over ``steps`` steps.

    Args:
        mean, second_moment, correlation: of the state that is read, at times 1 .. steps (last axis), infinite width.
        lyapunov: growth of ln |dh| per step over the later half of the steps, of a displacement of all states at
            step 0: the finite-time Lyapunov exponent, averaged over networks of ``width`` units.
        chi, chi_1: growth per step of E[dh_a dh_b] and of E|dh|^2 over the same steps at infinite width;
            ``exp(2 lyapunov)`` unless few units carry the displacement, as slow units do.
        xi: ``-1/ln chi``.
        untied: E[h^2] at the same times where weights are redrawn each step.
        time_scales: by state that carries itself, quantiles (last axis) over units of ``-1 / (mean of ln |d s'/d s|)``,
            the unit's own time scale, over the later half of the steps.
        effective_share: share of the ``width`` units that carried the displacement, where it was smallest.
    """

    steps: int
    width: int
    mean: Quantity
    second_moment: Quantity
    correlation: Quantity
    lyapunov: Quantity
    chi: Quantity
    chi_1: Quantity
    xi: Quantity
    untied: Quantity
    time_scales: Mapping[str, Quantity]
    effective_share: Tensor

    @property
    def window(self) -> tuple[int, int]:
        """Steps from and to which growth is taken."""
        return self.steps // 2, self.steps

    def parting(self) -> int | None:
        """The first step at which E[h^2] is more than 10 % off the untied theory's, and beyond 3 standard errors.

        For a single spec; ``None`` where there is no such step.
        """
        gap = (self.second_moment.value - self.untied.value).abs()
        noise = 3 * (self.second_moment.stderr**2 + self.untied.stderr**2).sqrt()
        apart = (gap > 0.1 * self.untied.value) & (gap > noise)
        return int(apart.nonzero()[0]) + 1 if bool(apart.any()) else None

    def numbers(self) -> Iterator[tuple[str, Quantity]]:
        """The quantities that are one number for each spec, by name."""
        for name in ("lyapunov", "chi", "chi_1", "xi"):
            yield name, getattr(self, name)

    def to_json(self) -> dict[str, Any]:
        """One JSON object, for a single spec; what does not exist is null and its reason stands under ``undefined``."""
        lines = {name: getattr(self, name) for name in ("mean", "second_moment", "correlation", "untied")}
        scales = {f"time_scales.{name}": quantity for name, quantity in self.time_scales.items()}
        numbers = dict(self.numbers())
        every = lines | scales | numbers
        return {
            "steps": self.steps,
            "width": self.width,
            "window": list(self.window),
            **{name: quantity.listed() for name, quantity in (lines | numbers).items()},
            "time_scales": {
                "quantiles": list(QUANTILES),
                **{name: quantity.listed() for name, quantity in self.time_scales.items()},
            },
            "parting": self.parting(),
            "effective_share": float(self.effective_share),
            "stderr": {name: quantity.listed_errors() for name, quantity in every.items()},
            "undefined": {name: [reason for reason, _ in q.reasons] for name, q in every.items() if q.reasons},
        }
