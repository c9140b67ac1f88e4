"""Recurrences in machine code, printed from a cell's own definition: see `contract.Kernel`."""

from __future__ import annotations

import functools

from isornn.cells import Cell
from isornn.nn.kernels.contract import Gradients, Kernel, RecurrenceArgs
from isornn.nn.kernels.generated import GeneratedKernel
from isornn.nn.kernels.program import program_of
from isornn.nn.kernels.tape import NotPrintable

__all__ = ["Gradients", "Kernel", "RecurrenceArgs", "kernel_of", "why_no_kernel"]


_KERNELS: dict[Cell, Kernel | None] = {}  # a plain table, which torch.compile can look into


def kernel_of(cell: Cell) -> Kernel | None:
    """The kernel of ``cell``, or ``None`` where the cell has to be stepped.

    >>> from isornn.cells import LSTM, Vanilla
    >>> kernel_of(LSTM()) is None, kernel_of(Vanilla("oplu")) is None
    (False, True)
    """
    if cell not in _KERNELS:
        _KERNELS[cell] = GeneratedKernel(cell) if why_no_kernel(cell) is None else None
    return _KERNELS[cell]


@functools.cache
def why_no_kernel(cell: Cell) -> str | None:
    """Why no kernel can be printed of ``cell``; ``None`` where one can.

    >>> from isornn.cells import LSTM, Vanilla
    >>> why_no_kernel(LSTM())
    >>> why_no_kernel(Vanilla("oplu"))
    'vanilla is not pointwise'
    """
    try:
        program_of(cell)
    except NotPrintable as reason:
        return str(reason)
    return None
