"""What a layer heard: scale, correlation, padding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.cells import Input
from isornn.diagnosis.numbers import listed, quantity_json, single
from isornn.theory import Quantity

ONE_SEQUENCE = "the batch has one sequence at every step, so nothing to correlate it with"
SILENT = "the input is 0 throughout"
ONE_STEP = "the sequences have one step"


@dataclass(frozen=True)
class InputFacts:
    """A layer's inputs over all sequences, steps and features; exact for this batch.

    Args:
        mean, std: of all values.
        second_moment: ``R = E[x^2]``, the theory's input variance. The theory's inputs have mean 0; a mean
            counts as a part that all steps and sequences share.
        largest: largest absolute value.
        correlation: ``E[x_a x_b] / E[x^2]`` over pairs of different sequences at the same step: the theory's input
            correlation, a shared mean counted in.
        correlation_in_time: ``E[x_t x_(t+1)] / E[x^2]`` within sequences; the theory takes it to be 0.
        feature_means, feature_stds: (D,).
        padding: share of steps that only repeat a sequence's last one, exactly: what padding with a constant looks
            like. 0 where sequences have lengths of their own.
        leading_padding: the same of steps that are followed by their equals from the first step on.
    """

    mean: float
    std: float
    second_moment: float
    largest: float
    correlation: Quantity
    correlation_in_time: Quantity
    feature_means: Tensor
    feature_stds: Tensor
    padding: float
    leading_padding: float

    @property
    def law(self) -> Input:
        """The input law that the theory is asked with; correlation 1 where the batch cannot tell."""
        known = self.correlation.number()
        # Rounding can carry a correlation of 1 beyond it.
        return Input(self.second_moment, 1.0 if known is None else max(-1.0, min(1.0, known)))

    def to_json(self) -> dict[str, object]:
        """One JSON object."""
        plain = ("mean", "std", "second_moment", "largest", "padding", "leading_padding")
        return {
            **{name: getattr(self, name) for name in plain},
            "correlation": quantity_json(self.correlation),
            "correlation_in_time": quantity_json(self.correlation_in_time),
            "feature_means": listed(self.feature_means),
            "feature_stds": listed(self.feature_stds),
        }


@torch.no_grad()
def input_facts(x: Tensor, lengths: Tensor) -> InputFacts:
    """Of inputs (T, B, D) with lengths (B,), a step at a time, so that no copy of all is made."""
    steps, _, features = x.shape
    total = square = x.new_zeros(features, dtype=torch.float64)
    shared = in_time = largest = 0.0
    pairs = links = rows = 0
    before: Tensor | None = None
    for t in range(steps):
        inside = t < lengths
        now = torch.where(inside.unsqueeze(-1), x[t].double(), 0.0)
        count = int(inside.sum())
        rows += count
        own = now.square().sum(0)
        total, square = total + now.sum(0), square + own
        largest = max(largest, float(now.abs().max()))
        shared += float((now.sum(0).square() - own).sum())
        pairs += count * (count - 1)
        if before is not None:
            in_time += float((now * before).sum())
            links += count
        before = now
    means = total / rows
    second = square / rows
    moment = float(second.mean())
    silent = moment == 0
    scale = 1.0 if silent else moment * features
    trailing, leading = (0.0, 0.0) if bool((lengths < steps).any()) else _repeated(x)
    return InputFacts(
        mean=float(means.mean()),
        std=max(moment - float(means.mean()) ** 2, 0.0) ** 0.5,
        second_moment=moment,
        largest=largest,
        correlation=single(shared / max(pairs, 1) / scale, 0.0, {SILENT: silent, ONE_SEQUENCE: pairs == 0}),
        correlation_in_time=single(in_time / max(links, 1) / scale, 0.0, {SILENT: silent, ONE_STEP: links == 0}),
        feature_means=means.cpu(),
        feature_stds=(second - means.square()).clamp(min=0).sqrt().cpu(),
        padding=trailing,
        leading_padding=leading,
    )


def _repeated(x: Tensor) -> tuple[float, float]:
    """Share of steps equal to the one before, all the way to the end; and to the one after, all the way from it."""
    if len(x) < 2:
        return 0.0, 0.0
    same = (x[1:] == x[:-1]).all(-1)
    trailing = same.flip(0).long().cumprod(0).sum()
    leading = same.long().cumprod(0).sum()
    steps = x.shape[0] * x.shape[1]
    return float(trailing) / steps, float(leading) / steps
