"""What a recurrent layer receives from a batch: means, variances and scales of its features."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.cells import Input, SpecError
from isornn.nn.sequences import within

_WIDE, _ROWS = 512, 4096  # features from which on so many steps are enough for the tails
_SMALLEST, _LARGEST = 1e-5, 1e6  # standard deviations of inputs, whose weights a spec can still hold
OFFSET, UNEVEN = 10.0, 100.0  # means over standard deviations; the largest of these over their median
HEAVY = 5.0  # the size, over the input's standard deviation and over the usual size of its values
_USUAL = 0.9  # of the values
_INDICATOR = 1e-3  # relative distance of a variance from mean (1 - mean)


@dataclass(frozen=True)
class LayerInput:
    """What one layer receives over all sequences, steps and features of a batch.

    Exact for that batch, but for tails and usual sizes of more than 512 features, which are of some 4096 evenly spaced
    steps.

    Args:
        means, deviations: mu (D,) and standard deviation (D,) of each feature.
        variance: mean over features of their variances: ``E |x - mu|^2 / D``.
        tails: ``E |x - mu|^4`` over that of Gaussian input with the same covariance, at least 1. Symbols of which one
            is most frequent have large tails.
        correlation_in_time: of a feature's deviations from its mean at one step and the next, mean over features
            weighted by their variances; 0 where nothing varies or there is one step.
        usual: distance from their feature's median that nine in ten of the values keep, of those that are not equal to
            it: of rare events, the events.
    """

    means: Tensor
    deviations: Tensor
    variance: float
    tails: float
    correlation_in_time: float
    usual: float

    def __str__(self) -> str:
        """One clause."""
        mean = f"input: mean {float(self.means.square().mean().sqrt()):.3g} (root mean square over features)"
        if not self.size:
            return f"{mean}, constant (input weights are those for standard deviation 1)"
        return (
            f"{mean}, standard deviation {self.variance**0.5:.3g} (input weights are divided by {self.size**0.5:.3g}), "
            f"correlation with its next step {self.correlation_in_time:.2f}"
        )

    @property
    def size(self) -> float:
        """``variance * tails``; input weights are divided by its square root."""
        return self.variance * self.tails

    def unnormalised(self, *, each: bool) -> str | None:
        """What features have that weights and biases make up for only at first, in words; ``None`` where nothing is.

        Args:
            each: as `offset`.
        """
        if self.size**0.5 > HEAVY * max(self.variance**0.5, self.usual):
            return (
                f"have rare values so large that input weights are for a size of {self.size**0.5:.3g}; nine in ten "
                f"values are within {self.usual:.2g} of the median and have little effect; clip them or take logarithms"
            )
        if (times := offset(self.means, self.deviations, each=each)) > OFFSET:
            most = f"{'up to ' * each}{times:.0f} times"
            wrong = f"means of {most} their standard deviations, which biases make up for only"
        elif (scales := uneven_scales(self.means, self.deviations)) is not None:
            wrong = "standard deviations of {:.2g} (median) to {:.2g}, so that most have no effect".format(*scales)
        else:
            return None
        return f"have {wrong} at first; standardise each feature"

    def law(self, where: str) -> Input:
        """Of the input less its mean; one that is constant has variance 0.

        Raises:
            SpecError: names ``where``, which receives it: a standard deviation whose weights no spec can hold.
        """
        spread = self.size**0.5
        if self.size and not _SMALLEST <= spread <= _LARGEST:
            where = f"{where}: standard deviation of its input (heavy tails counted)"
            raise SpecError(
                where, float(f"{spread:.3g}"), f"it must be from {_SMALLEST:g} to {_LARGEST:g}; scale the data"
            )
        return Input(self.size)

    @staticmethod
    def of(x: Tensor, lengths: Tensor, where: str = "a recurrent layer") -> LayerInput:
        """Of inputs (T, B, D) with lengths (B,), which ``where`` receives.

        Raises:
            ValueError: numbers that are not finite.

        >>> x = torch.tensor([1.0, 3.0, 1.0, 3.0]).reshape(4, 1, 1)
        >>> found = LayerInput.of(x, torch.tensor([4]))
        >>> found.means, found.variance, found.tails, found.correlation_in_time
        (tensor([2.], dtype=torch.float64), 1.0, 1.0, -1.0)
        """
        inside = within(lengths.to(x.device), len(x))
        dtype = x.dtype
        x = torch.where(inside.unsqueeze(-1), x.double(), 0.0)
        wrong = (~x.isfinite().all(-1)).nonzero()  # (step, sequence), the first steps first
        if len(wrong):
            step, sequence = wrong[0].tolist()
            raise ValueError(
                f"batch: {where} receives NaN or infinity from it, first at step {step} of sequence {sequence} (from 0)"
            )
        count, links = int(inside.sum()), int(inside[1:].sum())
        means = x.sum((0, 1)) / count
        moved = torch.where(inside.unsqueeze(-1), x - means, 0.0)
        moved = torch.where(are_constant(means, moved.square().sum((0, 1)) / count, dtype), 0.0, moved)
        variances = moved.square().sum((0, 1)) / count
        total, facts = float(variances.sum()), (means.cpu(), variances.sqrt().cpu())
        if total == 0:
            return LayerInput(*facts, 0.0, 1.0, 0.0, 0.0)
        after, rows = float((moved[1:] * moved[:-1]).sum()) / max(links, 1), moved[inside]
        if rows.shape[-1] > _WIDE:  # a covariance costs rows D^2
            rows = rows[:: -(-len(rows) // _ROWS)]
        return LayerInput(*facts, total / x.shape[-1], _tails(rows), after / total, usual_distance(rows))


def are_constant(means: Tensor, variances: Tensor, dtype: torch.dtype) -> Tensor:
    """Which features (D,) do not vary: constants, and constants that were computed in ``dtype``, but for rounding."""
    rounding = torch.finfo(dtype).eps / 2 if dtype.is_floating_point else 0.0
    return variances <= (rounding * means).square()


def offset(means: Tensor, deviations: Tensor, *, each: bool) -> float:
    """Means of features (D,) over their standard deviations, of features that vary; 0 where none does.

    Args:
        each: for data, of which every feature matters: the largest ratio of a feature, indicators left out as by
            `uneven_scales`. Else that of root mean squares over features: of many that are computed from few numbers
            some vary little by chance.

    >>> means, deviations = torch.tensor([0.0, 2020.0]), torch.tensor([1000.0, 0.5])
    >>> offset(means, deviations, each=True), round(offset(means, deviations, each=False), 2)
    (4040.0, 2.02)
    """
    varying = deviations > 0
    if each:
        varying = varying & ~indicators(means, deviations)
    means, deviations = means[varying].double(), deviations[varying].double()
    if not len(means):
        return 0.0
    return float((means / deviations).abs().max() if each else means.norm() / deviations.norm())


def uneven_scales(means: Tensor, deviations: Tensor) -> tuple[float, float] | None:
    """Of features (D,) the median and the largest standard deviation, where they are a factor of `UNEVEN` apart.

    Constants and indicators, which are 0 or 1 and mostly rare, are left out.

    >>> uneven_scales(torch.zeros(3), torch.tensor([1.0, 1.0, 500.0])), uneven_scales(torch.zeros(2), torch.ones(2))
    ((1.0, 500.0), None)
    """
    scales = deviations[(deviations > 0) & ~indicators(means, deviations)]
    if len(scales) < 2:
        return None
    middle, largest = float(scales.median()), float(scales.max())
    return (middle, largest) if largest > UNEVEN * middle else None


def indicators(means: Tensor, deviations: Tensor) -> Tensor:
    """Which features (D,) are 0 or 1: their variance is ``mean (1 - mean)``."""
    return (deviations.square() - means * (1 - means)).abs() <= _INDICATOR * deviations.square()


def _tails(moved: Tensor) -> float:
    """`LayerInput.tails` of deviations (rows, D): Gaussian ones have ``E |x|^4 = tr(C)^2 + 2 tr(C^2)``."""
    # C and the products of rows have the same trace, and so have their squares: the smaller one is computed.
    gram = (moved.T @ moved if moved.shape[-1] < len(moved) else moved @ moved.T) / len(moved)
    gaussian = gram.trace().square() + 2 * gram.square().sum()
    return max(1.0, float(moved.square().sum(-1).square().mean() / gaussian))


def usual_distance(moved: Tensor) -> float:
    """`LayerInput.usual` of deviations (rows, D)."""
    moved = moved.cpu()  # on CUDA medians are refused where algorithms are to be deterministic
    distances = (moved - moved.median(0).values).abs()
    moving = distances[distances > 0]
    return float(moving.kthvalue(math.ceil(_USUAL * len(moving))).values) if len(moving) else 0.0
