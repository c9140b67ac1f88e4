"""Learning rates that stay right when a model is made wider."""

from __future__ import annotations

import math
from collections.abc import Iterator
from numbers import Real
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.utils import parametrize

from isornn.nn.spectral import factors, is_spectral
from isornn.nn.wrappers import unwrapped, within


def rates_by_width(model: nn.Module, base: nn.Module, rate: float) -> list[dict[str, Any]]:
    """Parameter groups for Adam, with which the best rate of a narrow model stays the best of a wide one.

    A matrix whose number of inputs grew from D to D' gets the rate ``rate * D / D'``: recurrent matrices, input
    matrices of upper layers, a read-out. All others (first input matrices, embeddings, biases) keep ``rate``. Adam
    changes every entry by about its rate in an update, so the change of a pre-activation, which is a sum over inputs,
    would else grow with their number. Optimisers whose steps are proportional to the gradient need another rule.

    Args:
        model: to be trained.
        base: the same model with the width for which ``rate`` is the best. Only its shapes are used.
        rate: Adam's, of ``base``.

    Raises:
        ValueError: the models differ in more than their width; a rate that is not above 0 and finite.

    Source: Yang & Hu 2022 (arXiv 2203.03466), table 3 (maximal update parametrisation), the rates; the initial weights
    are those of the start.

    >>> import torch
    >>> model, base = (nn.LSTM(3, width, num_layers=2) for width in (512, 64))
    >>> groups = rates_by_width(model, base, 0.01)
    >>> [(group["lr"], len(group["params"])) for group in groups]
    [(0.01, 5), (0.00125, 3)]
    >>> optimizer = torch.optim.Adam(groups)
    """
    given: object = rate
    if not (isinstance(given, Real) and 0 < rate < math.inf):
        raise ValueError(f"rate: {rate!r} is not allowed; it must be above 0 and finite")
    by_rate: dict[float, list[nn.Parameter]] = {}
    for parameter, grown in _growth(model, base):
        by_rate.setdefault(rate / grown, []).append(parameter)
    return [{"params": parameters, "lr": own} for own, parameters in by_rate.items()]


def _growth(model: nn.Module, base: nn.Module) -> Iterator[tuple[nn.Parameter, float]]:
    """Each trained parameter, and by how much its number of inputs is that of ``base``'s."""
    own, others = _named(model), _named(base)
    summed = _summed(model)
    if own.keys() != others.keys():
        differing = sorted(own.keys() ^ others.keys())[0]
        raise ValueError(f"base: only one of the two models has {differing}; they may differ in their width alone")
    for name, parameter in own.items():
        shape, narrow = parameter.shape, others[name].shape
        if len(shape) != len(narrow):
            raise ValueError(f"base: {name} has shape {tuple(narrow)} there and {tuple(shape)} in the model")
        if parameter.requires_grad:
            side = summed.get(parameter, 1)
            grown = 1.0 if side is None or len(shape) < 2 else shape[side] / narrow[side]
            yield parameter, grown


def _named(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters by their names within DataParallel, DistributedDataParallel and torch.compile."""
    return {within(name): parameter for name, parameter in unwrapped(model).named_parameters()}


def _summed(model: nn.Module) -> dict[Tensor, int | None]:
    """The dimension that counts a weight's inputs, where it is not 1: rows of a table are looked up, not summed."""
    sides: dict[Tensor, int | None] = {}
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            sides[module.weight] = None
        elif isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
            sides[module.weight] = 0
        for name in cast(nn.ModuleDict, module.parametrizations) if parametrize.is_parametrized(module) else ():
            if is_spectral(module, name):
                _, (_, p, _) = factors(module, name)
                sides[p] = None  # (K, N) singular values, of K blocks
    return sides
