"""Warnings that point at the line that called this package, however deep inside they arise."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from pathlib import Path

import torch

_PASSED_OVER = (f"{Path(__file__).parent}{os.sep}", f"{Path(torch.__file__).parent}{os.sep}", contextlib.__file__)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the nearest line outside of this package, and of torch, which calls a module's own methods.

    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn("the loss is infinite")
    >>> str(caught[0].message)
    'the loss is infinite'
    """
    # Python 3.12 has skip_file_prefixes for this.
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PASSED_OVER):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
