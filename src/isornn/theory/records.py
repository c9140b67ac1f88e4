"""What the theory answers: records of numbers with their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.notebook import table, tag
from isornn.theory.quantity import Quantity, time_scale

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

    def differs_from(self) -> int | None:
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
            "differs_from": self.differs_from(),
            "effective_share": float(self.effective_share),
            "stderr": {name: quantity.listed_errors() for name, quantity in every.items()},
            "undefined": {name: [reason for reason, _ in q.reasons] for name, q in every.items() if q.reasons},
        }


@dataclass(frozen=True)
class FixedPoint:
    """Stationary moments of a cell's first state, whatever its ``read``: ``mean`` = E[h], ``second_moment`` = E[h^2],
    ``correlation`` = (E[h_a h_b] - mu^2)/(Q - mu^2) at the stable fixed point of the correlation map.

    ``residual`` is the relative change of the second moment in one more step (quadrature) or between the last two
    blocks of steps (population). Where ``converged`` is False no number is given.

    >>> from isornn.cells import Gate, Minimal
    >>> from isornn.theory import analyze
    >>> point = analyze(Spec(Minimal(), {"u": Gate(weight_var=1.0, input_var=1.0)})).fixed_point
    >>> bool(point.converged), round(point.second_moment.number(), 3)
    (True, 0.44)
    """

    mean: Quantity
    second_moment: Quantity
    correlation: Quantity
    residual: Tensor
    converged: Tensor


@dataclass(frozen=True)
class JacobianMoments:
    """``mean`` m1 and ``second_moment`` m2 of the squared singular values of the state-to-state Jacobian, and their
    ``variance`` m2 - m1^2.

    >>> from isornn.cells import Gate, Minimal
    >>> from isornn.theory import analyze
    >>> moments = analyze(Spec(Minimal(), {"u": Gate(weight_var=1.0, input_var=1.0)})).jacobian
    >>> round(moments.mean.number(), 3)
    0.365
    """

    mean: Quantity
    second_moment: Quantity
    variance: Quantity


@dataclass(frozen=True)
class Analysis:
    """All that `analyze` says of a spec or a batch of specs.

    Args:
        engine: ``"quadrature"`` (deterministic) or ``"population"`` (sampled); ``"none"`` where there is no theory.
        chi: growth per step of the linear response of E[h_a h_b] at the stable correlation.
        xi: ``-1/ln chi`` steps.
        chi_1: the same growth for two identical copies.
        reach: steps after the first until the response has fallen to 1/e of its value after the first.
        xi_q: ``-1/ln`` of the spectral radius of d(mu, Q)'/d(mu, Q).
        profile: P_t for t = 0..length, batch-shaped with times last, after every state that carries itself was
            displaced at step 0 in each unit by a small variance, taken as 1; what is formed from it moves along.
        profile_stderr: its standard errors, in the same shape; 0 where the engine is deterministic.
        state_profiles: the same for every state of the cell, E[ds_a ds_b].
        state_profiles_stderr: its standard errors, likewise by state.
        tied: networks with one draw of weights, where that was asked for and there is a theory.

    >>> from isornn.cells import Gate, Minimal
    >>> from isornn.theory import analyze
    >>> answer = analyze(Spec(Minimal(), {"u": Gate(weight_var=1.0, input_var=1.0, bias_mean=2.0)}))
    >>> round(answer.xi.number(), 2), round(answer.reach.number(), 2)
    (3.39, 3.39)
    """

    spec: Spec
    engine: Literal["quadrature", "population", "none"]
    fixed_point: FixedPoint
    chi: Quantity
    xi: Quantity
    chi_1: Quantity
    reach: Quantity
    jacobian: JacobianMoments
    xi_q: Quantity
    profile: Tensor
    profile_stderr: Tensor
    state_profiles: Mapping[str, Tensor]
    state_profiles_stderr: Mapping[str, Tensor]
    tied: Tied | None = None

    @staticmethod
    def of(
        spec: Spec,
        engine: Literal["quadrature", "population", "none"],
        *,
        fixed_point: FixedPoint,
        chi: Quantity,
        chi_1: Quantity,
        reach: Quantity,
        jacobian: JacobianMoments,
        moment_rate: Quantity,
        profile: Tensor,
        profile_stderr: Tensor,
        state_profiles: Mapping[str, Tensor],
        state_profiles_stderr: Mapping[str, Tensor],
    ) -> Analysis:
        """What every engine builds its answer with: the time scales follow from the rates.

        Args:
            moment_rate: spectral radius of d(mu, Q)'/d(mu, Q).
        """
        return Analysis(
            spec=spec,
            engine=engine,
            fixed_point=fixed_point,
            chi=chi,
            xi=time_scale(chi),
            chi_1=chi_1,
            reach=reach,
            jacobian=jacobian,
            xi_q=time_scale(moment_rate),
            profile=profile,
            profile_stderr=profile_stderr,
            state_profiles=state_profiles,
            state_profiles_stderr=state_profiles_stderr,
        )

    @staticmethod
    def missing(spec: Spec, reason: str, length: int) -> Analysis:
        """An answer that says only why there is none."""
        shape = spec.batch_shape
        blank = Quantity.of(torch.zeros(shape, dtype=torch.float64), reasons={reason: True})
        nowhere = torch.zeros(shape, dtype=torch.bool)
        no_curve = torch.full((*shape, length + 1), torch.nan, dtype=torch.float64)
        return Analysis.of(
            spec,
            "none",
            fixed_point=FixedPoint(blank, blank, blank, torch.full(shape, torch.inf, dtype=torch.float64), nowhere),
            chi=blank,
            chi_1=blank,
            reach=blank,
            jacobian=JacobianMoments(blank, blank, blank),
            moment_rate=blank,
            profile=no_curve,
            profile_stderr=no_curve,
            state_profiles={},
            state_profiles_stderr={},
        )

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

    def __str__(self) -> str:
        """A line for each quantity, as `Quantity` prints it.

        >>> from isornn.cells import Vanilla
        >>> from isornn.theory.reasons import IDENTITY
        >>> print(Analysis.missing(Spec(Vanilla()), IDENTITY, length=2))  # doctest: +ELLIPSIS
        vanilla, engine none
          fixed_point.mean           undefined: the theory of random matrices does not cover identity matrices; ...
          ...
        """
        lines = [f"  {name:<25}  {quantity}" for name, quantity in self._lines()]
        return "\n".join([self.heading, *lines])

    @property
    def heading(self) -> str:
        """The cell, the engine, and how well the fixed point is solved."""
        name = f"{self.spec.cell.name}, engine {self.engine}"
        if self.engine == "none":
            return name
        settled, residual = self.fixed_point.converged, float(self.fixed_point.residual.detach().max())
        if settled.dim():
            return (
                f"{name}; {int(settled.sum())} of {settled.numel()} fixed points settled (residual <= {residual:.2g})"
            )
        return f"{name}; fixed point {'settled' if bool(settled) else 'did not settle'} (residual {residual:.2g})"

    def _repr_html_(self) -> str:
        rows = ((name, str(quantity)) for name, quantity in self._lines())
        return tag("h4", self.heading) + table(("", "value"), rows)

    def _lines(self) -> Iterator[tuple[str, Quantity]]:
        yield from self.quantities()
        if self.tied is not None:
            yield from ((f"tied.{name}", quantity) for name, quantity in self.tied.numbers())

    def __repr__(self) -> str:
        return f"Analysis({self.spec.cell!r}, engine={self.engine!r}, reach={self.reach!r}, xi={self.xi!r})"

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
                "residual": _finite(float(self.fixed_point.residual.detach())),
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
