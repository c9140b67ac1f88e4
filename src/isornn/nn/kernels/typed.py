"""The strongly typed cells: no matrix in the recurrence, so one pass over the drive and one back over it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from isornn.nn.kernels.contract import Gradients
from isornn.nn.kernels.doubling import scan_by_doubling

_Loop = Callable[..., None]


class _Typed(ABC):
    """A `Kernel` of a cell with gates f, z and perhaps o, and one state ``s = f s + content``.

    *Gates* are here sigma(u_f), u_z and tanh(u_o), written over the drive, (T, B, K, N). On a CPU the loops of
    ``diagonal`` run, elsewhere torch operations on whole sequences.
    """

    results = 1

    def forward(
        self,
        drive: Tensor,
        weight: Tensor | None,
        offset: Tensor | None,
        x: Tensor | None,
        initial: Sequence[Tensor],
        keep: bool,
    ) -> tuple[list[Tensor], list[Tensor]]:
        (start,) = initial
        gates = _by_gate(drive, start)
        gates[:, :, 0].sigmoid_()
        gates[:, :, 2:].tanh_()
        run = self._run if drive.device.type == "cpu" else self._run_by_doubling
        return run(gates, start), [drive] if keep else []

    def backward(
        self,
        weight: Tensor | None,
        offset: Tensor | None,
        x: Tensor | None,
        initial: Sequence[Tensor],
        results: Sequence[Tensor],
        kept: Sequence[Tensor],
        grads: Sequence[Tensor | None],
    ) -> Gradients:
        (start,), (drive,) = initial, kept
        gates = _by_gate(drive, start)
        run = self._run_back if gates.device.type == "cpu" else self._run_back_by_doubling
        if any(grad is not None for grad in grads):
            of_drive, of_start = run(gates, start, results[0], grads)
        else:
            of_drive, of_start = torch.zeros_like(gates), torch.zeros_like(start)
        return Gradients(of_drive.flatten(2), weight=None, offset=None, x=None, initial=[of_start])

    def _run(self, gates: Tensor, start: Tensor) -> list[Tensor]:
        from isornn.nn.kernels.diagonal import shared

        loop, _ = self._loops()
        results = [gates.new_empty(len(gates), *start.shape) for _ in range(self.results)]
        shared(loop, gates, start, *results, over=len(start))
        return results

    def _run_back(
        self, gates: Tensor, start: Tensor, state: Tensor, grads: Sequence[Tensor | None]
    ) -> tuple[Tensor, Tensor]:
        from isornn.nn.kernels.diagonal import shared

        _, loop = self._loops()
        of_drive, of_start = torch.empty_like(gates), torch.zeros_like(start)
        shared(loop, gates, start, state, *grads, of_drive, of_start, over=len(start))
        return of_drive, of_start

    def _run_by_doubling(self, gates: Tensor, start: Tensor) -> list[Tensor]:
        return [scan_by_doubling(gates[:, :, 0], self._content(gates), start)]

    def _run_back_by_doubling(
        self, gates: Tensor, start: Tensor, state: Tensor, grads: Sequence[Tensor | None]
    ) -> tuple[Tensor, Tensor]:
        (direct,), f = grads, gates[:, :, 0]
        assert direct is not None
        later = torch.cat([f[1:], torch.zeros_like(f[:1])])
        grad = scan_by_doubling(later, direct, torch.zeros_like(start), reverse=True)
        previous = torch.cat([start[None], state[:-1]])
        return torch.stack(self._of_drive(gates, previous, grad), dim=2), f[0] * grad[0]

    @abstractmethod
    def _loops(self) -> tuple[_Loop, _Loop]:
        """The compiled loops over time, there and back."""

    @abstractmethod
    def _content(self, gates: Tensor) -> Tensor:
        """What a step adds to ``f s``."""

    @abstractmethod
    def _of_drive(self, gates: Tensor, previous: Tensor, grad: Tensor) -> list[Tensor]:
        """Gradients of u_f, u_z, ... from ``grad``, that of the new state."""


class TRNNKernel(_Typed):
    """``h = f h + (1-f) z``."""

    def _loops(self) -> tuple[_Loop, _Loop]:
        from isornn.nn.kernels import diagonal

        return diagonal.trnn, diagonal.trnn_backward

    def _content(self, gates: Tensor) -> Tensor:
        f, z = gates.unbind(2)
        return (1 - f) * z

    def _of_drive(self, gates: Tensor, previous: Tensor, grad: Tensor) -> list[Tensor]:
        f, z = gates.unbind(2)
        return [grad * (previous - z) * f * (1 - f), grad * (1 - f)]


class TLSTMKernel(TRNNKernel):
    """``c = f c + (1-f) z``, output ``c o``: a TRNN that is looked at through o."""

    results = 2

    def _loops(self) -> tuple[_Loop, _Loop]:
        from isornn.nn.kernels import diagonal

        return diagonal.tlstm, diagonal.tlstm_backward

    def _run_by_doubling(self, gates: Tensor, start: Tensor) -> list[Tensor]:
        (c,) = super()._run_by_doubling(gates[:, :, :2], start)
        return [c, c * gates[:, :, 2]]

    def _run_back_by_doubling(
        self, gates: Tensor, start: Tensor, state: Tensor, grads: Sequence[Tensor | None]
    ) -> tuple[Tensor, Tensor]:
        of_c, of_out = (torch.zeros_like(state) if grad is None else grad for grad in grads)
        o = gates[:, :, 2]
        of_fz, of_start = super()._run_back_by_doubling(gates[:, :, :2], start, state, [of_c + of_out * o])
        of_o = of_out * state * (1 - o * o)
        return torch.cat([of_fz, of_o.unsqueeze(2)], dim=2), of_start


class TGRUKernel(_Typed):
    """``h = f h + z o``."""

    def _loops(self) -> tuple[_Loop, _Loop]:
        from isornn.nn.kernels import diagonal

        return diagonal.tgru, diagonal.tgru_backward

    def _content(self, gates: Tensor) -> Tensor:
        _, z, o = gates.unbind(2)
        return z * o

    def _of_drive(self, gates: Tensor, previous: Tensor, grad: Tensor) -> list[Tensor]:
        f, z, o = gates.unbind(2)
        return [grad * previous * f * (1 - f), grad * o, grad * z * (1 - o * o)]


def _by_gate(drive: Tensor, start: Tensor) -> Tensor:
    """(T, B, K N) as (T, B, K, N)."""
    return drive.unflatten(2, (-1, start.shape[-1]))
