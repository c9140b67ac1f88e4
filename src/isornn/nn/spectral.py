"""Recurrent matrices ``W = U diag(s) V^T`` whose singular values stay within a margin of 1.

Source: Vorontsov, Trabelsi, Kadoury & Pal 2017, section 3.1. `isornn.optim.GeodesicSGD` trains the factors.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from isornn.nn import draws
from isornn.nn.layers import VanillaRNN
from isornn.nn.rnn import suffix

Start = Literal["orthogonal", "glorot", "identity"]
Module = TypeVar("Module", bound=nn.Module)

_PRECISIONS = (torch.float32, torch.float64)
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

    def get_extra_state(self) -> Tensor:
        """m, infinite for ``None``: p says nothing without it, so the margin is saved and loaded with p."""
        return torch.tensor(math.inf if self._margin is None else self._margin, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Take the margin of what is loaded."""
        self._margin = _checked_margin(None if state.isinf() else float(state))

    def extra_repr(self) -> str:
        return f"margin={self._margin}"


def parametrize_spectral_(
    module: Module,
    name: str,
    margin: float | None = 0.1,
    *,
    start: Start | None = "orthogonal",
    generator: torch.Generator | None = None,
) -> Module:
    """Factorise one of a module's matrices, `SpectralMatrix`, in place.

    For `torch.nn.RNN`, `LSTM` and `GRU`, the layers of `isornn.nn`, and any module with a matrix that is square or a
    stack of square blocks, as the gates of ``weight_hh_l0`` are; each block has its own factors. torch's and our
    recurrent layers compose W once for a whole sequence. (A torch ``...Cell`` is one step: step it within
    `torch.nn.utils.parametrize.cached`.) Make the optimiser afterwards: the parameters are new.

    The parameters are ``module.parametrizations.<name>.original0``, 1, 2. state_dict, copies and assignment
    (``module.weight_hh_l0 = W``) work as `torch.nn.utils.parametrize` has them; a state dict brings its margin with
    it. torch does not pickle parametrised modules.

    Args:
        module: the module that owns the matrix.
        name: the parameter's name.
        margin: m, or ``None`` for no bound.
        start: W_k is at first Haar orthogonal, Glorot normal (variance 1/N) or the identity. ``None``: what it is
            now. What lies beyond the margin moves to it, with a warning: most of a Glorot or a torch start does.
        generator: source of the draws.

    Returns:
        The module.

    Raises:
        ValueError: no such parameter; its shape or precision; the margin; the start.

    Source: Vorontsov et al. 2017, section 3.1.

    >>> lstm = parametrize_spectral_(nn.LSTM(3, 8), "weight_hh_l0", margin=0.1)
    >>> lstm.parametrizations.weight_hh_l0.original1.shape
    torch.Size([4, 8])
    >>> torch.allclose(singular_values(lstm, "weight_hh_l0"), torch.ones(4, 8))
    True
    """
    parametrization = SpectralMatrix(margin)
    matrix = _checked_matrix(module, name)
    if start is not None:
        _set(matrix, start, generator)
    parametrize.register_parametrization(module, name, parametrization)
    if isinstance(module, nn.RNNBase):
        _compose_once(module)
    return module


def set_margin_(
    module: Module, name: str, margin: float | None, *, optimizer: torch.optim.Optimizer | None = None
) -> Module:
    """Change the margin of a factorised matrix and keep W.

    Singular values beyond a narrower margin move to it, with a warning, as `SpectralMatrix.right_inverse` says.

    Args:
        module, name: as in `parametrize_spectral_`.
        margin: the new m, or ``None``.
        optimizer: the `GeodesicSGD` that trains the matrix: it divides the spectrum's rate by the margin.

    Returns:
        The module.

    Raises:
        ValueError: the matrix is not factorised; the margin; the optimiser has no group of this spectrum alone.

    >>> rnn = parametrize_spectral_(nn.RNN(3, 8), "weight_hh_l0", margin=0.1)
    >>> set_margin_(rnn, "weight_hh_l0", 0.5).parametrizations.weight_hh_l0[0]
    SpectralMatrix(margin=0.5)
    """
    matrix, (_, p, _) = factors(module, name)
    group = None if optimizer is None else _group_of(p, optimizer)
    changed = SpectralMatrix(margin)
    with torch.no_grad():
        p.copy_(changed.inverse_spectrum(matrix.spectrum(p.double())))
    matrix._margin = changed.margin
    if group is not None:
        group["margin"] = changed.margin
    return module


def is_spectral(module: nn.Module, name: str) -> bool:
    """Whether ``parametrize_spectral_(module, name)`` was called.

    >>> is_spectral(nn.RNN(3, 8), "weight_hh_l0")
    False
    """
    return parametrize.is_parametrized(module, name) and isinstance(_list(module, name)[0], SpectralMatrix)


def factors(module: nn.Module, name: str) -> tuple[SpectralMatrix, tuple[Tensor, Tensor, Tensor]]:
    """The parametrisation of a factorised matrix, and its parameters U, p and V.

    Raises:
        ValueError: the matrix is not factorised.
    """
    if not is_spectral(module, name):
        raise ValueError(f"name: {name!r} is not allowed; parametrize_spectral_ has not factorised it")
    known = _list(module, name)
    matrix = known[0]
    assert isinstance(matrix, SpectralMatrix)
    return matrix, (known.original0, known.original1, known.original2)


def singular_values(module: nn.Module, name: str) -> Tensor:
    """Singular values of each N x N block of a matrix, (K, N), (N,) for one block; differentiable.

    A factorised matrix' are s, in the order of the factors and, where m > 1, with their signs; any other's are
    decomposed for, from the largest to the smallest.

    Raises:
        ValueError: no such matrix, or its shape.

    >>> rnn = nn.RNN(3, 2)
    >>> rnn.weight_hh_l0.data = torch.tensor([[0.0, 2.0], [-1.0, 0.0]])
    >>> singular_values(rnn, "weight_hh_l0").tolist()
    [2.0, 1.0]
    """
    if is_spectral(module, name):
        matrix, (_, p, _) = factors(module, name)
        return matrix.spectrum(p)
    values: Tensor = torch.linalg.svdvals(blocks(module, name))
    return values


def blocks(module: nn.Module, name: str) -> Tensor:
    """A matrix' N x N blocks, (K, N, N), (N, N) for one.

    Raises:
        ValueError: no such matrix, or its shape.
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"name: {name!r} is not allowed; {_kind(module)} has no such tensor")
    _check_shape(module, name, weight)
    return weight.unflatten(0, (-1, weight.shape[1])).squeeze(0)


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """The parameters of a model as `GeodesicSGD` wants them: all bases, each spectrum with its margin, the rest.

    Only parameters that require a gradient; empty groups are left out.

    >>> model = SpectralRNN(3, 8, num_layers=2)
    >>> [group["kind"] for group in groups(model)]
    ['bases', 'spectrum', 'spectrum', 'rest']
    """
    bases: list[Tensor] = []
    spectra: list[dict[str, Any]] = []
    for module in model.modules():
        known: Any = module.parametrizations if parametrize.is_parametrized(module) else ()
        for name in known:
            if is_spectral(module, name):
                matrix, (left, p, right) = factors(module, name)
                bases += [left, right]
                spectra.append({"params": [p], "kind": "spectrum", "margin": matrix.margin})
    taken = {id(parameter) for parameter in (*bases, *(group["params"][0] for group in spectra))}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in taken]
    found = [{"params": bases, "kind": "bases"}, *spectra, {"params": rest, "kind": "rest"}]
    for group in found:
        group["params"] = [parameter for parameter in group["params"] if parameter.requires_grad]
    return [group for group in found if group["params"]]


class SpectralRNN(VanillaRNN):
    """`VanillaRNN` with factorised recurrent matrices: ``h = phi(U diag(s) V^T h + W_ih x + b)``, `SpectralMatrix`.

    Args:
        input_size, hidden_size, args, options: as `VanillaRNN`, but without ``proj_size``.
        margin: m, or ``None`` for no bound.
        start, generator: of the recurrent matrices, as in `parametrize_spectral_`; what else there is starts as
            torch's layers do.

    Raises:
        ValueError: as `VanillaRNN` and `parametrize_spectral_`.

    Source: Vorontsov et al. 2017.

    >>> layer = SpectralRNN(3, 8, margin=0.0, nonlinearity="identity")
    >>> out, h = layer(torch.ones(7, 2, 3))
    >>> w = layer.weight_hh_l0
    >>> torch.allclose(w @ w.T, torch.eye(8), atol=1e-6)
    True
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *args: Any,
        margin: float | None = 0.1,
        start: Start = "orthogonal",
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> None:
        super().__init__(input_size, hidden_size, *args, **options)
        for name in self._recurrent():
            parametrize_spectral_(self, name, margin, start=start, generator=generator)

    def reset_parameters(self) -> None:
        """Torch's default start of all but the factorised matrices, which stay."""
        kept = {name: getattr(self, name).detach() for name in self._recurrent() if is_spectral(self, name)}
        super().reset_parameters()
        for name, weight in kept.items():
            setattr(self, name, weight)

    def _recurrent(self) -> list[str]:
        return ["weight_hh" + suffix(layer, direction) for layer, direction in self.places()]


# What torch's layer computes with at present, of which module.
_IN_USE: ContextVar[tuple[nn.Module, list[Tensor]] | None] = ContextVar("_IN_USE", default=None)


def _compose_once(module: nn.RNNBase) -> None:
    """Torch's layers keep their weights in ``_flat_weights`` beside their names, and look whether the two differ.

    With parametrised ones they always do: a pass would compose them four times, and leave in the module tensors with
    a graph, of which there is no copy. So the list is computed where it is read, and once for a pass.
    """
    kind: Any = type(module)  # parametrize has made it for this module and its copies
    if "_flat_weights" in vars(kind):
        return
    plain: Callable[..., Any] = kind.forward

    def forward(self: nn.RNNBase, *args: Any, **options: Any) -> Any:
        token = _IN_USE.set((self, _weights(self)))
        try:
            self.flatten_parameters()
            return plain(self, *args, **options)
        finally:
            _IN_USE.reset(token)

    def flat_weights(self: nn.RNNBase) -> list[Tensor]:
        used = _IN_USE.get()
        return used[1] if used is not None and used[0] is self else _weights(self)

    kind.forward = forward
    kind._flat_weights = property(flat_weights, lambda self, weights: None)
    kind._update_flat_weights = lambda self: None
    # What torch finds, and renews, once the parametrisations are removed.
    vars(module)["_flat_weights"] = [None] * len(module._flat_weights_names)


def _weights(module: nn.RNNBase) -> list[Tensor]:
    return [getattr(module, name) for name in module._flat_weights_names]


def _set(matrix: Tensor, start: Start, generator: torch.Generator | None) -> None:
    size = matrix.shape[1]
    shape = (matrix.shape[0] // size, size, size)
    if start == "orthogonal":
        drawn = draws.haar(shape, generator)
    elif start == "glorot":
        drawn = draws.dense(shape, 1.0, generator)
    elif start == "identity":
        drawn = torch.eye(size, dtype=torch.float64).expand(shape)
    else:
        raise ValueError(f"start: {start!r} is not allowed; it is one of {', '.join(get_args(Start))}, or None")
    with torch.no_grad():
        matrix.copy_(drawn.flatten(0, 1))


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    """Half precision would leave W orthogonal to three digits; the layer casts what comes of it."""
    # The meta device has no autocast at all.
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def _list(module: nn.Module, name: str) -> Any:
    known: Any = module.parametrizations
    return known[name]


def _group_of(p: Tensor, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    for group in optimizer.param_groups:
        if "margin" in group and len(group["params"]) == 1 and group["params"][0] is p:
            return group
    raise ValueError("optimizer: it has no group of this spectrum alone; make it with isornn.nn.spectral.groups")


def _checked_margin(margin: Any) -> float | None:
    if margin is None:
        return None
    if isinstance(margin, bool) or not isinstance(margin, (int, float)) or not (math.isfinite(margin) and margin >= 0):
        raise ValueError(f"margin: {margin!r} is not allowed; it is a finite number, 0 or larger, or None")
    return float(margin)


def _checked_matrix(module: nn.Module, name: str) -> Tensor:
    if parametrize.is_parametrized(module, name):
        raise ValueError(f"name: {name!r} is not allowed; it is parametrised already")
    matrix = module._parameters.get(name)
    if matrix is None:
        allowed = ", ".join(key for key, _ in module.named_parameters(recurse=False))
        raise ValueError(f"name: {name!r} is not allowed; {_kind(module)} has {allowed}")
    _check_shape(module, name, matrix)
    if matrix.dtype not in _PRECISIONS:
        raise ValueError(f"{name}: {matrix.dtype} is not allowed; it is float32 or float64")
    return matrix


def _check_shape(module: nn.Module, name: str, matrix: Tensor) -> None:
    square = matrix.dim() == 2 and matrix.shape[0] % matrix.shape[1] == 0
    # An LSTM's matrix with proj_size may be cut into squares, but those are not its gates.
    hidden = getattr(module, "hidden_size", None)
    if not square or (hidden is not None and matrix.shape[1] != hidden):
        size = "N" if hidden is None else hidden
        raise ValueError(
            f"{name}: shape {tuple(matrix.shape)} is not allowed; it is one or more {size} x {size} blocks"
        )


def _kind(module: nn.Module) -> str:
    return parametrize.type_before_parametrizations(module).__name__
