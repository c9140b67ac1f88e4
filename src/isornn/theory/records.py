"""What the theory answers: numbers with their uncertainty, and reasons where there is no number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from torch import Tensor

from isornn.cells import Spec
from isornn.theory.quantities import Quantity
from isornn.theory.tied.records import Tied


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
            "spec": self.spec.to_json(strict=False),
        }


def _short(name: str) -> str:
    return "correlation" if name == "fixed_point.correlation" else name


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
