"""The strongly typed cells: no matrix in the recurrence, so one pass over the drive and one back over it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from isornn.nn.kernels.contract import RecurrenceArgs, Gradients
from isornn.nn.kernels.device import scan_on_device
from isornn.nn.kernels.steps import dense
from isornn.nn.kernels.threads import shared

_Loop = Callable[..., None]


class _Typed(ABC):
    """A `Kernel` of a cell with gates f, z and perhaps o, and one state ``s = f s + content``.

    *Gates*, (T, B, K, N), are sigma(u_f), u_z and tanh(u_o), written over the drive, and are what is kept. On a CPU the
    loops of ``diagonal`` run, elsewhere torch operations on whole sequences.
    """

    kept_widths: tuple[int, ...]
    results = 1

    def forward(self, drive: Tensor, given: RecurrenceArgs, keep: bool) -> tuple[list[Tensor], list[Tensor]]:
        """See `Kernel`."""
        (start,) = given.initial
        run = self._run if drive.device.type == "cpu" else self._run_by_scan
        return run(_by_gate(drive, start), start), [drive] if keep else []

    def backward(
        self, given: RecurrenceArgs, results: Sequence[Tensor], kept: Sequence[Tensor], grads: Sequence[Tensor | None]
    ) -> Gradients:
        """See `Kernel`."""
        (start,), (drive,) = given.initial, kept
        run = self._run_back if drive.device.type == "cpu" else self._run_back_by_scan
        du, of_start = run(_by_gate(drive, start), start, results[0], dense(grads, start))
        return Gradients(du.flatten(2), weight=None, offset=None, x=None, units=[], initial=[of_start])

    def _run(self, gates: Tensor, start: Tensor) -> list[Tensor]:
        loop, _ = self._loops()
        results = [gates.new_empty(len(gates), *start.shape) for _ in range(self.results)]
        shared(loop, gates, start, *results, over=len(start))
        return results

    def _run_back(self, gates: Tensor, start: Tensor, state: Tensor, grads: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        _, loop = self._loops()
        du, of_start = torch.empty_like(gates), torch.zeros_like(start)
        shared(loop, gates, start, state, *grads, du, of_start, over=len(start))
        return du, of_start

    def _run_by_scan(self, gates: Tensor, start: Tensor) -> list[Tensor]:
        gates[:, :, 0].sigmoid_()
        gates[:, :, 2:].tanh_()
        return [scan_on_device(gates[:, :, 0], self._content(gates), start)]

    def _run_back_by_scan(
        self, gates: Tensor, start: Tensor, state: Tensor, grads: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        (direct,), f = grads, gates[:, :, 0]
        later = torch.cat([f[1:], torch.zeros_like(f[:1])])
        of_state = scan_on_device(later, direct.expand_as(state), torch.zeros_like(start), reverse=True)
        before = torch.cat([start[None], state[:-1]])
        return torch.stack(self._of_drive(gates, before, of_state), dim=2), f[0] * of_state[0]

    @abstractmethod
    def _loops(self) -> tuple[_Loop, _Loop]:
        """The compiled loops over time, there and back."""

    @abstractmethod
    def _content(self, gates: Tensor) -> Tensor:
        """What a step adds to ``f s``."""

    @abstractmethod
    def _of_drive(self, gates: Tensor, old: Tensor, of_new: Tensor) -> list[Tensor]:
        """Gradients of u_f, u_z, ... from those of the states; ``old`` are the states before the steps."""


class TRNNKernel(_Typed):
    """``h = f h + (1-f) z``."""

    kept_widths = (2,)

    def _loops(self) -> tuple[_Loop, _Loop]:
        from isornn.nn.kernels import diagonal

        return diagonal.trnn, diagonal.trnn_backward

    def _content(self, gates: Tensor) -> Tensor:
        f, z = gates[:, :, 0], gates[:, :, 1]
        return (1 - f) * z

    def _of_drive(self, gates: Tensor, old: Tensor, of_new: Tensor) -> list[Tensor]:
        f, z = gates[:, :, 0], gates[:, :, 1]
        return [of_new * (old - z) * f * (1 - f), of_new * (1 - f)]


class TLSTMKernel(TRNNKernel):
    """``c = f c + (1-f) z``, output ``c o``: a TRNN that is looked at through o."""

    kept_widths = (3,)
    results = 2

    def _loops(self) -> tuple[_Loop, _Loop]:
        from isornn.nn.kernels import diagonal

        return diagonal.tlstm, diagonal.tlstm_backward

    def _run_by_scan(self, gates: Tensor, start: Tensor) -> list[Tensor]:
        (c,) = super()._run_by_scan(gates, start)
        return [c, c * gates[:, :, 2]]

    def _run_back_by_scan(
        self, gates: Tensor, start: Tensor, state: Tensor, grads: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        (of_c, of_y), o = grads, gates[:, :, 2]
        du, of_start = super()._run_back_by_scan(gates, start, state, [of_c + of_y * o])
        return torch.cat([du, (of_y * state * (1 - o * o)).unsqueeze(2)], dim=2), of_start


class TGRUKernel(_Typed):
    """``h = f h + z o``."""

    kept_widths = (3,)

    def _loops(self) -> tuple[_Loop, _Loop]:
        from isornn.nn.kernels import diagonal

        return diagonal.tgru, diagonal.tgru_backward

    def _content(self, gates: Tensor) -> Tensor:
        _, z, o = gates.unbind(2)
        return z * o

    def _of_drive(self, gates: Tensor, old: Tensor, of_new: Tensor) -> list[Tensor]:
        f, z, o = gates.unbind(2)
        return [of_new * old * f * (1 - f), of_new * o, of_new * z * (1 - o * o)]


def _by_gate(drive: Tensor, start: Tensor) -> Tensor:
    """(T, B, K N) as (T, B, K, N)."""
    return drive.unflatten(2, (-1, start.shape[-1]))
