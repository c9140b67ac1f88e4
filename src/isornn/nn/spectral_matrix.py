"""The parametrisation of a matrix by its singular value decomposition, with singular values within a margin of 1.

Source: Vorontsov, Trabelsi, Kadoury & Pal 2017, section 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isornn.nn.autocast import without_autocast
from isornn.warn import warn

# How much of the margin a given spectrum keeps from its ends, where p would be infinite and could not move.
_INSET = 1e-3
# How far beyond the margin a singular value may be by rounding alone.
_ROUNDING = 1e-4
# A basis counts as orthogonal if ||M^T M - I||_F <= 1e-5 sqrt(N): ten times what GeodesicSGD leaves in float32.
_TOLERANCE = 1e-5
_PROBES = 4


class SpectralMatrix(nn.Module):
    """The parametrisation ``W_k = U_k diag(s_k) V_k^T``, ``s = 1 + 2m (sigmoid(p) - 1/2)``, of each N x N block W_k.

    So every s is in [1-m, 1+m]; where m > 1 those below 0 are singular values -s. ``m = 0``: W is orthogonal and p
    without effect. ``None``: no bound, s = p.

    As `torch.nn.utils.parametrize` has it, W's originals are U, p and V in this order: (K, N, N), (K, N), (K, N, N)
    for K > 1 blocks below each other, (N, N), (N,), (N, N) for one.

    U and V may be any matrices, for example after a step of an optimiser that ignores the manifold, or an average of
    models: one that is not orthogonal is replaced by the orthogonal factor of its QR decomposition (`retracted`). So
    W's singular values are s whatever has changed the originals, up to 1e-5 sqrt(N), below which U and V are used as
    they are. In training mode, with gradients recorded, the factor is also written back into the parameter, as
    `torch.nn.Embedding` does with ``max_norm``: each optimiser step starts on the manifold. Elsewhere nothing is
    written, and the gradient goes through the decomposition.

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
        # In half precision W would be orthogonal to three digits only; the layer casts the result.
        with without_autocast(left.device.type):
            u, v = self._orthogonal(left, right)
            product = (u * self.spectrum(p.to(u.dtype)).unsqueeze(-2)) @ v.mT
        return product.flatten(0, -2).to(left.dtype)

    def _orthogonal(self, *bases: Tensor) -> tuple[Tensor, ...]:
        """U and V on the manifold, in float32 at least: half precision cannot hold an orthogonal matrix."""
        wide = tuple(_wide(basis) for basis in bases)
        if are_orthogonal(wide):
            return wide
        parameters = all(isinstance(basis, nn.Parameter) for basis in wide)
        if parameters and self.training and torch.is_grad_enabled() and _may_write(wide[0]):
            retract_(wide)
            return wide
        return tuple(retracted(basis) for basis in wide)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """U, p and V of the nearest W within the margin, by singular value decomposition.

        Values that are not inside the margin are set to ``1 +- 0.999 m``, where p is finite and can
        be trained. A warning counts those that were outside the margin.
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
        beyond = 0 if not _has_values(s) else int((distance.abs() > self._margin + _ROUNDING).sum())
        if beyond:
            warn(
                f"{beyond} of {s.numel()} singular values, which are from {float(s.min()):.3g} to "
                f"{float(s.max()):.3g}, were beyond 1 +- {self._margin:g} and have been moved there",
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
        """m, infinite for ``None``: p has no meaning without it, so the margin is saved and loaded with p."""
        return torch.tensor(math.inf if self._margin is None else self._margin, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Set the margin to the loaded one."""
        self._margin = _checked_margin(None if state.isinf() else float(state))

    def extra_repr(self) -> str:
        return f"margin={self._margin}"


def retracted(basis: Tensor) -> Tensor:
    """The orthogonal factor Q of ``M = Q R``, with ``R_ii > 0``: M itself where M is orthogonal.

    >>> basis = retracted(torch.tensor([[2.0, 1.0], [0.0, 3.0]]))
    >>> torch.allclose(basis, torch.eye(2))
    True
    """
    # Of columns, not rows, which would be faster. With N = U^T dL/dU a step of SGD turns U by the lower half of N less
    # its transpose. Where s is near 1, V's N is the transpose of U's, so to first order the two steps together change
    # the loss by minus the sum of (N_ij - N_ji)^2. Rows give no such sum, and trained worse with Adam.
    q, r = torch.linalg.qr(basis)
    signs = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(q.dtype)
    return q * signs.unsqueeze(-2)


@torch.no_grad()
def retract_(bases: Iterable[Tensor]) -> None:
    """Write `retracted` into each basis."""
    for basis in bases:
        basis.copy_(retracted(_wide(basis)))


def are_orthogonal(bases: tuple[Tensor, ...]) -> bool:
    """Whether ``||M^T M - I||_F <= 1e-5 sqrt(N)`` for all; ``False`` where there are no values to look at.

    Freivalds' check, of ``(M^T M - I) x`` for few random x: 4 N^2 operations each, where the product takes 2 N^3. With
    4 normal x, an error of ten times the tolerance is overlooked once in 5000 cases if it has rank 1, and less often
    otherwise; one of a hundred times, less than once in 10^7. The x are the same in every call.
    """
    if torch.compiler.is_compiling() or not _has_values(bases[0]):
        return False
    # Not under no_grad, which an exported program would record as a program within it.
    values = [basis.detach() for basis in bases]
    units, device = bases[0].shape[-1], bases[0].device
    # numpy's, as torch draws nothing within vmap.
    normal = np.random.default_rng(0).standard_normal((_PROBES, units, 1), dtype=np.float32)
    probes = torch.from_numpy(normal).to(device)
    # One at a time: a product with a few columns takes longer than as many with one.
    errors = [basis.mT @ (basis @ x) - x for basis in values for x in probes.to(values[0].dtype)]
    worst = torch.stack(errors).square().sum((-2, -1)).unflatten(0, (-1, _PROBES)).sum(1).max()
    return bool(worst <= _PROBES * units * _TOLERANCE**2)


def _may_write(basis: Tensor) -> bool:
    # torch.compile has the write in its graph; an exported or traced graph is not to change its parameters.
    return (torch.compiler.is_compiling() and not torch.compiler.is_exporting()) or _has_values(basis)


def _has_values(basis: Tensor) -> bool:
    # Transforms such as vmap, and modes such as FakeTensorMode, let nobody branch on a value.
    transformed = torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack() > 0
    return not (transformed or torch._C._get_tracing_state() is not None or basis.is_meta)


def _wide(basis: Tensor) -> Tensor:
    return basis.float() if basis.dtype.itemsize < 4 else basis


def _checked_margin(margin: Any) -> float | None:
    if margin is None:
        return None
    if isinstance(margin, bool) or not isinstance(margin, (int, float)) or not (math.isfinite(margin) and margin >= 0):
        raise ValueError(f"margin: {margin!r} is not allowed; it must be a finite number, 0 or larger, or None")
    return float(margin)
