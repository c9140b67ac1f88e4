"""A number of the theory with its error, or the reason why there is none; errors over replicates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isornn.formatting import rounded, with_error_of
from isornn.theory.reasons import MARGINAL, NOT_A_NUMBER, UNENDING

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
        return float(self.value.detach()) if bool(self.defined) else None

    def error(self) -> float | None:
        """The standard error of a single spec."""
        self._check_single()
        return float(self.stderr.detach()) if bool(self.defined) else None

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
            known = self.value.detach()[self.defined]
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
    """``xi = -1/ln |chi|``; infinite where ``|chi| >= 1``, and where it is 1 to rounding (`ROUNDING`)."""
    size = chi.value.abs()
    marginal = (size - 1).abs() <= ROUNDING
    unending = marginal | (size >= 1)
    inside = torch.where(unending, 0.5, size)
    rate = -inside.log()
    value = torch.where(unending, torch.inf, 1 / rate)
    error = chi.stderr / torch.where(size > 0, size, 1.0) * value**2
    reasons: dict[str, Tensor | bool] = dict(chi.reasons)
    return Quantity.of(value, error, reasons | {MARGINAL: marginal, UNENDING: unending})


def over_replicates(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and its standard error over replicates, the first axis; of a single one, which is exact, the error is 0.

    >>> over_replicates(torch.tensor([1.0, 3.0]))
    (tensor(2.), tensor(1.))
    """
    value, count = values.mean(0), len(values)
    return value, values.std(0) / count**0.5 if count > 1 else torch.zeros_like(value)


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
