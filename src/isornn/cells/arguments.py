"""Arguments that many functions take: whole numbers, numbers by step, generators and functions, checked by
name."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor

from isornn.cells.errors import SpecError

SEED = 0


def whole_number(where: str, value: Any, least: int = 1, what: str = "whole number", *, most: int | None = None) -> int:
    """``value`` as an int: an integer of Python, numpy or torch, no bool, of at least ``least`` and at most ``most``.

    Raises:
        SpecError: names the argument ``where`` and what it is.

    >>> import numpy as np
    >>> whole_number("length", np.int64(5))
    5
    >>> whole_number("length", 2.5, what="number of steps")
    Traceback (most recent call last):
    ...
    isornn.cells.errors.SpecError: length: 2.5 is not allowed; it must be a number of steps, at least 1
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        allowed = f", at least {least}" if most is None else f" from {least} to {most}"
        raise SpecError(where, value, f"it must be a {what}{allowed}")
    return number


def is_number(value: object) -> TypeGuard[float]:
    """A number of Python, and no bool; NaN and infinity are for the caller to refuse.

    >>> is_number(1), is_number(0.5), is_number(True), is_number("1")
    (True, True, False, False)
    """
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_variance(where: str, value: object) -> None:
    """Refuse what is no finite number of at least 0.

    Raises:
        SpecError: names the argument ``where``.
    """
    if not is_number(value) or not 0 <= value < math.inf:
        raise SpecError(where, value, "it must be a finite number of at least 0")


def correlations_by_step(given: float | Sequence[float] | Tensor, steps: int) -> Tensor:
    """Input correlations of ``steps`` steps, float64, from one number or one for each step.

    Raises:
        SpecError: what was given is neither, or not from -1 to 1.

    >>> correlations_by_step(0.5, 3)
    tensor([0.5000, 0.5000, 0.5000], dtype=torch.float64)
    >>> correlations_by_step([0.5, 2.0], 2)
    Traceback (most recent call last):
    ...
    isornn.cells.errors.SpecError: input_correlation: [0.5, 2.0] is not allowed; it must be one number or 2, ...
    """
    allowed = f"it must be one number or {steps}, from -1 to 1"
    try:
        values = torch.as_tensor(given, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise SpecError("input_correlation", given, allowed) from None
    if values.shape not in ((), (1,), (steps,)) or not bool((values.abs() <= 1).all()):
        raise SpecError("input_correlation", given, allowed)
    return values.expand(steps)


def check_generator(generator: object) -> None:
    """Refuse what is neither a torch.Generator nor None.

    Raises:
        SpecError: names it.
    """
    if not isinstance(generator, torch.Generator | None):
        raise SpecError("generator", generator, "it must be a torch.Generator or None")


def check_function(where: str, value: object) -> None:
    """Refuse what is neither a function nor ``None``.

    Raises:
        SpecError: names the argument ``where``.
    """
    if value is not None and not callable(value):
        raise SpecError(where, value, "it must be a function or None")


def seeded(generator: torch.Generator | None) -> torch.Generator:
    """The generator, or one seeded with 0 in its place, so that equal calls give equal answers.

    Raises:
        SpecError: it is neither a torch.Generator nor None.

    >>> seeded(None).initial_seed()
    0
    """
    check_generator(generator)
    return torch.Generator().manual_seed(SEED) if generator is None else generator
