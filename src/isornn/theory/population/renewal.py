"""The renewal equation of a response: lag curves, how they go on, and the rates of curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

_LEAST_RESPONSE, _HUGE = 1e-280, 1e250
_MOST_LAGS = 1 << 14  # of a block: its steps times those of the kernel


@dataclass(frozen=True)
class Renewal:
    """Lag curves and how they go on.

    Args:
        displaced: rho ``(..., rows, T)``; rows are the classes of reads first.
        kernel: K ``(..., rows, classes, T)``.
        within: same-step coupling of classes ``(..., classes, classes)``.
        late_displaced, late_kernel: rho and K at T by what falls at the rates ``rates``, ``(..., B)`` or ``(B,)``, B in
            place of T.
        tail: decay per step of rho and K late in what was followed.
        died: whether they are 0 there but were not at first; the tail is then that of the last steps before.
    """

    displaced: Tensor
    kernel: Tensor
    within: Tensor
    late_displaced: Tensor
    late_kernel: Tensor
    rates: Tensor
    tail: Tensor
    died: Tensor

    @staticmethod
    def of(displaced: Tensor, kernel: Tensor, within: Tensor, carried: Tensor) -> Renewal:
        """Beyond T curves go on at the rate of ``carried`` ``(..., T)``, what units carry over pointwise.

        They go on from the mean level of their last quarter, as the last term of what oscillates may be near 0.
        """
        late, live = late_rate(carried), last_live_rate(carried)
        tail = torch.where(late > 0, late, live)
        died = (late == 0) & (live > 0)
        return Renewal(
            displaced, kernel, within, _level(displaced, tail), _level(kernel, tail), tail[..., None], tail, died
        )

    @staticmethod
    def with_late(displaced: Tensor, kernel: Tensor, within: Tensor, late: Tensor, rates: Tensor) -> Renewal:
        """``late`` ``(..., rows, 1 + classes, B)``: the displacement's part first."""
        used = (late != 0).flatten(0, -2).any(0)
        late, rates = late[..., used], rates[used]
        leading = displaced.shape[:-2]
        tail = rates.max() if bool(used.any()) else torch.zeros((), dtype=displaced.dtype)
        on = (late[..., 0, :], late[..., 1:, :], rates)
        return Renewal(displaced, kernel, within, *on, tail.expand(leading), torch.zeros(leading, dtype=torch.bool))

    def of_classes(self) -> Renewal:
        """The rows that act back alone, without those that are only shown."""
        some = slice(self.kernel.shape[-2])
        return replace(
            self,
            displaced=self.displaced[..., some, :],
            kernel=self.kernel[..., some, :, :],
            late_displaced=self.late_displaced[..., some, :],
            late_kernel=self.late_kernel[..., some, :, :],
        )

    def after_sources(self, classes: Sequence[int]) -> Renewal:
        """The same after source terms of unit size in these ``classes`` at step 0, in place of the displacement."""
        chosen = list(classes)
        displaced = self.kernel[..., chosen, :].sum(-2)
        coupled = self.within[..., chosen].sum(-1)
        displaced[..., : coupled.shape[-1], 0] += coupled
        return replace(self, displaced=displaced, late_displaced=self.late_kernel[..., chosen, :].sum(-2))

    def profile(self, length: int) -> Tensor:
        """P by row, ``(..., rows, length)``, times 0 .. length-1; beyond T by the recursion of exponentials."""
        known, classes = self.kernel.shape[-1], self.kernel.shape[-2]
        coupling = torch.linalg.inv(torch.eye(classes, dtype=self.kernel.dtype) - self.within)
        backward = self.kernel[..., 1:].flip(-1)
        rows = torch.zeros(*self.displaced.shape[:-1], length, dtype=self.kernel.dtype)
        found = rows[..., :classes, :]
        for t in range(min(length, known)):
            value = torch.einsum("...rkt,...kt->...r", backward[..., known - 1 - t :], found[..., :t])
            rows[..., t] = value + self.displaced[..., t]
            rows[..., :classes, t] = (coupling @ rows[..., :classes, t, None])[..., 0].clamp(-_HUGE, _HUGE)
        if length > known:
            later = _Blocks(self, coupling)
            for t in range(known, length, later.size):
                block = later.next(found[..., t - known : t])
                rows[..., t : t + later.size] = block[..., : length - t]
        return rows

    def rate(self) -> Tensor:
        """chi: the largest z at which the spectral radius of ``sum_l K(l) z^-l`` (coupled) is 1, or the tail's rate.

        NaN where the kernel is negative: then the sum does not fall with z, and the profile must be read instead.
        """
        classes = self.kernel.shape[-2]
        kernel = self.kernel[..., :classes, :, 1:]
        low = self.tail
        high = 2 * torch.maximum(low, torch.ones_like(low))
        for _ in range(200):
            above = self._gain(kernel, high) >= 1
            if not bool(above.any()):
                break
            high = torch.where(above, 2 * high, high)
        for _ in range(60):
            middle = (low + high) / 2
            above = self._gain(kernel, middle) >= 1
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        negative = (kernel.sum(-1).flatten(-2) < -1e-12 * kernel.abs().sum(-1).flatten(-2).amax(-1, keepdim=True)).any(
            -1
        )
        found = (low + high) / 2
        return torch.where(negative, torch.nan, torch.where(found < 1e-15, 0.0, found))

    def feedback(self) -> Tensor:
        """Spectral radius of ``sum_l K(l)``: what one unit of P gives back to P in all later steps."""
        classes = self.kernel.shape[-2]
        late = self.late_kernel[..., :classes, :, :] / (1 - self.rates).clamp(min=1e-15)[..., None, None, :]
        total = self.kernel[..., :classes, :, :].sum(-1) + late.sum(-1)
        coupled = torch.linalg.solve(torch.eye(classes, dtype=total.dtype) - self.within, _bounded(total))
        return torch.linalg.eigvals(coupled).abs().amax(-1)

    def _gain(self, kernel: Tensor, z: Tensor) -> Tensor:
        kernel = torch.cat([kernel, self.late_kernel[..., : kernel.shape[-3], :, :1]], -1)
        steps = torch.arange(1, kernel.shape[-1] + 1, dtype=kernel.dtype)
        log_z = z.clamp(min=_LEAST_RESPONSE).log()[..., None, None, None]
        terms = (kernel.abs().clamp(min=_LEAST_RESPONSE).log() - steps * log_z).clamp(max=600.0).exp() * kernel.sign()
        ratio = (self.tail / z.clamp(min=_LEAST_RESPONSE)).clamp(max=1 - 1e-15)
        total = terms[..., :-1].sum(-1) + terms[..., -1] / (1 - ratio)[..., None, None]
        coupled = torch.linalg.solve(torch.eye(total.shape[-1], dtype=total.dtype) - self.within, total)
        if coupled.shape[-1] == 1:
            return coupled[..., 0, 0]
        return torch.linalg.eigvals(coupled).abs().amax(-1)


class _Blocks:
    """P beyond T, by blocks of as many steps as T at most, each linear in what was before it.

    Within a block only the kernel K(1) .. K(T - 1) acts, as a step that is T or more back lies before the block: the
    block solves a triangular system. What is more than T before the block acts by one sum for each rate, and the
    displacement by another.
    """

    def __init__(self, renewal: Renewal, coupling: Tensor) -> None:
        known, self._classes = renewal.kernel.shape[-1], renewal.kernel.shape[-2]
        self.size = size = min(known, max(1, _MOST_LAGS // known))
        powers = renewal.rates[..., None] ** torch.arange(size + 1, dtype=renewal.kernel.dtype)  # (..., B, size + 1)
        self._ahead, self._aged, self._into_sums = powers[..., :size], powers[..., -1], powers[..., 1:].flip(-1).mT
        lags = torch.cat([renewal.kernel, renewal.late_kernel @ powers[..., None, :, :size]], -1)  # K(0) ..
        to, since = torch.arange(size)[:, None], torch.arange(known)
        history = lags[..., known + to - since].movedim(-3, -2)  # (..., rows, size, classes, T)
        self._history = history.flatten(-4, -3).flatten(-2, -1).contiguous()
        steps_back = (to - torch.arange(size)).clamp(min=0)
        inside = (lags[..., steps_back] * (steps_back > 0)).movedim(-3, -2)  # (..., rows, size, classes, size)
        self._inside = inside[..., self._classes :, :, :, :].flatten(-4, -3).flatten(-2, -1).contiguous()
        # Times first, so that what the classes of a block are by what acts on them from outside is triangular.
        coupled = torch.einsum("...ab,...bjki->...jaik", coupling, inside[..., : self._classes, :, :, :])
        self._system = torch.eye(size * self._classes, dtype=lags.dtype) - coupled.flatten(-4, -3).flatten(-2, -1)
        self._coupling = coupling
        self._late = torch.cat([renewal.late_displaced[..., None, :], renewal.late_kernel], -2)
        self._sums = torch.zeros(*self._history.shape[:-2], 1 + self._classes, powers.shape[-2], dtype=lags.dtype)
        self._sums[..., 0, :] = 1

    def next(self, before: Tensor) -> Tensor:
        """The rows ``(..., rows, size)`` after the classes' last T values ``before`` ``(..., classes, T)``."""
        late = (self._late * self._sums[..., None, :, :]).sum(-2) @ self._ahead
        history = (self._history @ before.flatten(-2)[..., None])[..., 0].unflatten(-1, late.shape[-2:])
        value = _bounded(history + late)
        outside = (self._coupling @ value[..., : self._classes, :]).mT.flatten(-2)
        solved = torch.linalg.solve_triangular(self._system, outside[..., None], upper=False, unitriangular=True)
        found = _bounded(solved[..., 0].unflatten(-1, (self.size, self._classes)).mT)
        value[..., : self._classes, :] = found
        if self._inside.shape[-2]:
            value[..., self._classes :, :] += (self._inside @ found.flatten(-2)[..., None])[..., 0].unflatten(
                -1, (-1, self.size)
            )
        self._sums *= self._aged[..., None, :]
        self._sums[..., 1:, :] += before[..., : self.size] @ self._into_sums
        return value


def _bounded(value: Tensor) -> Tensor:
    """What grows without bound as a huge number."""
    return value.nan_to_num(_HUGE, _HUGE, -_HUGE).clamp(-_HUGE, _HUGE)


def _level(curve: Tensor, rate: Tensor) -> Tensor:
    """The value ``(..., 1)`` at T of ``curve`` ``(..., T)``, by its last quarter going on at ``rate``."""
    length = curve.shape[-1]
    count = max(1, length // 4)
    ahead = torch.arange(count, 0, -1, dtype=curve.dtype)
    moved = rate.reshape(*rate.shape, *(1,) * (curve.dim() - rate.dim())) ** ahead
    return (curve[..., -count:] * moved).mean(-1, keepdim=True)


def late_rate(curve: Tensor, start: float = 0.5, end: float = 1.0) -> Tensor:
    """Factor per step between the fractions ``start`` and ``end`` of ``curve`` ``(..., T)``; 0 where it died out.

    It is taken between the mean logarithms over either half of that part, which hardly depend on where a curve that
    oscillates has its crests. Steps at which nothing is left are left out.
    """
    last = max(1, round(end * (curve.shape[-1] - 1)))
    first = min(round(start * (curve.shape[-1] - 1)), last - 1)
    part = curve[..., first : last + 1]
    steps, half = torch.arange(part.shape[-1], dtype=curve.dtype), part.shape[-1] // 2

    def means(some: slice) -> tuple[Tensor, Tensor]:
        """Of the steps and of the logarithm, one half at a time, for millions of steps take gigabytes."""
        alive = part[..., some] > _LEAST_RESPONSE
        count = alive.sum(-1).clamp(min=1)
        logs = torch.where(alive, part[..., some], 1.0).log_()
        return torch.where(alive, steps[some], 0.0).sum(-1) / count, logs.sum(-1) / count

    (t_a, log_a), (t_b, log_b) = means(slice(half)), means(slice(-half, None))
    seen = (part[..., :half] > _LEAST_RESPONSE).any(-1) & (part[..., -1] > _LEAST_RESPONSE)
    return torch.where(seen, ((log_b - log_a) / torch.where(seen, t_b - t_a, 1.0)).exp(), 0.0)


def last_live_rate(profile: Tensor) -> Tensor:
    """``late_rate`` of the absolute profile over the longest start of it that has not underflowed."""
    profile = profile.abs()
    rate, length = torch.zeros_like(profile[..., 0]), 8
    while length <= profile.shape[-1]:
        longer = late_rate(profile[..., :length])
        rate = torch.where(longer > 0, longer, rate)
        length *= 2
    return rate


def first_fall(profile: Tensor) -> Tensor:
    """Steps after step 1 until ``profile`` ``(..., T)`` is 1/e of its value at step 1, log-linear between steps.

    Infinity where it is not reached within the profile; 0 where there is no response at step 1.
    """
    later = profile[..., 1:].clamp(min=_LEAST_RESPONSE)
    start = profile[..., 1]
    below = later <= later[..., :1] / math.e
    index = below.to(torch.int8).argmax(-1).clamp(min=1)
    near = later.gather(-1, torch.stack([index - 1, index], -1))
    before, after = (near.log() - later[..., :1].log()).unbind(-1)
    crossing = index - 1 + (-1.0 - before) / torch.where(after < before, after - before, -1.0)
    reached = torch.where(below.any(-1), crossing.to(profile.dtype), torch.inf)
    return torch.where(start > 0, reached, 0.0)
