"""A number for every spec of a batch, with its uncertainty, and with a reason where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isornn.theory.reasons import MARGINAL, UNENDING

ROUNDING = 1e-12  # a factor per step this near 1 is not told from 1


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

    def listed(self) -> Any:
        """For JSON: a number, or lists of them shaped as the values, in which what does not exist is null."""
        return _nulled(self.value.tolist(), self.defined.tolist())

    def listed_errors(self) -> Any:
        """The standard errors in the same form."""
        return _nulled(self.stderr.tolist(), self.defined.tolist())

    def reason(self) -> str | None:
        """Why a single spec's value is missing or infinite."""
        return next((reason for reason, where in self.reasons if bool(where)), None)


def _nulled(values: Any, defined: Any) -> Any:
    if isinstance(values, list):
        return [_nulled(value, known) for value, known in zip(values, defined, strict=True)]
    return values if defined else None


def time_scale(chi: Quantity) -> Quantity:
    """``xi = -1/ln |chi|``; infinite where chi >= 1, and where it is 1 to rounding (`ROUNDING`)."""
    size = chi.value.abs()
    marginal = (size - 1).abs() <= ROUNDING
    unending = marginal | (size >= 1)
    inside = torch.where(unending, 0.5, size)
    rate = -torch.where(inside > 0, inside, torch.e**-torch.inf).log()
    value = torch.where(unending, torch.inf, 1 / rate)
    error = chi.stderr / torch.where(size > 0, size, 1.0) * value**2
    reasons: dict[str, Tensor | bool] = dict(chi.reasons)
    return Quantity.of(value, error, reasons | {MARGINAL: marginal, UNENDING: unending})
