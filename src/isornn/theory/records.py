"""What the theory answers: numbers with their uncertainty, reasons where there is no number, and records of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.formatting import rounded, with_error_of
from isornn.notebook import table, tag

NOT_CONVERGED = "no fixed point was found: the state grows without bound or did not settle (see the residual)"
TOO_SOON = "units remember for longer than they could be followed, so that the state may not have settled"
FROZEN = "the remember gate is saturated: the state stays what it was, so no fixed point of its own exists"
OSCILLATES = (
    "the moments lead away from their fixed point step by step, as where they alternate between two values, and do not "
    "settle"
)
KEEPS_ANY = (
    "marginal: one step leaves every value unchanged (the map of moments has slope 1 all along), so networks keep the "
    "one that they start with"
)
NO_SPREAD = "all units have the same value (Q = mu^2), so the correlation is 0/0"
TOO_LARGE = "it is beyond what double precision holds"
NOT_A_NUMBER = "it could not be computed in double precision (not a number)"
MARGINAL = "infinite: marginal, the factor per step is 1 to rounding, so changes neither fade nor grow exponentially"
UNENDING = "infinite: |chi| >= 1, changes of the state do not fade"
BEYOND = "the response does not fall to 1/e within the steps followed, and is not known to be an exponential"
NOT_EXPONENTIAL = (
    "biases are drawn once, so units have different time scales and the decay is not exponential: see reach and profile"
)
DIED_OUT = (
    "the response died out before its decay settled at one rate, as where units stick for times of their own: see "
    "reach and profile"
)
CORRELATED_RESPONSE = (
    "inputs are correlated over time, and the decay did not become exponential within the steps that were followed: "
    "see reach and profile"
)
JUMPS = "the update jumps in {}, so small displacements do not stay small, and derivatives say nothing of them"
IDENTITY = "the theory of random matrices does not cover identity matrices; measure a network instead"
NOT_POINTWISE = (
    "the update acts on several units together, and the theory is of units that are alike; simulate it instead"
)
TWO_AXES = "its {} takes values (batch, N) only, and the theory's have more axes; write it for (..., N)"
REDRAWN_BESIDE_SPREAD = 'units keep parameters of their own, so their biases must be drawn once too: biases = "fixed"'
UNSEEN = (
    "no displacement of a state changes what is read, to double precision, as where tanh(c) is saturated: see "
    "state_profiles"
)
NEGATIVE = "the response is negative one step later, and does not fall to 1/e: see profile"
NEGATIVE_RATE = "the response is negative one step later, and sampled units do not tell the rate of such a one"
NOTHING_LEFT = "nothing is left of a displacement: the state does not carry over"
NEVER_FORGETS = "infinite: the unit keeps all that it has"
NOT_SETTLED = "the state has not settled within the steps that were followed (see the residual)"
SIGN_UNSURE = "what two sequences' displacements have in common is too little to tell its sign from the sampled units"


class TheoryMissing(ValueError):
    """No theory is known for what was asked; the message says which assumption fails.

    >>> from isornn.cells import Gate, Spec, Vanilla
    >>> from isornn.theory import lstm_approximation
    >>> lstm_approximation(Spec(Vanilla(), {"h": Gate(1.0, 1.0)}))
    Traceback (most recent call last):
    ...
    isornn.theory.records.TheoryMissing: the papers' approximation is for an LSTM ...
    """


ROUNDING = 1e-12  # a factor per step this near 1 counts as 1


@dataclass(frozen=True)
class Quantity:
    """A number for every spec of a batch.

    Args:
        value: batch-shaped float64; infinite where the answer is infinite, NaN where there is none. Both are
            marked in ``reasons``.
        stderr: standard error, same shape; 0 where the engine is deterministic (see the fixed point's residual).
        reasons: (reason, where it applies) for values that are infinite or do not exist.

    >>> print(Quantity.of(torch.tensor(35.3754), torch.tensor(0.14)))
    35.38 ± 0.14
    >>> print(Quantity.of(torch.tensor(torch.inf), reasons={UNENDING: True}))
    infinite: |chi| >= 1, changes of the state do not fade
    >>> Quantity.of(torch.tensor([1.5, 2.5, torch.inf]), reasons={UNENDING: torch.tensor([False, False, True])})
    Quantity(shape (3,), 1.5 to 2.5, 1 without a value)
    """

    value: Tensor
    stderr: Tensor
    reasons: tuple[tuple[str, Tensor], ...] = ()

    @staticmethod
    def of(value: Tensor, stderr: Tensor | None = None, reasons: Mapping[str, Tensor | bool] | None = None) -> Quantity:
        """Mark ``value`` as missing wherever a reason applies; the first reason that applies counts."""
        stderr = torch.zeros_like(value) if stderr is None else stderr
        free, kept = torch.ones_like(value, dtype=torch.bool), []
        for reason, where in [*(reasons or {}).items(), (NOT_A_NUMBER, value.isnan())]:
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
        """The value of a single spec; ``None`` where there is none or it is infinite.

        Raises:
            ValueError: a batch, also of `error` and `reason`.
        """
        self._check_single()
        return float(self.value) if bool(self.defined) else None

    def error(self) -> float | None:
        """The standard error of a single spec."""
        self._check_single()
        return float(self.stderr) if bool(self.defined) else None

    def listed(self) -> Any:
        """For JSON: a number, or lists of them shaped as the values, in which what does not exist is null."""
        return _nulled(self.value.tolist(), self.defined.tolist())

    def listed_errors(self) -> Any:
        """The standard errors in the same form."""
        return _nulled(self.stderr.tolist(), self.defined.tolist())

    def reason(self) -> str | None:
        """Why a single spec's value is missing or infinite."""
        self._check_single()
        return next((reason for reason, where in self.reasons if bool(where)), None)

    def _check_single(self) -> None:
        if self.value.numel() != 1:
            shape = tuple(self.value.shape)
            raise ValueError(f"a batch of specs, shape {shape}, has no single number: read value, stderr, reasons")

    def __str__(self) -> str:
        """The value and its standard error, or the reason why there is none; of a batch its shape and range."""
        if self.value.dim():
            known = self.value[self.defined]
            spread = [f"{rounded(float(known.min()))} to {rounded(float(known.max()))}"] if len(known) else []
            lacking = self.value.numel() - len(known)
            return ", ".join(
                [f"shape {tuple(self.value.shape)}", *spread, *([f"{lacking} without a value"] if lacking else [])]
            )
        value = self.number()
        if value is None:
            reason = self.reason() or ""
            return reason if reason.startswith("infinite") else f"undefined: {reason}"
        return with_error_of(value, self.error())

    def __repr__(self) -> str:
        return f"Quantity({self})"


def _nulled(values: Any, defined: Any) -> Any:
    if isinstance(values, list):
        return [_nulled(value, known) for value, known in zip(values, defined, strict=True)]
    return values if defined else None


def time_scale(chi: Quantity) -> Quantity:
    """``xi = -1/ln |chi|``; infinite where |chi| >= 1, and where it is 1 to rounding (`ROUNDING`)."""
    size = chi.value.abs()
    marginal = (size - 1).abs() <= ROUNDING
    unending = marginal | (size >= 1)
    inside = torch.where(unending, 0.5, size)
    rate = -inside.log()
    value = torch.where(unending, torch.inf, 1 / rate)
    error = chi.stderr / torch.where(size > 0, size, 1.0) * value**2
    reasons: dict[str, Tensor | bool] = dict(chi.reasons)
    return Quantity.of(value, error, reasons | {MARGINAL: marginal, UNENDING: unending})


def pooled(values: Tensor) -> Tensor:
    """Means over replicates ``(G, R, ...)``: over all, then leaving each out, ``(R + 1, G, ...)``."""
    count = values.shape[1]
    mean = values.mean(1, keepdim=True)
    others = mean + (mean - values) / (count - 1)
    return torch.cat((mean, others), 1).movedim(1, 0)


def jackknife(estimates: Tensor) -> tuple[Tensor, Tensor]:
    """Value and standard error of what was computed from each row of ``pooled``.

    ``se^2 = (R-1)/R sum_r (theta_(-r) - mean)^2``. Source: Efron 1982.
    """
    value, others = estimates[0], estimates[1:]
    count = len(others)
    gap = others - others.mean(0)
    return value, (gap.square().sum(0) * (count - 1) / count).sqrt()


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
        state_profiles: Mapping[str, Tensor],
        profile_stderr: Tensor | None = None,
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
            profile_stderr=torch.zeros_like(profile) if profile_stderr is None else profile_stderr,
            state_profiles=state_profiles,
        )

    @staticmethod
    def missing(spec: Spec, reason: str, length: int) -> Analysis:
        """An answer that says only why there is none."""
        shape = spec.batch_shape
        blank = Quantity.of(torch.zeros(shape, dtype=torch.float64), reasons={reason: True})
        nowhere = torch.zeros(shape, dtype=torch.bool)
        return Analysis.of(
            spec,
            "none",
            fixed_point=FixedPoint(blank, blank, blank, torch.full(shape, torch.inf, dtype=torch.float64), nowhere),
            chi=blank,
            chi_1=blank,
            reach=blank,
            jacobian=JacobianMoments(blank, blank, blank),
            moment_rate=blank,
            profile=torch.full((*shape, length + 1), torch.nan, dtype=torch.float64),
            state_profiles={},
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
        settled, residual = self.fixed_point.converged, float(self.fixed_point.residual.max())
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
