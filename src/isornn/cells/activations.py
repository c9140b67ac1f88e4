"""Pointwise nonlinearities that cells offer as options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from isornn.cells.errors import OptionError

Pointwise = Callable[..., Any]


def hard_sigmoid(u: Any) -> Any:
    """``clip(0.2 u + 0.5, 0, 1)``: the gate of Gilboa et al. 2019's CIFAR-10 model (the formula is Keras's).

    >>> hard_sigmoid(torch.tensor([-3.0, 0.0, 1.0]))
    tensor([0.0000, 0.5000, 0.7000])
    """
    return torch.clamp(0.2 * u + 0.5, min=0.0, max=1.0)


def identity(u: Any) -> Any:
    """``u`` itself: the transition without a nonlinearity of the orthogonal-network experiments.

    >>> identity(3.0)
    3.0
    """
    return u


def leaky(u: Any, slope: Any) -> Any:
    """``max(u, 0) + slope min(u, 0)``: the PReLU where the slope is trained (He et al. 2015), else the leaky ReLU.

    >>> leaky(torch.tensor([-2.0, 3.0]), 0.5)
    tensor([-1.,  3.])
    """
    return torch.relu(u) - slope * torch.relu(-u)


def mod_relu(u: Any, offset: Any) -> Any:
    """``sign(u) max(|u| + offset, 0)``: the modReLU of a real number (Arjovsky et al. 2016); the identity at offset 0.

    >>> mod_relu(torch.tensor([-2.0, 0.5, 3.0]), -1.0)
    tensor([-1.,  0.,  2.])
    """
    return torch.sign(u) * torch.relu(torch.abs(u) + offset)


def oplu(u: Any) -> Any:
    """``(max(u_1, u_2), min(u_1, u_2), max(u_3, u_4), ...)`` over units, an even number (Chernodub & Nowicki 2016).

    Raises:
        OptionError: an odd number of units.

    >>> oplu(torch.tensor([1.0, 2.0, 4.0, 3.0]))
    tensor([2., 1., 4., 3.])
    """
    if u.shape[-1] % 2:
        raise OptionError(f"options.nonlinearity: oplu acts on pairs of units, and {u.shape[-1]} are not even")
    first, second = u[..., ::2], u[..., 1::2]
    return torch.stack([torch.maximum(first, second), torch.minimum(first, second)], -1).flatten(-2)


GATE_FUNCTIONS: dict[str, Pointwise] = {"sigmoid": torch.sigmoid, "hard_sigmoid": hard_sigmoid}
TRANSITIONS: dict[str, Pointwise] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "identity": identity,
}

# Transitions with a parameter of their own in addition to the pre-activation.
SHAPED_TRANSITIONS: dict[str, Pointwise] = {"prelu": leaky, "leaky_relu": leaky, "modrelu": mod_relu}

# Transitions of several units together.
PAIRED_TRANSITIONS: dict[str, Callable[[Any], Any]] = {"oplu": oplu}


def choose(table: dict[str, Pointwise], option: str, value: object) -> Pointwise:
    """The function called ``value`` in ``table``.

    Raises:
        OptionError: naming the option, the value and what is allowed.
    """
    if not isinstance(value, str) or value not in table:
        raise OptionError(f"options.{option}: {value!r} is not one of {', '.join(table)}")
    return table[value]
