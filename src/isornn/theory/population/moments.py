"""Moments of the state that is read, from means over the units of each replicate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isornn.theory.population.replicates import jackknife, pooled


@dataclass(frozen=True)
class Moments:
    """Moments of the state that is read, each shaped like the batch (times steps, for a trajectory).

    ``second_moment`` is Q = E[h^2], ``pair_moment`` E[h_a h_b], ``correlation`` (E[h_a h_b] - mu^2) / (Q - mu^2);
    where Q = mu^2 within rounding ``correlation_defined`` is false and ``correlation`` 1. ``stderr`` has the
    standard errors by field name.
    """

    mean: Tensor
    second_moment: Tensor
    pair_moment: Tensor
    correlation: Tensor
    correlation_defined: Tensor
    stderr: dict[str, Tensor]

    @staticmethod
    def of(means: Tensor, shape: Sequence[int]) -> Moments:
        """From means of h, h^2 and h_a h_b, ``(G, R, 3)`` (or ``(G, R, T, 3)``)."""
        rows = pooled(means)
        mu, q, pair = rows.unbind(-1)
        spread = q - mu.square()
        defined = spread > 1e-12 * q.clamp(min=1e-280)
        correlation = torch.where(defined, (pair - mu.square()) / torch.where(defined, spread, 1.0), 1.0)
        fields = {"mean": mu, "second_moment": q, "pair_moment": pair, "correlation": correlation}
        shape = (*shape, *mu.shape[2:])
        both = {name: tuple(v.reshape(shape) for v in jackknife(value)) for name, value in fields.items()}
        values = {name: value for name, (value, _) in both.items()}
        return Moments(
            **values, correlation_defined=defined[0].reshape(shape), stderr={name: se for name, (_, se) in both.items()}
        )

    def alone(self) -> Moments:
        """Of either copy by itself: the pair's are its own."""
        errors = {
            **self.stderr,
            "pair_moment": self.stderr["second_moment"],
            "correlation": torch.zeros_like(self.mean),
        }
        one = torch.ones_like(self.correlation)
        return replace(self, pair_moment=self.second_moment, correlation=one, stderr=errors)

    @staticmethod
    def chosen(mask: Tensor, yes: Moments, no: Moments) -> Moments:
        """Fields of ``yes`` where ``mask``, else of ``no``."""
        names = ("mean", "second_moment", "pair_moment", "correlation", "correlation_defined")
        values = {name: torch.where(mask, getattr(yes, name), getattr(no, name)) for name in names}
        errors = {name: torch.where(mask, yes.stderr[name], no.stderr[name]) for name in yes.stderr}
        return Moments(**values, stderr=errors)
