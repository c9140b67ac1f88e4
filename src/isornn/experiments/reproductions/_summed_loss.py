"""Rates and clipping of Zaremba et al. 2015, whose loss is a sum over the unrolled steps.

Their published code adds the gradients of all steps, each a mean over the batch; this library's loss is a mean over
steps as well. SGD at rate r with the gradient of the sum clipped at norm c is SGD at rate r T with that of the mean
clipped at c / T.
"""

from __future__ import annotations

RATE, CLIP = 1.0, 5.0


def of_mean(unroll: int, rate: float = RATE, clip: float = CLIP) -> tuple[float, float]:
    """Rate and clip of the mean over ``unroll`` steps that make the same update.

    >>> of_mean(20)
    (20.0, 0.25)
    """
    return rate * unroll, clip / unroll
