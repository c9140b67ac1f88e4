"""Sizes of the single features of data, with errors over sequences, and which are far smaller than the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.init.layer_input import UNEVEN, LayerInput, indicators
from isornn.nn.sequences import within
from isornn.theory.quantity import jackknife

ERRORS = 2
"""By so many errors a feature is smaller than the bar."""
SMALLEST = 0.1
"""Of the median standard deviation: a feature with a value above it does not count, as rare values may be as large as
other features'."""
_GROUPS = 16  # of sequences, of which each is left out
_NUMBERS = 2**22  # beyond which fewer steps, evenly spaced, are looked at
_SHOWN = 5  # features


@dataclass(frozen=True)
class FeatureSizes:
    """Of each feature of data, (D,).

    Args:
        sizes: root mean square.
        errors: of its logarithm, over sequences; NaN where it is unknown, infinite where all is in one group of them.
        largest: absolute value.

    >>> x = torch.ones(5, 4, 2) * torch.tensor([1.0, 3.0])
    >>> FeatureSizes.of(by_group(x, torch.full((4,), 5))).sizes
    tensor([1., 3.], dtype=torch.float64)
    """

    sizes: Tensor
    errors: Tensor
    largest: Tensor

    @staticmethod
    def of(groups: Sequence[Tensor]) -> FeatureSizes:
        """Of the rows of data, `by_group`."""
        sizes = estimates([rows.square().sum(0) for rows in groups], list(map(len, groups))).clamp(min=0).sqrt()
        largest = torch.stack([rows.abs().amax(0) for rows in groups if len(rows)]).amax(0)
        return FeatureSizes(sizes[0], error_of(sizes.log()), largest)

    def far_smaller(self, means: Tensor, deviations: Tensor) -> tuple[Tensor, float]:
        """Numbers of the features whose size is below a hundredth of the median feature's standard deviation, by two
        errors, and whose largest value is below a tenth of it; and that median.

        Constants and indicators are left out, as are features with a level of their own (a year, say), which may vary
        little in one batch.
        """
        varying = (deviations > 0) & ~indicators(means, deviations)
        if int(varying.sum()) < 2:
            return torch.empty(0, dtype=torch.int64), 0.0
        middle = float(deviations[varying].median())
        bound = self.sizes * (ERRORS * self.errors.nan_to_num(0.0)).exp()
        small = varying & (bound < middle / UNEVEN) & (self.largest < SMALLEST * middle)
        return small.nonzero().flatten(), middle


@torch.no_grad()
def by_group(x: Tensor, lengths: Tensor) -> list[Tensor]:
    """Rows (., D) of data (T, B, D) with lengths (B,), by groups of its sequences."""
    steps, batch, features = x.shape
    every = math.ceil(steps * batch * features / _NUMBERS)
    inside, x = within(lengths.to(x.device), steps)[::every], x[::every]
    return [
        x[:, chosen][inside[:, chosen]].double().cpu()
        for chosen in torch.arange(batch).tensor_split(min(batch, _GROUPS))
    ]


def estimates(sums: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    """Means of all groups, then of all but each.

    Args:
        sums: of each group, over its rows.
        counts: of each group's rows.

    >>> estimates([torch.tensor([6.0]), torch.tensor([2.0])], [3, 1]).flatten()
    tensor([2., 2., 2.], dtype=torch.float64)
    >>> estimates([torch.tensor([6.0]), torch.tensor([0.0])], [1, 2]).flatten()
    tensor([2., 0., 6.], dtype=torch.float64)
    """
    of_group, numbers = torch.stack(list(sums)), torch.tensor(counts, dtype=torch.float64)
    whole, count = of_group.sum(0), float(numbers.sum())
    if len(of_group) == 1:
        return (whole / count).unsqueeze(0)
    left = (count - numbers).reshape(-1, *[1] * whole.dim())
    return torch.cat([(whole / count).unsqueeze(0), (whole - of_group) / left.clamp(min=1)])


def error_of(logs: Tensor) -> Tensor:
    """Of the first of ``logs``; NaN where it is unknown, as of one sequence, infinite where all is in one group."""
    if len(logs) <= 2:
        return torch.full_like(logs[0], torch.nan)
    return torch.where(logs.isfinite().all(0), jackknife(logs)[1], torch.inf)


def numbered(features: Tensor) -> str:
    """The first of them, as messages list them.

    >>> numbered(torch.arange(7))
    '0, 1, 2, 3, 4, ...'
    """
    return ", ".join(map(str, features[:_SHOWN].tolist())) + (", ..." if len(features) > _SHOWN else "")


def wrong_with_data(seen: LayerInput, x: Tensor, lengths: Tensor) -> str | None:
    """As `LayerInput.unnormalised` of data (T, B, D) with lengths (B,), and which features are too small to have an
    effect; ``None`` where nothing is wrong.

    >>> x, lengths = torch.randn(20, 8, 3), torch.full((8,), 20)
    >>> wrong_with_data(LayerInput.of(x, lengths), x, lengths) is None
    True
    >>> x[..., 1] /= 1000
    >>> print(wrong_with_data(LayerInput.of(x, lengths), x, lengths))
    have standard deviation ... in the median, and 1 of them (1, counted from 0) are below a hundredth of that, ...
    """
    wrong = seen.unnormalised(each=True)
    if wrong is not None:
        return wrong
    small, middle = FeatureSizes.of(by_group(x, lengths)).far_smaller(seen.means, seen.deviations)
    if not len(small):
        return None
    return (
        f"have standard deviation {middle:.2g} in the median, and {len(small)} of them ({numbered(small)}, counted "
        "from 0) are below a hundredth of that, so that they have little effect at first; standardise each feature"
    )
