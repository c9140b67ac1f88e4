"""The parametrisation of a matrix by its singular value decomposition, with singular values within a margin of 1.

Source: Vorontsov, Trabelsi, Kadoury & Pal 2017, section 3.1.
"""

from __future__ import annotations

import math
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

# How much of the margin a given spectrum keeps from its ends, where p would be infinite and could not move.
_INSET = 1e-3
# How far beyond the margin a singular value may be by rounding alone.
_ROUNDING = 1e-4


class SpectralMatrix(nn.Module):
    """The parametrisation ``W_k = U_k diag(s_k) V_k^T``, ``s = 1 + 2m (sigmoid(p) - 1/2)``, of each N x N block W_k.

    So every s lies in [1-m, 1+m]; where m > 1 those below 0 are singular values -s. ``m = 0``: W is orthogonal and p
    without effect. ``None``: no bound, s = p.

    As `torch.nn.utils.parametrize` has it, W's originals are U, p and V in this order: (K, N, N), (K, N), (K, N, N)
    for K > 1 blocks below each other, (N, N), (N,), (N, N) for one.

    Args:
        margin: m.

    Raises:
        ValueError: the margin is negative or not finite.

    Source: Vorontsov et al. 2017, eqs. 8, 10.

    >>> one = torch.eye(2)
    >>> SpectralMatrix(0.5)(one, torch.tensor([0.0, 100.0]), one)
    tensor([[1.0000, 0.0000],
            [0.0000, 1.5000]])
    """

    def __init__(self, margin: float | None) -> None:
        super().__init__()
        self._margin = _checked_margin(margin)

    @property
    def margin(self) -> float | None:
        """m; `set_margin_` changes it."""
        return self._margin

    def forward(self, left: Tensor, p: Tensor, right: Tensor) -> Tensor:
        """W, (K N, N)."""
        with _without_autocast(left.device.type):
            product = (left * self.spectrum(p).unsqueeze(-2)) @ right.mT
        return product.flatten(0, -2)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """U, p and V of the nearest W within the margin, by singular value decomposition.

        Values that are not inside the margin go to just inside it, to ``1 +- 0.999 m``, where p is finite and can
        move. Those that were beyond the margin are reported by a warning.
        """
        blocks = weight.detach().double().unflatten(0, (-1, weight.shape[1]))
        left, s, right = torch.linalg.svd(blocks.squeeze(0))
        factors = (left, self.inverse_spectrum(s), right.mT)
        u, p, v = (factor.to(weight.dtype).contiguous() for factor in factors)
        return u, p, v

    def spectrum(self, p: Tensor) -> Tensor:
        """s."""
        # sigmoid(p) - 1/2 is tanh(p/2) / 2, which is exact near p = 0.
        return p if self._margin is None else 1.0 + self._margin * torch.tanh(p / 2)

    def inverse_spectrum(self, s: Tensor) -> Tensor:
        """p of the values nearest to s, as `right_inverse` takes them."""
        if self._margin is None:
            return s
        distance = s - 1.0
        beyond = int((distance.abs() > self._margin + _ROUNDING).sum())
        if beyond:
            warnings.warn(
                f"{beyond} of {s.numel()} singular values, which are from {float(s.min()):.3g} to "
                f"{float(s.max()):.3g}, were beyond 1 +- {self._margin:g} and have been moved there",
                stacklevel=2,
            )
        if self._margin == 0.0:
            return torch.zeros_like(s)
        return 2 * torch.atanh((distance / self._margin).clamp(_INSET - 1, 1 - _INSET))

    @torch.no_grad()
    def change_margin_(self, p: Tensor, margin: float | None) -> None:
        """Take another margin, and p to it so that s stays where the new margin allows it."""
        changed = SpectralMatrix(margin)
        p.copy_(changed.inverse_spectrum(self.spectrum(p.double())))
        self._margin = changed.margin

    def get_extra_state(self) -> Tensor:
        """m, infinite for ``None``: p says nothing without it, so the margin is saved and loaded with p."""
        return torch.tensor(math.inf if self._margin is None else self._margin, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Take the margin of what is loaded."""
        self._margin = _checked_margin(None if state.isinf() else float(state))

    def extra_repr(self) -> str:
        return f"margin={self._margin}"


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    """Half precision would leave W orthogonal to three digits; the layer casts what comes of it."""
    # The meta device has no autocast at all.
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def _checked_margin(margin: Any) -> float | None:
    if margin is None:
        return None
    if isinstance(margin, bool) or not isinstance(margin, (int, float)) or not (math.isfinite(margin) and margin >= 0):
        raise ValueError(f"margin: {margin!r} is not allowed; it is a finite number, 0 or larger, or None")
    return float(margin)
