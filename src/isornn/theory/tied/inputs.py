"""Second moments of the input over time: white noise, or given sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class WhiteInput:
    """Independent over time; ``covariances`` ``(G, 1, S, S)`` between the copies, by step, the last for all later."""

    covariances: tuple[Tensor, ...]

    @staticmethod
    def of(variance: Tensor, correlations: Sequence[Tensor], copies: int) -> WhiteInput:
        """``E[x_a x_b] = variance * correlation`` by step, arguments ``(G, 1, 1)``, of one copy or of two."""

        def matrix(correlation: Tensor) -> Tensor:
            own = torch.ones_like(variance)
            rows = [own] if copies == 1 else [own, correlation * own, correlation * own, own]
            return torch.cat(rows, -1).reshape(len(variance), 1, copies, copies) * variance[..., None]

        return WhiteInput(tuple(matrix(correlation) for correlation in correlations))

    @property
    def copies(self) -> int:
        return self.covariances[0].shape[-1]

    @property
    def remembers(self) -> bool:
        """Whether the input at one step tells anything of another's."""
        return False

    def at(self, step: int, lag: int = 0) -> Rows:
        """Moments of ``x_(step - lag)``: with those of earlier steps ``(G, 1, S, d)``, and within the step."""
        now = self.covariances[min(max(step - lag, 0), len(self.covariances) - 1)]
        return now.new_zeros(len(now), 1, self.copies, step * self.copies), now


@dataclass(frozen=True)
class GivenInput:
    """Given second moments ``(T, S, T, S)`` of S sequences over T steps; the input before the first step is 0.

    Leading axes ``(G, R)`` are those of specs and replicates.
    """

    covariance: Tensor

    @staticmethod
    def of(over_time: Tensor, correlation: float, copies: int) -> GivenInput:
        """One sequence with second moments ``(T, T)``, or two, whose values go together by ``correlation``."""
        c = correlation
        between = torch.tensor([[1.0]] if copies == 1 else [[1.0, c], [c, 1.0]], dtype=torch.float64)
        return GivenInput(over_time[:, None, :, None] * between[None, :, None, :])

    @property
    def copies(self) -> int:
        return self.covariance.shape[-1]

    @property
    def remembers(self) -> bool:
        """Whether the input at one step tells anything of another's."""
        return True

    def at(self, step: int, lag: int = 0) -> Rows:
        """Moments of ``x_(step - lag)``: with those of earlier steps ``(1, 1, S, d)``, and within the step."""
        copies, place = self.copies, step - lag
        leading = self.covariance.shape[:-4] or (1, 1)
        before = self.covariance.new_zeros(*leading, copies, step * copies)
        if place < 0:
            return before, self.covariance.new_zeros(*leading, copies, copies)
        row = self.covariance[..., place, :, :, :]
        known = row[..., :place, :].reshape(*leading, copies, place * copies)
        padding = before[..., : lag * copies]
        return torch.cat((padding, known), -1), row[..., place, :].reshape(*leading, copies, copies)


InputMoments = WhiteInput | GivenInput
