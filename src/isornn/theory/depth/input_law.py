"""The law of a layer's input with its standard errors, and what they do to what is computed from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.theory.depth.stack import UNSURE
from isornn.theory.quantity import Quantity
from isornn.theory.records import Analysis, FixedPoint, JacobianMoments

# Far enough for differences to stand out of the noise of a sampled population, near enough for a derivative.
_SHIFT = 0.04
Numbers = Mapping[str, Quantity]


@dataclass(frozen=True)
class InputLaw:
    """``E[x^2] = R`` and ``E[x_a x_b] = R Sigma_z`` of a layer's input, batch-shaped, with their standard errors.

    ``known`` is False where the layer below has no stationary output; numbers there are placeholders.
    """

    variance: Tensor
    correlation: Tensor
    variance_error: Tensor
    correlation_error: Tensor
    known: Tensor

    def applied_to(self, spec: Spec) -> Spec:
        """``spec`` with this input."""
        return replace(spec, input=replace(spec.input, variance=self.variance, correlation=self.correlation))

    def shifts(self) -> list[Shift]:
        """The shifted inputs that show how much the errors matter; none where there are no errors."""
        found = []
        if bool((self.variance_error > 0).any()):
            size = torch.maximum(_SHIFT * self.variance, 3 * self.variance_error).minimum(self.variance / 2)
            low, high = ((value, self.correlation) for value in (self.variance - size, self.variance + size))
            found.append(Shift(low, high, size, size, self.variance_error))
        if bool((self.correlation_error > 0).any()):
            size = torch.maximum(torch.full_like(self.correlation, _SHIFT), 3 * self.correlation_error)
            low_c, high_c = (self.correlation - size).clamp(min=-1.0), (self.correlation + size).clamp(max=1.0)
            down, up = self.correlation - low_c, high_c - self.correlation
            found.append(Shift((self.variance, low_c), (self.variance, high_c), down, up, self.correlation_error))
        return found


@dataclass(frozen=True)
class Shift:
    """Inputs (variance, correlation) on both sides of the one that is meant, ``down`` and ``up`` from it.

    ``error`` is the standard error in that direction.
    """

    low: tuple[Tensor, Tensor]
    high: tuple[Tensor, Tensor]
    down: Tensor
    up: Tensor
    error: Tensor

    def applied_to(self, spec: Spec) -> Spec:
        """``spec`` at both, on a leading axis of 2."""
        variance, correlation = (torch.stack(pair) for pair in zip(self.low, self.high, strict=True))
        return replace(spec, input=replace(spec.input, variance=variance, correlation=correlation))

    def induced(self, center: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """``|dX/dp| se`` from X at the three; values that do not exist are NaN. NaN where no two exist.

        X may have further axes behind those of the batch.
        """
        below, above = low.isfinite(), high.isfinite()
        behind = (...,) + (None,) * (low.dim() - self.error.dim())
        rise = torch.where(above, high, center) - torch.where(below, low, center)
        run = torch.where(above, self.up[behind], 0.0) + torch.where(below, self.down[behind], 0.0)
        known = (below | above) & (run > 0)
        error = (rise / torch.where(known, run, 1.0)).abs() * self.error[behind]
        return torch.where(self.error[behind] > 0, torch.where(known, error, torch.nan), 0.0)


def widened(center: Numbers, shifts: Sequence[tuple[Shift, Numbers]]) -> dict[str, Quantity]:
    """The numbers ``center`` with their combined standard errors.

    Args:
        shifts: each with the same numbers at both its inputs, on a leading axis.
    """
    return {name: _widened(q, [(shift, values[name]) for shift, values in shifts]) for name, q in center.items()}


def _widened(quantity: Quantity, shifts: Sequence[tuple[Shift, Quantity]]) -> Quantity:
    if not shifts:
        return quantity
    parts = [shift.induced(quantity.value, *torch.where(q.defined, q.value, torch.nan).unbind()) for shift, q in shifts]
    induced = torch.stack(parts).sum(0)
    unsure = quantity.defined & induced.isnan()
    error = (quantity.stderr.square() + induced.square()).sqrt()
    return Quantity.of(quantity.value, error, dict(quantity.reasons) | {UNSURE: unsure})


def mapped(analysis: Analysis, change: Callable[[str, Quantity], Quantity]) -> Analysis:
    """``analysis`` with every quantity changed, given its dotted name."""
    new = {name: change(name, quantity) for name, quantity in analysis.quantities()}

    def part(record: Analysis | FixedPoint | JacobianMoments, prefix: str) -> dict[str, Any]:
        names = (field.name for field in fields(record))
        return {name: new[prefix + name] for name in names if prefix + name in new}

    point = replace(analysis.fixed_point, **part(analysis.fixed_point, "fixed_point."))
    jacobian = replace(analysis.jacobian, **part(analysis.jacobian, "jacobian."))
    return replace(analysis, fixed_point=point, jacobian=jacobian, **part(analysis, ""))


def with_curves(analysis: Analysis, shifts: Sequence[tuple[Shift, Analysis]], known: Tensor) -> Analysis:
    """``analysis`` with the combined standard errors of its profiles; NaN where the input is not ``known``, or the
    error."""

    def combined(center: Tensor, error: Tensor, at_both: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        induced = [shift.induced(center, *both.unbind()) for (shift, _), both in zip(shifts, at_both, strict=True)]
        total = torch.stack([error, *induced]).square().sum(0).sqrt()
        sure = known[..., None] & total.isfinite()
        return torch.where(sure, center, torch.nan), torch.where(sure, total, torch.nan)

    profile, error = combined(analysis.profile, analysis.profile_stderr, [near.profile for _, near in shifts])
    states = {
        name: combined(curve, analysis.state_profiles_stderr[name], [near.state_profiles[name] for _, near in shifts])
        for name, curve in analysis.state_profiles.items()
    }
    return replace(
        analysis,
        profile=profile,
        profile_stderr=error,
        state_profiles={name: curve for name, (curve, _) in states.items()},
        state_profiles_stderr={name: error for name, (_, error) in states.items()},
    )
