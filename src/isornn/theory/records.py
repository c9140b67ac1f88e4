"""What the theory answers: numbers with their uncertainty, and reasons where there is no number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.theory.reasons import UNENDING

if TYPE_CHECKING:
    from isornn.theory.tied.records import Tied


@dataclass(frozen=True)
class Quantity:
    """A number for every spec of a batch.

    Args:
        value: batch-shaped float64; infinite where the answer is infinite, NaN where there is none. Both are
            marked in ``reasons``.
        stderr: standard error, same shape; 0 where the engine is deterministic (see the fixed point's residual).
        reasons: (reason, where it applies) for values that are infinite or do not exist.
    """

    value: Tensor
    stderr: Tensor
    reasons: tuple[tuple[str, Tensor], ...] = ()

    @staticmethod
    def of(value: Tensor, stderr: Tensor | None = None, reasons: Mapping[str, Tensor | bool] | None = None) -> Quantity:
        """Mark ``value`` as missing wherever a reason applies; the first reason that applies counts."""
        stderr = torch.zeros_like(value) if stderr is None else stderr
        free, kept = torch.ones_like(value, dtype=torch.bool), []
        for reason, where in (reasons or {}).items():
            applies = free & torch.as_tensor(where).expand(value.shape)
            if bool(applies.any()):
                kept.append((reason, applies))
            free = free & ~applies
        missing = ~free & ~torch.isinf(value)
        value = torch.where(missing, torch.nan, value)
        return Quantity(value, torch.where(free, stderr, torch.nan), tuple(kept))

    @property
    def defined(self) -> Tensor:
        """Where the value is a finite number."""
        masks = [where for _, where in self.reasons]
        return ~torch.stack(masks).any(0) if masks else torch.ones_like(self.value, dtype=torch.bool)

    def number(self) -> float | None:
        """The value of a single spec; ``None`` where there is none or it is infinite."""
        return float(self.value) if bool(self.defined) else None

    def error(self) -> float | None:
        """The standard error of a single spec."""
        return float(self.stderr) if bool(self.defined) else None

    def reason(self) -> str | None:
        """Why a single spec's value is missing or infinite."""
        return next((reason for reason, where in self.reasons if bool(where)), None)


def time_scale(chi: Quantity) -> Quantity:
    """``xi = -1/ln |chi|``; infinite where chi >= 1."""
    size = chi.value.abs()
    unending = size >= 1
    inside = torch.where(unending, 0.5, size)
    rate = -torch.where(inside > 0, inside, torch.e**-torch.inf).log()
    value = torch.where(unending, torch.inf, 1 / rate)
    error = chi.stderr / torch.where(size > 0, size, 1.0) * value**2
    reasons: dict[str, Tensor | bool] = dict(chi.reasons)
    return Quantity.of(value, error, reasons | {UNENDING: unending})


@dataclass(frozen=True)
class FixedPoint:
    """Stationary moments of the state that is read: ``mean`` = E[h], ``second_moment`` = E[h^2],
    ``correlation`` = (E[h_a h_b] - mu^2)/(Q - mu^2) at the stable fixed point of the correlation map.

    ``residual`` is the relative change of the second moment in one more step (quadrature) or between the last two
    blocks of steps (population). Where ``converged`` is False no number is given.
    """

    mean: Quantity
    second_moment: Quantity
    correlation: Quantity
    residual: Tensor
    converged: Tensor


@dataclass(frozen=True)
class JacobianMoments:
    """``mean`` m1 and ``second_moment`` m2 of the squared singular values of the state-to-state Jacobian, and their
    ``variance`` m2 - m1^2."""

    mean: Quantity
    second_moment: Quantity
    variance: Quantity


@dataclass(frozen=True)
class Analysis:
    """All that `analyze` says of a spec or a batch of specs.

    Args:
        engine: ``"quadrature"`` (deterministic) or ``"population"`` (sampled).
        chi: growth per step of the linear response of E[h_a h_b] at the stable correlation.
        xi: ``-1/ln chi`` steps.
        chi_1: the same growth for two identical copies.
        reach: steps after the first until the response has fallen to 1/e of its value after the first.
        xi_q: ``-1/ln`` of the spectral radius of d(mu, Q)'/d(mu, Q).
        profile: P_t for t = 0..length, batch-shaped with times last, after every state that carries itself was
            displaced at step 0 in each unit by a small variance, taken as 1; what is formed from it moves along.
        state_profiles: the same for every state of the cell, E[ds_a ds_b].
        tied: networks with one draw of weights, where that was asked for and there is a theory.
    """

    spec: Spec
    engine: Literal["quadrature", "population"]
    fixed_point: FixedPoint
    chi: Quantity
    xi: Quantity
    chi_1: Quantity
    reach: Quantity
    jacobian: JacobianMoments
    xi_q: Quantity
    profile: Tensor
    state_profiles: Mapping[str, Tensor]
    tied: Tied | None = None

    def quantities(self) -> Iterator[tuple[str, Quantity]]:
        """Every quantity by its dotted name."""
        for field in fields(self):
            part = getattr(self, field.name)
            if isinstance(part, Quantity):
                yield field.name, part
            elif isinstance(part, (FixedPoint, JacobianMoments)):
                for inner in fields(part):
                    if isinstance(getattr(part, inner.name), Quantity):
                        yield f"{field.name}.{inner.name}", getattr(part, inner.name)

    def to_json(self) -> dict[str, Any]:
        """One JSON object; what does not exist is null and its reason stands under ``undefined``.

        Names under ``undefined`` and ``stderr`` are those of the object, dotted where the name alone is ambiguous.
        """
        numbers = {name: quantity.number() for name, quantity in self.quantities()}
        undefined = {_short(n): q.reason() for n, q in self.quantities() if q.reason() is not None}
        parts = {name: numbers[f"jacobian.{name}"] for name in ("mean", "second_moment", "variance")}
        jacobian = None if all(value is None for value in parts.values()) else parts
        if jacobian is None:
            undefined = {n: r for n, r in undefined.items() if not n.startswith("jacobian.")}
            undefined["jacobian"] = self.jacobian.mean.reason()
        return {
            "cell": self.spec.cell.name,
            "engine": self.engine,
            "fixed_point": {
                "mean": numbers["fixed_point.mean"],
                "second_moment": numbers["fixed_point.second_moment"],
                "correlation": numbers["fixed_point.correlation"],
                "converged": bool(self.fixed_point.converged),
                "residual": _finite(float(self.fixed_point.residual)),
            },
            "chi": numbers["chi"],
            "xi": numbers["xi"],
            "chi_1": numbers["chi_1"],
            "reach": numbers["reach"],
            "jacobian": jacobian,
            "xi_q": numbers["xi_q"],
            "stderr": {_short(n): q.error() for n, q in self.quantities() if q.error() is not None},
            "undefined": undefined,
            **({} if self.tied is None else {"tied": self.tied.to_json()}),
            "spec": self.spec.to_json(),
        }


def _short(name: str) -> str:
    return "correlation" if name == "fixed_point.correlation" else name


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
