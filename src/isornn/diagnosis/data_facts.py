"""Sizes of the single features of data, and how heavy its tails are, with errors over sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from isornn.diagnosis.facts import InputFacts
from isornn.diagnosis.json_record import single
from isornn.init.layer_input import usual_distance
from isornn.nn.sequences import within
from isornn.theory import Quantity
from isornn.theory.quantity import jackknife

_GROUPS = 16  # of sequences, of which each is left out
_NUMBERS = 2**22  # beyond which fewer steps, evenly spaced, are looked at
_WIDEST = 512  # features whose covariance is computed


@torch.no_grad()
def with_data_facts(facts: InputFacts, x: Tensor, lengths: Tensor) -> InputFacts:
    """``facts`` of inputs (T, B, D) with lengths (B,), and what `InputFacts` has of data alone."""
    steps, batch, features = x.shape
    every = math.ceil(steps * batch * features / _NUMBERS)
    inside, x = within(lengths, steps)[::every], x[::every]
    groups = [
        x[:, chosen][inside[:, chosen]].double().cpu()
        for chosen in torch.arange(batch).tensor_split(min(batch, _GROUPS))
    ]
    sizes = _estimates([rows.square().sum(0) for rows in groups], [len(rows) for rows in groups]).clamp(min=0).sqrt()
    return replace(
        facts,
        feature_sizes=sizes[0],
        feature_size_errors=_error(sizes.log()),
        feature_largest=torch.stack([rows.abs().amax(0) for rows in groups if len(rows)]).amax(0),
        tails=_tails(facts, groups) if features <= _WIDEST else None,
    )


def _estimates(sums: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    """Means of all groups, then of all but each."""
    by_group, numbers = torch.stack(list(sums)), torch.tensor(counts, dtype=torch.float64)
    whole, count = by_group.sum(0), float(numbers.sum())
    if len(by_group) == 1:
        return (whole / count).unsqueeze(0)
    left = (count - numbers).reshape(-1, *[1] * whole.dim())
    return torch.cat([(whole / count).unsqueeze(0), (whole - by_group) / left.clamp(min=1)])


def _error(logs: Tensor) -> Tensor:
    """Of the first of ``logs``; NaN where it is unknown, as of one sequence, infinite where all is in one group."""
    if len(logs) <= 2:
        return torch.full_like(logs[0], torch.nan)
    return torch.where(logs.isfinite().all(0), jackknife(logs)[1], torch.inf)


def _tails(facts: InputFacts, groups: Sequence[Tensor]) -> Quantity | None:
    """`InputFacts.tails`; ``None`` where nothing varies."""
    varying = facts.feature_stds > 0
    if not bool(varying.any()):
        return None
    moved = [rows[:, varying] - facts.feature_means[varying] for rows in groups]
    counts, features = [len(rows) for rows in moved], facts.feature_stds.numel()
    usual = usual_distance(torch.cat(moved))
    fourth = _estimates([rows.square().sum(-1).square().sum() for rows in moved], counts)
    covariance = _estimates([rows.T @ rows for rows in moved], counts)
    trace, square = covariance.diagonal(dim1=1, dim2=2).sum(1), covariance.square().sum((1, 2))
    spread = (trace / features).sqrt()
    size = spread * (fourth / (trace.square() + 2 * square)).clamp(min=1).sqrt()
    logs = (size / spread.clamp(min=usual)).log()
    error, ratio = float(_error(logs.nan_to_num(0.0))), float(logs[0].exp())
    return single(ratio, ratio * error if math.isfinite(error) else math.inf)
