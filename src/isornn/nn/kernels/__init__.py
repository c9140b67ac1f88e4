"""Hand-written recurrences, optional accelerators of a layer: see `contract.Kernel`."""

from __future__ import annotations

from isornn.cells import GRU, LSTM, TGRU, TLSTM, TRNN, Cell, ChoGRU, GersLSTM, Peephole
from isornn.nn.kernels.contract import Gradients, Kernel
from isornn.nn.kernels.gru import ChoGRUKernel, GRUKernel
from isornn.nn.kernels.lstm import MemoryKernel, fastest_gers_steps
from isornn.nn.kernels.typed import TGRUKernel, TLSTMKernel, TRNNKernel

__all__ = ["Gradients", "Kernel", "kernel_of"]

_KERNELS: dict[type[Cell], Kernel] = {
    LSTM: MemoryKernel(memory=1),
    GersLSTM: MemoryKernel(memory=1, steps=fastest_gers_steps),
    Peephole: MemoryKernel(memory=0),
    GRU: GRUKernel(),
    ChoGRU: ChoGRUKernel(),
    TRNN: TRNNKernel(),
    TLSTM: TLSTMKernel(),
    TGRU: TGRUKernel(),
}


def kernel_of(cell: Cell) -> Kernel | None:
    """The kernel for ``cell``, or ``None`` where the cell has to be stepped."""
    return _KERNELS.get(type(cell)) if getattr(cell, "gate", "sigmoid") == "sigmoid" else None
