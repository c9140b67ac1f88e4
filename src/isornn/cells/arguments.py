"""Arguments that many functions take: whole numbers and generators, checked by name."""

from __future__ import annotations

import operator
from typing import Any

import torch

from isornn.cells.errors import SpecError

SEED = 0


def whole_number(where: str, value: Any, least: int = 1, what: str = "whole number") -> int:
    """``value`` as an int: an integer of Python, numpy or torch, no bool, of at least ``least``.

    Raises:
        SpecError: names the argument ``where`` and what it is.

    >>> import numpy as np
    >>> whole_number("length", np.int64(5))
    5
    >>> whole_number("length", 2.5, what="number of steps")
    Traceback (most recent call last):
    ...
    isornn.cells.errors.SpecError: length: 2.5 is not allowed; it is a number of steps, at least 1
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise SpecError(where, value, f"it is a {what}, at least {least}")
    return number


def is_number(value: object) -> bool:
    """A number of Python, and no bool; NaN and infinity are for the caller to refuse.

    >>> is_number(1), is_number(0.5), is_number(True), is_number("1")
    (True, True, False, False)
    """
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_generator(generator: object) -> None:
    """Refuse what is neither a torch.Generator nor None.

    Raises:
        SpecError: names it.
    """
    if not isinstance(generator, torch.Generator | None):
        raise SpecError("generator", generator, "it is a torch.Generator or None")


def seeded(generator: torch.Generator | None) -> torch.Generator:
    """The generator, or one seeded with 0 in its place, so that equal calls give equal answers.

    Raises:
        SpecError: it is neither a torch.Generator nor None.

    >>> seeded(None).initial_seed()
    0
    """
    check_generator(generator)
    return torch.Generator().manual_seed(SEED) if generator is None else generator
