"""Sizes of the single features of data, and how heavy its tails are, with errors over sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from isornn.diagnosis.facts import InputFacts
from isornn.diagnosis.json_record import single
from isornn.init.feature_sizes import FeatureSizes, by_group, error_of, estimates
from isornn.init.layer_input import usual_distance
from isornn.theory import Quantity

_WIDEST = 512  # features whose covariance is computed


@torch.no_grad()
def with_data_facts(facts: InputFacts, x: Tensor, lengths: Tensor) -> InputFacts:
    """``facts`` of inputs (T, B, D) with lengths (B,), and what `InputFacts` has of data alone."""
    groups = by_group(x, lengths)
    found = FeatureSizes.of(groups)
    return replace(
        facts,
        feature_sizes=found.sizes,
        feature_size_errors=found.errors,
        feature_largest=found.largest,
        tails=_tails(facts, groups) if x.shape[-1] <= _WIDEST else None,
    )


def _tails(facts: InputFacts, groups: Sequence[Tensor]) -> Quantity | None:
    """`InputFacts.tails`; ``None`` where nothing varies."""
    varying = facts.feature_stds > 0
    if not bool(varying.any()):
        return None
    moved = [rows[:, varying] - facts.feature_means[varying] for rows in groups]
    counts, features = [len(rows) for rows in moved], facts.feature_stds.numel()
    usual = usual_distance(torch.cat(moved))
    fourth = estimates([rows.square().sum(-1).square().sum() for rows in moved], counts)
    covariance = estimates([rows.T @ rows for rows in moved], counts)
    trace, square = covariance.diagonal(dim1=1, dim2=2).sum(1), covariance.square().sum((1, 2))
    spread = (trace / features).sqrt()
    size = spread * (fourth / (trace.square() + 2 * square)).clamp(min=1).sqrt()
    logs = (size / spread.clamp(min=usual)).log()
    error, ratio = float(error_of(logs.nan_to_num(0.0))), float(logs[0].exp())
    return single(ratio, ratio * error if math.isfinite(error) else math.inf)
