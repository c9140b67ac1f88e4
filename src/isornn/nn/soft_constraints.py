"""Penalties on the deviation of a recurrent matrix from orthogonality, to add to the loss with a chosen strength.

Each is a sum over the N x N blocks of the matrix, which are the gates', and takes the module and the parameter's name.
For a factorised matrix (`isornn.nn.spectral`) it is computed from the singular values, at no cost.

Source: Vorontsov et al. 2017, eq. 7 and sections 3.1 to 3.3.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isornn.nn.spectral import blocks, is_spectral, singular_values


def orthogonality(module: nn.Module, name: str) -> Tensor:
    """``sum_k ||W_k^T W_k - I||_F^2 = sum (s^2 - 1)^2``.

    Raises:
        ValueError: no such matrix; it is no stack of square blocks.

    Source: Vorontsov et al. 2017, eq. 7.

    >>> rnn = nn.RNN(3, 2)
    >>> rnn.weight_hh_l0.data = torch.tensor([[0.0, 2.0], [-1.0, 0.0]])
    >>> orthogonality(rnn, "weight_hh_l0").item()
    9.0
    """
    if is_spectral(module, name):
        return (singular_values(module, name).square() - 1).square().sum()
    weight = blocks(module, name)
    unit = torch.eye(weight.shape[-1], dtype=weight.dtype, device=weight.device)
    return (weight.mT @ weight - unit).square().sum()


def mean_one(module: nn.Module, name: str) -> Tensor:
    """``sum (s - 1)^2``: times 1/(2 v), the negative logarithm of a Gaussian prior on s with mean 1 and variance v.

    A matrix that is not factorised is decomposed, which costs about as much as 20 products.

    Raises:
        ValueError: no such matrix; it is no stack of square blocks.

    Source: Vorontsov et al. 2017, section 3.1.

    >>> rnn = nn.RNN(3, 2)
    >>> rnn.weight_hh_l0.data = torch.tensor([[0.0, 2.0], [-1.0, 0.0]])
    >>> mean_one(rnn, "weight_hh_l0").item()
    1.0
    """
    return (singular_values(module, name) - 1).square().sum()


def decay(module: nn.Module, name: str) -> Tensor:
    """``sum_k ||W_k||_F^2 = sum s^2``: weight decay of W itself; for its factors it acts on the spectrum alone.

    An optimiser's own ``weight_decay`` would act on p, and pull W towards orthogonality.

    Raises:
        ValueError: no such matrix; it is no stack of square blocks.

    Source: Vorontsov et al. 2017, section 3.

    >>> rnn = nn.RNN(3, 2)
    >>> rnn.weight_hh_l0.data = torch.tensor([[0.0, 2.0], [-1.0, 0.0]])
    >>> decay(rnn, "weight_hh_l0").item()
    5.0
    """
    if is_spectral(module, name):
        return singular_values(module, name).square().sum()
    return blocks(module, name).square().sum()
