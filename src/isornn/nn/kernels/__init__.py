"""Hand-written recurrences, optional accelerators of a layer: see `contract.Kernel`."""

from __future__ import annotations

from isornn.cells import GRU, LSTM, TGRU, TLSTM, TRNN, Cell, ChoGRU, GersLSTM, Minimal, Peephole, Vanilla
from isornn.nn.kernels.contract import RecurrenceArgs, Gradients, Kernel
from isornn.nn.kernels.gru import ChoGRUKernel, GRUKernel
from isornn.nn.kernels.lstm import MemoryKernel, fastest_gers_steps
from isornn.nn.kernels.minimal import MinimalKernel
from isornn.nn.kernels.typed import TGRUKernel, TLSTMKernel, TRNNKernel
from isornn.nn.kernels.vanilla import TRANSITIONS, VanillaKernel

__all__ = ["RecurrenceArgs", "Gradients", "Kernel", "kernel_of"]

_KERNELS: dict[Cell, Kernel] = {
    LSTM(): MemoryKernel(memory=1),
    GersLSTM(): MemoryKernel(memory=1, steps=fastest_gers_steps),
    Peephole(): MemoryKernel(memory=0),
    GRU(): GRUKernel(),
    ChoGRU(): ChoGRUKernel(),
    Minimal(): MinimalKernel(),
    TRNN(): TRNNKernel(),
    TLSTM(): TLSTMKernel(),
    TGRU(): TGRUKernel(),
    **{Vanilla(name): VanillaKernel(transition) for name, transition in TRANSITIONS.items()},
}


def kernel_of(cell: Cell) -> Kernel | None:
    """The kernel for ``cell``, or ``None`` where the cell has to be stepped."""
    return _KERNELS.get(cell)
